"""The two engines of a model replica, feature by feature."""

from __future__ import annotations

from deployments.vllm.sampling import DIFFERENT, REFUSED
from docs.generator.schema_tables import table
from gpu_workers.request import SamplingParameters

INTRODUCTION = """\
# Engines

Made by `make reference` from the code. What the two kinds of engine of a model replica can do (`replica.engine.kind`,
[config](config.md)); how to run them is told in [engines.md](../engines.md)."""

FEATURES = (
    ("models", "families of transformers with plain attention", "those of vLLM"),
    ("KV cache", "a fixed slot for each sequence", "paged, with a prefix cache"),
    ("several devices", "no", "`tensor_parallel_size`, `pipeline_parallel_size` and others of vLLM"),
    ("quantised weights", "`int8`, and models saved as quantised by torchao", "those of vLLM"),
    ("LoRA adapters", "no", "`lora_adapters`, each a model name"),
    ("several models in one application", "no", "no, but adapters; one application for each model"),
    ("grammars, tools, thinking, `/v1/grammars`, precompilation", "yes", "yes"),
    ("answer under a grammar", "ends without an end token where nothing else may come", "has one token more, its end"),
    ("prompt computed while its grammar compiles", "yes", "no"),
    ("tokens without a choice", "appended without a forward pass", "drafted (`TURNSTILE_FORCED_DRAFTS`)"),
    ("answers from the model given that they are valid", "`conditional_sampling`", "no"),
    ("drafts", "n-grams, a draft model, an EAGLE-3 head", "those of vLLM (`speculative_config`)"),
    ("resumed after the death of a replica", "the same tokens", "the same tokens at temperature 0"),
    ("the same tokens, whoever else is in the batch", "in float64", "where vLLM says so"),
)
"""What it is, of the native engine, of vLLM."""


def engines() -> str:
    """The document as Markdown."""
    settings = []
    for name in SamplingParameters.model_fields:
        if name == "probe":  # which no client sends
            continue
        answer = f"400: it does not support {REFUSED[name]}" if name in REFUSED else DIFFERENT.get(name, "yes")
        settings.append((f"`{name}`", "yes", answer))
    features = table(["feature", "native", "vLLM"], FEATURES)
    values = table(["setting", "native", "vLLM"], settings)
    return f"{INTRODUCTION}\n\n{features}\n\n## Settings of a request\n\n{values}\n"
