"""What a model replica is asked for: `GenerationRequest`, validated where it enters the engine."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, model_validator

from grammar_workers.validation import FailFast, FrozenModel


class BannedWords(FrozenModel):
    """Words that free text must not have; tokens are taken back when one comes up."""

    words: Annotated[tuple[Annotated[str, Field(min_length=1, max_length=200)], ...], FailFast()] = Field(
        min_length=1, max_length=1000
    )
    case_sensitive: StrictBool = False
    whole_words: StrictBool = Field(
        default=False, description="Only between characters that are no letter, digit or `_`."
    )


class BeamSearch(FrozenModel):
    """Search for a likely output instead of drawing one: `transformers.generate(num_beams=...)`, under the mask."""

    num_beams: StrictInt = Field(ge=2, le=16, description="Outputs followed at the same time.")
    length_penalty: StrictFloat = Field(
        default=1.0, ge=-10, le=10, description="Scores are divided by the output's length to this power."
    )
    early_stopping: StrictBool = Field(
        default=False, description="End with `num_beams` complete outputs, though others could still become likelier."
    )


class ConditionalSampling(FrozenModel):
    """Draw the output from the model's own distribution, given that the output is valid, by sequential Monte Carlo.

    Several outputs, *particles*, are drawn side by side under the mask. Each is weighed by what the mask leaves of the
    model's probability at every token; one of them is the answer. With more particles the answer's distribution comes
    closer to the conditional one.
    """

    particles: StrictInt = Field(
        ge=1, le=64, description="Outputs drawn side by side, at most half as many as the engine has slots."
    )
    resample_below: StrictFloat = Field(
        default=0.5,
        ge=0,
        le=1,
        description="Replace light particles by copies of heavy ones when the effective sample size falls below this "
        "share of them.",
    )


LEAST_CONDITIONAL_TEMPERATURE = 0.01
BESIDE_CONDITIONAL = (
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "finish_within_budget",
    "beam_search",
)
"""Settings that `conditional_sampling` does not go with: the model that is conditioned is the one that was trained."""


class SamplingParameters(BaseModel):
    """How tokens are drawn and when an output ends.

    Order: mask, logit bias, repetition, presence and frequency penalties, then as in `sampling.distribution`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_tokens: int | None = Field(
        default=None, ge=1, description="Most output tokens; absent: up to the engine's max_length."
    )
    temperature: float = Field(default=1.0, ge=0, le=100, allow_inf_nan=False, description="0 is greedy.")
    top_p: float = Field(
        default=1.0, gt=0, le=1, description="Smallest set of likeliest tokens with this much probability."
    )
    top_k: int = Field(default=0, ge=0, description="Only this many likeliest tokens; 0 is off.")
    min_p: float = Field(
        default=0.0, ge=0, le=1, description="Drops tokens less likely than this share of the likeliest; 0 is off."
    )
    repetition_penalty: float = Field(
        default=1.0,
        gt=0,
        le=100,
        description="Divides positive and multiplies negative logits of tokens in prompt or output; 1 is off.",
    )
    presence_penalty: float = Field(
        default=0.0, ge=-2, le=2, description="Subtracted from the logits of tokens that the output has."
    )
    frequency_penalty: float = Field(
        default=0.0, ge=-2, le=2, description="Subtracted once for each time that the output has the token."
    )
    logit_bias: dict[int, Annotated[float, Field(ge=-100, le=100)]] = Field(
        default_factory=dict, description="Added to the logits of these token ids, which the mask must allow anyway."
    )
    seed: int = Field(default=0, description="The only source of randomness; taken modulo 2**64.")
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        default=(), description="Strings that end the output; they are not part of it."
    )
    stop_token_ids: tuple[int, ...] = Field(
        default=(), description="Tokens that end the output; their text is not part of it."
    )
    min_tokens: int = Field(
        default=0, ge=0, description="Nothing ends the output before it has so many tokens, but its grammar may."
    )
    ignore_eos: bool = Field(
        default=False, description="End tokens are drawn only where the grammar allows nothing else."
    )
    finish_within_budget: bool = Field(
        default=False,
        description="Under a grammar: turn tokens down after which the output could not be complete in max_tokens.",
    )
    logprobs: int | None = Field(
        default=None,
        ge=0,
        le=256,
        description="Report each token's log-probability after the mask, and of this many likeliest tokens.",
    )
    raw_logprobs: bool = Field(default=False, description="With logprobs: report the values before the mask, too.")
    diagnostics: bool = Field(default=False, description="Report for each token what the mask did.")
    banned_words: BannedWords | None = Field(default=None, description="For outputs without a grammar.")
    probe: bool = Field(
        default=False,
        description="For a search over several generations: report what the mask leaves of the model's probability, and"
        " sample the end even where nothing else may follow.",
    )
    beam_search: BeamSearch | None = Field(default=None, description="Goes with max_tokens alone; nothing is drawn.")
    conditional_sampling: ConditionalSampling | None = Field(
        default=None, description="Under a grammar: draw from the model given that the output is valid."
    )

    @model_validator(mode="after")
    def _beams_alone(self) -> SamplingParameters:
        beside = self.model_fields_set - {"beam_search", "max_tokens", "seed", "temperature", "top_p", "top_k"}
        extra = [name for name in sorted(beside) if self._is_set(name)]
        if self.beam_search is not None and extra:
            raise ValueError(f"beam_search does not go with {', '.join(extra)}")
        return self

    @model_validator(mode="after")
    def _condition_the_model_itself(self) -> SamplingParameters:
        if self.conditional_sampling is not None:
            if extra := [name for name in BESIDE_CONDITIONAL if self._is_set(name)]:
                raise ValueError(f"conditional_sampling does not go with {', '.join(extra)}")
            if self.temperature < LEAST_CONDITIONAL_TEMPERATURE:
                raise ValueError(
                    f"conditional_sampling needs a temperature of at least {LEAST_CONDITIONAL_TEMPERATURE}"
                )
        return self

    def _is_set(self, name: str) -> bool:
        return bool(getattr(self, name) != type(self).model_fields[name].get_default(call_default_factory=True))

    @property
    def penalizes(self) -> bool:
        """Whether logits change before they are sampled from."""
        return (
            self.repetition_penalty != 1
            or self.presence_penalty != 0
            or self.frequency_penalty != 0
            or bool(self.logit_bias)
        )

    @property
    def reports(self) -> bool:
        """Whether something is told about each token: such rows need all their logits."""
        return self.logprobs is not None or self.diagnostics or self.probe

    def check_token_ids(self, token_limit: int) -> None:
        """Raises RequestError when a setting names a token id that does not exist."""
        for name, token_ids in (("logit_bias", self.logit_bias), ("stop_token_ids", self.stop_token_ids)):
            if not all(0 <= token_id < token_limit for token_id in token_ids):
                message = f"{name}: token ids must be between 0 and {token_limit - 1}"
                raise RequestError(message, code="invalid_token_id", param=name)


