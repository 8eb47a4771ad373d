"""Settings of one inference engine: `EngineConfig` for the native engine, `VllmEngineConfig` for vLLM."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from grammar_workers.validation import RenamedFields

_OURS = {"model", "tokenizer", "served_model_name", "skip_tokenizer_init", "structured_outputs_config"} | {
    "trust_remote_code"
}


class _AnyEngineConfig(RenamedFields, frozen=True):
    """Settings of every kind of engine. An unknown key is an error that names the key."""

    grammar_timeout_s: float = Field(default=120.0, gt=0)
    """Maximum number of seconds that a request waits for its grammar. Then the request fails."""
    automaton_cache_mb: int = Field(default=512, ge=1)
    """Maximum memory for automata (compiled grammars) in a replica, in MiB."""
    trust_remote_code: bool = False
    """`true`: all deployments run Python files of the model. Some tokenizers need this."""


class EngineConfig(_AnyEngineConfig):
    """Settings of the native engine (Turnstile's own): token limits, KV cache, masks, speculative decoding."""

    renamed: ClassVar[Mapping[str, str]] = {
        "slots": "max_num_seqs",
        "max_length": "max_model_len",
        "prefill_chunk": "long_prefill_token_threshold",
        "step_tokens": "max_num_batched_tokens",
        "shortest_prefix": "min_prefix_tokens",
        "ngram": "prompt_lookup_max",
        "max_drafts": "num_speculative_tokens",
        "mask_patience_ms": "mask_timeout_ms",
    }

    kind: Literal["native"] = "native"
    """Turnstile's own engine."""
    device: str = Field(default="cpu", pattern="^(cpu|cuda|hpu|mps|mtia|xla|xpu)(:[0-9]+)?$")
    """Device of the model, as torch names it: `cpu`, `cuda`, `cuda:0`."""
    dtype: Literal["auto", "float64", "float32", "bfloat16", "float16"] = "auto"
    """Type of the weights and the KV cache. `auto`: the type of the saved weights. On a CPU, `auto` uses float32 for
    16-bit weights."""
    quantization: Literal["none", "int8"] = "none"
    """`int8`: the weights of linear layers have 8 bits and one scale per output. Activations are not quantized. `none`
    also works with models that torchao has quantized and saved."""
    max_num_seqs: int = Field(default=16, ge=1)
    """Maximum number of sequences that run at the same time. Each has its own slot of the KV cache."""
    max_model_len: int = Field(default=4096, ge=2)
    """Maximum number of tokens of a sequence, prompt and output together. If the model's own limit is smaller, the
    model's limit applies."""
    long_prefill_token_threshold: int = Field(default=256, ge=1)
    """Maximum number of prompt tokens of one sequence in one step (chunked prefill)."""
    max_num_batched_tokens: int = Field(default=512, ge=2)
    """Maximum number of tokens in one step. Decoding sequences come first. Prompts get the rest."""
    max_waiting: int = Field(default=1024, ge=0)
    """Maximum number of generations that wait for a slot. Further requests get HTTP 429."""
    min_prefix_tokens: int = Field(default=16, ge=1)
    """Prefix caching: a prompt reuses the KV cache of an earlier prompt if at least this number of their first tokens
    are equal."""
    preempt_patience: int = Field(default=8, ge=0)
    """Number of steps for which a sequence may wait for a slow mask. Then a waiting sequence may take the slot of this
    sequence."""
    stream_interval_ms: float = Field(default=20.0, ge=0)
    """Minimum time between two events of a stream, in ms. Tokens of this time share an event. The first token and the
    end are sent immediately. Sending an event takes as much CPU time as a step of a small model."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads of torch. Absent: torch's own default."""
    overlap: bool | None = None
    """`true`: the host processes grammars, text and streams while the model runs. On a CPU, the model then runs in a
    separate thread. Absent: `true` on a GPU, `false` on a CPU. The output tokens do not change."""
    sparse_limit: int = Field(default=256, ge=1)
    """If a mask allows at most this number of tokens, only the logits of these tokens are computed."""
    forced_text: bool = True
    """`true`: a forced token (the only token that a grammar allows) is appended without a forward pass. If only one
    text is allowed, but it has several tokenizations, its tokens are drafted. The output tokens do not change."""
    prompt_lookup_max: int = Field(default=3, ge=0, le=8)
    """Prompt lookup (n-gram drafts): the engine finds the longest earlier occurrence of the last tokens, of at most
    this number of tokens, and drafts the tokens that followed there. 0: off. The output tokens do not change."""
    num_speculative_tokens: int = Field(default=15, ge=0)
    """Maximum number of draft tokens of a sequence in one step. 0: no speculation."""
    draft_cost: float = Field(default=0.2, gt=0, le=1)
    """Cost of one more token in a step, divided by the cost of a step. A token is drafted if its estimated acceptance
    probability is at least this value."""
    rejection_mass_interval: int = Field(default=256, ge=0)
    """Number of steps between two measurements of the rejection mass, the probability that a mask removes. 0: no
    measurements."""
    draft_model: str | None = None
    """A smaller model with the tokenizer of the served model (folder or Hugging Face ID). It drafts if no other method
    has a draft. The output tokens do not change, unless `draft_sampling` is `random`."""
    draft_sampling: Literal["greedy", "random"] = "greedy"
    """`greedy`: the draft model drafts its most probable tokens. `random`: the draft model samples its drafts.
    Rejection sampling keeps the distribution of the output unchanged. At high temperatures, `random` has a higher
    acceptance rate. However, with `random` a seed does not reproduce an output."""
    draft_vocabulary: str | None = None
    """A JSON file with a list of the token IDs that the draft model may propose. Absent: all tokens."""
    eagle_head: str | None = None
    """An EAGLE-3 head for the model: a folder or Hugging Face ID with `config.json` and `model.safetensors` in the
    published layout. It drafts as a draft model does."""
    draft_masks: bool = True
    """`true`: the draft model drafts only tokens that the grammar allows. `false` is only for measurements: a draft
    then ends at its first disallowed token."""
    device_step: Literal["off", "eager", "compile", "cuda_graph"] = "off"
    """Place of masking and sampling in decode steps. `off`: on the host. All other values: on the device, without
    copies to the host. `eager`: the device runs a step operation by operation. `compile`: PyTorch compiles the step; on
    a CPU, this takes half a minute for each new batch shape. `cuda_graph`: the step runs as a CUDA graph that is
    captured at startup; this is the fastest value on a GPU. With all values, a sequence is sampled on the host if its
    state has no device table, or if the device does not support its settings. The output tokens do not change."""
    device_table_mb: int = Field(default=128, ge=1)
    """Device memory for the automata of `device_step`, in MiB."""
    mask_timeout_ms: float = Field(default=5.0, ge=0)
    """Maximum time for which a step waits for masks, in ms. A sequence whose mask is not ready takes part in a later
    step."""

    @model_validator(mode="after")
    def _settings_fit(self) -> EngineConfig:
        if self.max_num_batched_tokens <= self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must exceed "
                f"max_num_seqs ({self.max_num_seqs}): a step needs tokens for prompts, too"
            )
        if self.eagle_head is not None and self.draft_model is not None:
            raise ValueError("eagle_head and draft_model: one drafter at a time")
        if self.draft_sampling == "random" and not self.draft_masks:
            raise ValueError("draft_sampling: random needs draft_masks: what a mask forbids cannot be verified")
        if self.quantization == "int8" and self.dtype == "float64":
            raise ValueError("quantization: int8 is for weights of at most 32 bits, not for dtype: float64")
        if self.device_step == "cuda_graph" and not self.device.startswith("cuda"):
            raise ValueError(f"device_step: cuda_graph needs a CUDA device, not {self.device}")
        return self


