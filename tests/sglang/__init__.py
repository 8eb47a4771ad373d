"""Our grammar backend inside the modules of a real SGLang, in an environment of its own: `make test-sglang`.

SGLang's server needs a GPU. From its wheel run here, on a CPU: the plugin loader and its entry points, `constrained/`
(`GrammarManager`, `ReasonerGrammarBackend`, the base classes), the reasoning parsers,
`SamplingBatchInfo.update_regex_vocab_mask`, the Triton kernel of masks (interpreted), and ranks over gloo.
Modules that import torchvision or CUDA cannot be imported: `traverse_tree`, `generate_token_bitmask`,
`_accept_grammar_tokens` and `process_prebuilt` are taken out of the source that is installed (`source.py`).
`scheduler.py` is the stand-in for the rest: random logits in place of a model, random trees in place of a draft model.
"""
