"""`EngineConfig` and `VllmEngineConfig`: everything an operator may choose about one inference engine."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, field_validator, model_validator

_OURS = {"model", "tokenizer", "served_model_name", "skip_tokenizer_init", "structured_outputs_config"} | {
    "trust_remote_code"
}


class _AnyEngineConfig(BaseModel):
    """Settings of every kind of engine. Unknown keys are refused by name."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    grammar_timeout_s: float = Field(
        default=120.0, gt=0, description="How long a request waits for its grammar before it ends with an error."
    )
    automaton_cache_mb: int = Field(default=512, ge=1, description="Memory for automata kept in this process, in MiB.")
    trust_remote_code: bool = Field(
        default=False,
        description="Whether Python files that come with the model may run, in all tiers; some tokenizers are such.",
    )


class EngineConfig(_AnyEngineConfig):
    """Settings of the native engine."""

    kind: Literal["native"] = Field(default="native", description="Turnstile's own engine.")
    device: str = Field(default="cpu", description="Where the model runs, as torch names it: `cpu`, `cuda`, `cuda:0`.")
    dtype: Literal["auto", "float64", "float32", "bfloat16", "float16"] = Field(
        default="auto",
        description="Type of weights and KV cache. `auto`: as saved, but float32 for 16-bit weights on a CPU.",
    )
    quantization: Literal["none", "int8"] = Field(
        default="none",
        description="`int8`: weights of linear layers in 8 bits, a scale per output; activations stay as they are."
        " Models saved as quantised by torchao need no setting.",
    )
    slots: int = Field(
        default=16, ge=1, description="Sequences that run at the same time; each owns one slot of the KV cache."
    )
    max_length: int = Field(
        default=4096,
        ge=2,
        description="Most tokens of one sequence, prompt and output together; capped by what the model supports.",
    )
    prefill_chunk: int = Field(default=256, ge=1, description="Most prompt tokens of one sequence in one step.")
    step_tokens: int = Field(
        default=512,
        ge=2,
        description="Most tokens in one step: one per decoding sequence first, prompt chunks in what is left.",
    )
    max_waiting: int = Field(
        default=1024, ge=0, description="Generations that may wait for a slot; further ones get status 429."
    )
    shortest_prefix: int = Field(
        default=16,
        ge=1,
        description="A prompt that begins with at least this many tokens of another takes over their keys and values.",
    )
    preempt_patience: int = Field(
        default=8,
        ge=0,
        description="A sequence held up by a slow mask for this many steps lends its slot to those who wait for one.",
    )
    stream_interval_ms: float = Field(
        default=20.0,
        ge=0,
        description="Least time between two outputs of one stream; tokens in between travel together. The first token"
        " and the end never wait. Each output costs all processes on its way as much as a small model's step.",
    )
    threads: int | None = Field(default=None, ge=1, description="CPU threads of torch; absent: what torch finds.")
    overlap: bool | None = Field(
        default=None,
        description="Do the host's work while the model runs: grammars, text and streams; on a CPU the model then has a"
        " thread of its own. Absent: on a GPU only, where it pays. The output is the same token for token.",
    )
    sparse_limit: int = Field(
        default=256,
        ge=1,
        description="A row that allows at most this many tokens gets only those columns of the output projection.",
    )
    forced_text: bool = Field(
        default=True,
        description="Append tokens that a grammar leaves no choice about without a forward pass, and draft forced text"
        " that has several tokenizations. The output is the same token for token.",
    )
    ngram: int = Field(
        default=3,
        ge=0,
        le=8,
        description="Draft what followed the last tokens earlier in prompt and output, for the longest match of at most"
        " this many tokens; 0 is off. The output is the same token for token.",
    )
    max_drafts: int = Field(default=15, ge=0, description="Most drafts of one sequence in one step; 0: no drafts.")
    draft_cost: float = Field(
        default=0.2,
        gt=0,
        le=1,
        description="What one more token of a sequence in a step costs, relative to a step of its own: a draft is made"
        " while the probability that it comes true is at least this.",
    )
    rejection_mass_interval: int = Field(
        default=256,
        ge=0,
        description="Every so many steps, measure how much probability one row's mask takes away; 0: never.",
    )
    draft_model: str | None = Field(
        default=None,
        description="A smaller model with the same tokenizer, a folder or Hugging Face id: it drafts where nothing else"
        " does. The output is the same token for token, unless `draft_sampling` is `random`.",
    )
    draft_sampling: Literal["greedy", "random"] = Field(
        default="greedy",
        description="How the draft model drafts. `greedy`: the likeliest tokens. `random`: it draws, and drafts are"
        " kept or replaced so that outputs have the same distribution as without drafts. More drafts come true at high"
        " temperatures, but an output is no longer the same token for token, nor exactly repeated by its seed.",
    )
    draft_vocabulary: str | None = Field(
        default=None,
        description="A JSON file with a list of the token ids that the draft model may propose; absent: all of them.",
    )
    eagle_head: str | None = Field(
        default=None,
        description="An EAGLE-3 head for the model, a folder or Hugging Face id with `config.json` and"
        " `model.safetensors` in the published layout: it drafts where nothing else does, as a draft model would.",
    )
    draft_masks: bool = Field(
        default=True,
        description="Draft under the grammar's mask. `false` lets a draft model or head propose what the grammar"
        " forbids, which is where its drafts then end: to measure what masks on drafts bring.",
    )
    device_step: Literal["off", "eager", "compile", "cuda_graph"] = Field(
        default="off",
        description="How sequences that decode take a step. `off`: masks and draws are the host's. Otherwise states,"
        " masks, draws and the verification of drafts stay on the device, in one step without a host read, run op by"
        " op (`eager`), compiled (`compile`: on a CPU every new shape of the batch takes half a minute once) or"
        " captured in CUDA graphs before the replica is ready (`cuda_graph`; on a GPU the fastest). States where no"
        " request has been before and settings that the device does not know stay with the host, row by row. The"
        " output is the same token for token.",
    )
    device_table_mb: int = Field(default=128, ge=1, description="Device memory for automata of `device_step`, in MiB.")
    mask_patience_ms: float = Field(
        default=5.0,
        ge=0,
        description="How long a step waits for masks not yet known before it leaves their rows for a later step.",
    )

    @model_validator(mode="after")
    def _settings_fit(self) -> EngineConfig:
        if self.step_tokens <= self.slots:
            raise ValueError(f"step_tokens ({self.step_tokens}) must exceed slots ({self.slots}), or prefill starves")
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
    """Settings of an engine that is vLLM's."""

    kind: Literal["vllm"] = Field(default="vllm", description="vLLM's engine, which must be installed.")
    engine_args: dict[str, Any] = Field(
        default_factory=dict,
        description="vLLM's own engine arguments by their own names, such as `max_model_len` or `tensor_parallel_size`;"
        " vLLM checks them when a replica starts.",
    )
    lora_adapters: dict[str, str] = Field(
        default_factory=dict,
        description="Model names of LoRA adapters, and their folders or Hugging Face ids; needs `enable_lora` among the"
        " engine arguments.",
    )

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
        """How many processes, each with a device, the model is spread over."""
        sizes = ("tensor_parallel_size", "pipeline_parallel_size")
        return math.prod(int(self.engine_args.get(name, 1)) for name in sizes)


def _kind(engine: Any) -> Any:
    return engine.get("kind", "native") if isinstance(engine, dict) else getattr(engine, "kind", None)


AnyEngineConfig = Annotated[
    Annotated[EngineConfig, Tag("native")] | Annotated[VllmEngineConfig, Tag("vllm")], Discriminator(_kind)
]
"""The settings of one engine; without `kind` it is the native one."""
