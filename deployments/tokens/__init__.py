"""Endpoints `/tokenize` and `/detokenize` in vLLM's format: the tokenizer of the served model over HTTP."""
