"""Page of the features of the two engines of a model replica."""

from __future__ import annotations

from deployments.vllm.sampling import DIFFERENT, REFUSED
from docs.generator.schema_tables import table
from gpu_workers.request import SamplingParameters

INTRODUCTION = """\
# Engine features

A model replica runs one of two engines (`replica.engine.kind`, [config](config.md)). This page compares their
features. [Choose an engine](../engines.md) explains how to run them. `make reference` generates this page from the
code."""

FEATURES = (
    ("models", "decoder-only text models of transformers with full or sliding-window attention", "all models of vLLM"),
    ("KV cache", "one slot per sequence, with prefix caching", "paged, with prefix caching"),
    (
        "several devices per replica",
        "no",
        "yes: `tensor_parallel_size`, `pipeline_parallel_size` and other options of vLLM",
    ),
    ("quantized weights", "`int8`, and models that torchao saved in quantized form", "all formats of vLLM"),
    ("LoRA adapters", "no", "yes: `lora_adapters`. Each adapter has a model name"),
    ("several models in one application", "no", "no, apart from LoRA adapters"),
    ("structured outputs, tool calling, reasoning, `/v1/grammars`, precompilation", "yes", "yes"),
    (
        "end of a constrained response",
        "no end-of-sequence token is needed if the grammar allows no further token",
        "the response needs an end-of-sequence token",
    ),
    ("prefill while the grammar is compiled", "yes", "no"),
    ("forced tokens", "appended without a forward pass", "drafted (`TURNSTILE_FORCED_DRAFTS`)"),
    ("sampling from the model's distribution of valid outputs", "`conditional_sampling`", "no"),
    ("speculative decoding", "n-grams, a draft model, an EAGLE-3 head", "all methods of vLLM (`speculative_config`)"),
    (
        "tokens of a response that another replica continues after a failure",
        "unchanged, up to rounding",
        "unchanged at temperature 0, up to rounding",
    ),
    (
        "Do the tokens depend on other requests in the batch?",
        "only by rounding, which `dtype: float64` makes unlikely",
        "see the documentation of vLLM",
    ),
)
"""Feature, its support in the native engine, its support in vLLM."""


def engines() -> str:
    """Return the page as Markdown."""
    settings = []
    for name in SamplingParameters.model_fields:
        if name == "probe":  # which no client sends
            continue
        answer = DIFFERENT.get(name, "no: HTTP 400 `unsupported_by_engine`" if name in REFUSED else "yes")
        settings.append((f"`{name}`", "yes", answer))
    features = table(["feature", "native", "vLLM"], FEATURES)
    values = table(["setting", "native", "vLLM"], settings)
    return f"{INTRODUCTION}\n\n{features}\n\n## Settings of a request\n\n{values}\n"