class VllmEngineConfig(_AnyEngineConfig):
    """Settings of a model replica that runs vLLM as its engine."""

    kind: Literal["vllm"] = "vllm"
    """vLLM's engine, which must be installed."""
    engine_args: dict[str, Any] = Field(default_factory=dict)
    """vLLM's engine arguments with vLLM's names, such as `max_model_len` or `tensor_parallel_size`. vLLM checks them
    when a replica starts."""
    lora_adapters: dict[str, str] = Field(default_factory=dict)
    """Model name of each LoRA adapter -> its folder or Hugging Face ID. Needs `enable_lora` in `engine_args`."""

    @field_validator("engine_args")
    @classmethod
    def _leaves_ours(cls, engine_args: dict[str, Any]) -> dict[str, Any]:
        if ours := sorted(engine_args.keys() & _OURS):
            raise ValueError(f"{', '.join(ours)}: Turnstile sets this itself")
        return engine_args

    @model_validator(mode="after")
    def _adapters_are_enabled(self) -> VllmEngineConfig:
        if self.lora_adapters and not self.engine_args.get("enable_lora"):
            raise ValueError("lora_adapters need `enable_lora: true` among the engine arguments")
        return self

    @property
    def workers(self) -> int:
        """Number of worker processes (one device each): tensor parallel size times pipeline parallel size."""
        sizes = ("tensor_parallel_size", "pipeline_parallel_size")
        return math.prod(int(self.engine_args.get(name, 1)) for name in sizes)


def _kind(engine: Any) -> Any:
    return engine.get("kind", "native") if isinstance(engine, dict) else getattr(engine, "kind", None)


# Settings of one engine. `kind` selects the model; without `kind` it is `EngineConfig`.
AnyEngineConfig = Annotated[
    Annotated[EngineConfig, Tag("native")] | Annotated[VllmEngineConfig, Tag("vllm")], Discriminator(_kind)
]