class GrammarReference(BaseModel):
    """Names a compiled grammar; carries its artifact, where the sender has it, or the specification, where the client
    sent it, for a compiler that has never seen the key, and the tenant for whom it would be compiled.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    key: str = Field(pattern="^[0-9a-f]{64}$", description="Grammar key.")
    specification: dict[str, Any] | None = Field(
        None, description="The grammar specification as plain data, or as `job`."
    )
    tenant: str = ""
    artifact: bytes | None = Field(None, description="What `TokenFSM.from_bytes` takes.")


class GenerationRequest(BaseModel):
    """One output to generate: a prompt or chat messages, sampling settings, at most one grammar."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    request_id: str
    tenant: str = Field(default="", description="Who shares threads with others by turns.")
    prompt: str | list[int] | None = Field(default=None, description="Text, or token ids taken as they are.")
    messages: list[dict[str, Any]] | None = Field(
        default=None, description="Chat messages for the model's chat template."
    )
    tools: list[dict[str, Any]] | None = Field(
        default=None, description="With messages: functions that the chat template describes to the model."
    )
    template_arguments: dict[str, Any] = Field(
        default_factory=dict, description="With messages: variables of the chat template."
    )
    answer_prefix: str = Field(
        default="", description="With messages: text after what the chat template renders; the output continues it."
    )
    continue_final_message: bool = Field(
        default=False,
        description="With messages: the output continues the last one; a grammar holds for both together.",
    )
    special_token_text: bool = Field(
        default=False, description="Special tokens in the output, but for end tokens, are text: their names."
    )
    sampling: SamplingParameters = Field(default_factory=SamplingParameters)
    adapter: str | None = Field(default=None, description="The LoRA adapter to generate with; absent: none.")
    choice_index: int = Field(default=0, ge=0, description="Which of several outputs of one client request this is.")
    grammar: GrammarReference | None = None
    traceparent: str = Field(default="", description="The span that this generation is a part of, in W3C's words.")
    timeout_s: float | None = Field(
        default=None, gt=0, description="Seconds after which the generation ends with an error; absent: none."
    )
    emitted_token_ids: list[int] = Field(
        default_factory=list,
        description="Resume: output tokens the client already has. They are replayed and not sent again.",
    )

    @property
    def add_generation_prompt(self) -> bool:
        """True if the chat template opens an answer of its own."""
        return not self.continue_final_message

    @property
    def begun_text(self) -> str:
        """The beginning of the text that the grammar describes, where the last message holds it."""
        return str(self.messages[-1]["content"]) if self.messages and self.continue_final_message else ""

    @model_validator(mode="after")
    def _one_source(self) -> GenerationRequest:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("exactly one of prompt and messages must be given")
        if self.grammar is not None and self.sampling.banned_words is not None:
            raise ValueError("banned_words is for free text; under a grammar words are banned by the grammar")
        if self.grammar is None and self.sampling.finish_within_budget:
            raise ValueError("finish_within_budget needs a grammar")
        if self.sampling.conditional_sampling is not None:
            if self.grammar is None:
                raise ValueError("conditional_sampling needs a grammar")
            if self.emitted_token_ids:
                raise ValueError("conditional_sampling emits nothing before its end, and goes on from nothing")
        return self


class TokenizeRequest(BaseModel):
    """A prompt or chat messages of which the tokens are asked for; the first fields are those of a generation."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tenant: str = ""
    prompt: str | None
    messages: list[dict[str, Any]] | None
    tools: list[dict[str, Any]] | None = None
    template_arguments: dict[str, Any] = Field(default_factory=dict)
    answer_prefix: str = ""
    add_special_tokens: bool
    add_generation_prompt: bool
    continue_final_message: bool
    return_token_strs: bool


class RequestError(Exception):
    """A generation that cannot be served: ends that request alone.

    `status` is the HTTP status, `code` the machine-readable kind, `param` the field at fault, if one is.
    """

    def __init__(self, message: str, *, code: str, status: int = 400, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.status = status
        self.param = param

    def to_dict(self) -> dict[str, Any]:
        return {"status": self.status, "code": self.code, "message": self.message, "param": self.param}
