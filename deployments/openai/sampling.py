"""The fields of an HTTP body that say how tokens are drawn, when an output ends and what is told about it.

OpenAI's names where it has one, vLLM's otherwise. Ranges are checked here, so that an error names the client's field.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, StrictBool, StrictFloat, StrictInt, Tag, model_validator

from deployments.http.client_fields import ClientModel
from deployments.http.fields import DecimalName, Natural, Positive, TokenId, contradiction
from deployments.openai.constraints import ON_UNSUPPORTED, StructuredOutputs
from gpu_workers.request import (
    BESIDE_CONDITIONAL,
    LEAST_CONDITIONAL_TEMPERATURE,
    BannedWords,
    BeamSearch,
    ConditionalSampling,
    SamplingParameters,
)
from grammar_workers.options import OnUnsupported
from grammar_workers.validation import FailFast, at_most, by_json_type

MAX_CHOICES = 16
MAX_STOPS = 16
MAX_STOP_LENGTH = 4096
MAX_TOP_LOGPROBS = 20
MAX_BIASES = 1024

_BESIDE_BEAMS = {
    *("model", "stream", "structured_outputs", "on_unsupported"),
    *("beam_search", "n", "max_tokens", "temperature", "top_p", "top_k", "seed", "raw_logprobs"),
}
"""Fields that a beam search bears: its own, those that change nothing about it, and those that are looked at apart."""

Penalty = Annotated[StrictFloat, Field(ge=-2, le=2)]
Bias = Annotated[StrictFloat, Field(ge=-100, le=100)]
StopText = Annotated[str, Field(min_length=1, max_length=MAX_STOP_LENGTH)]
Stop = Annotated[
    Annotated[StopText, Tag("string")]
    | Annotated[list[StopText], FailFast(), Field(max_length=MAX_STOPS), Tag("array")],
    by_json_type("text, or a list of texts"),
]


class CommonBody(ClientModel):
    """Settings that all bodies which ask for an answer share; null is the default everywhere."""

    stream: StrictBool | None = Field(None, description="Answer as server-sent events.")
    structured_outputs: StructuredOutputs | None = Field(
        None, description="What the output must match (vLLM's spelling)."
    )
    on_unsupported: OnUnsupported | None = Field(None, description=ON_UNSUPPORTED)
    temperature: StrictFloat | None = Field(
        None, ge=0, le=2, allow_inf_nan=False, description="0 is greedy; default 1."
    )
    top_p: StrictFloat | None = Field(
        None, gt=0, le=1, description="Nucleus sampling inside the allowed tokens; default 1."
    )
    top_k: StrictInt | None = Field(
        None, ge=-1, lt=1 << 63, description="Most likely allowed tokens to sample from; 0 or -1: all."
    )

    def settings(self, of: type[CommonBody]) -> dict[str, Any]:
        """The values of the fields that `of`, a base class, has."""
        return {name: getattr(self, name) for name in of.model_fields}


class OpenAIBody(CommonBody):
    """Settings that OpenAI's endpoints share."""

    model: str | None = Field(None, description="A name from `/v1/models`; the served model when absent.")
    seed: StrictInt | None = Field(None, ge=-(1 << 63), lt=1 << 63, description="Equal seeds give equal tokens.")
    stop: Stop | None = Field(
        None, description="Up to 16 strings that end the text. Under a constraint they count only where it may end."
    )
    finish_within_budget: StrictBool | None = Field(
        None, description="Under a constraint: be complete within `max_tokens`, or refuse if that is impossible."
    )


class SamplingBody(OpenAIBody):
    """Settings that both completion endpoints share."""

    n: StrictInt | None = Field(None, ge=1, le=MAX_CHOICES, description="Outputs, each drawn for itself; default 1.")
    max_tokens: Positive | None = Field(None, description="The most tokens to generate.")
    min_tokens: Natural | None = Field(None, description="Nothing but the constraint ends an output with fewer tokens.")
    min_p: StrictFloat | None = Field(
        None, ge=0, le=1, description="Drops tokens less likely than this share of the likeliest; default 0."
    )
    repetition_penalty: StrictFloat | None = Field(
        None, gt=0, le=100, description="Above 1 makes tokens of prompt and output less likely; default 1."
    )
    presence_penalty: Penalty | None = Field(None, description="Subtracted from the logits of tokens in the output.")
    frequency_penalty: Penalty | None = Field(
        None, description="Subtracted from a token's logit each time it is in the output."
    )
    logit_bias: Annotated[dict[DecimalName, Bias], at_most(MAX_BIASES)] | None = Field(
        None, description="Added to the logits of token ids; forbidden tokens stay forbidden."
    )
    stop_token_ids: Annotated[list[TokenId], FailFast(), Field(max_length=MAX_STOPS)] | None = Field(
        None, description="Tokens that end the text, as `stop` does."
    )
    ignore_eos: StrictBool | None = Field(None, description="Goes on to `max_tokens` unless the constraint ends it.")
    banned_words: BannedWords | None = Field(
        None,
        description="Words that must not occur. In free text tokens are taken back when one comes up; beside a "
        "constraint they become part of it, as `all_of` does.",
    )
    beam_search: BeamSearch | None = Field(
        None,
        description="Search for a likely output instead of drawing one; beside it only `max_tokens` counts.",
    )
    conditional_sampling: ConditionalSampling | None = Field(
        None,
        description="Under a constraint: draw from the model's distribution given that the output is valid, which "
        "masks distort, by weighing and copying particles. Not streamed; `usage` counts all particles.",
    )
    raw_logprobs: StrictBool | None = Field(
        None, description="With `logprobs`: tell them before the constraint's mask, too."
    )
    diagnostics: StrictBool | None = Field(None, description="Tell for each token what the constraint's mask did.")

    @model_validator(mode="after")
    def _check_sampling(self) -> SamplingBody:
        limit = self.limit()
        if limit is not None and (self.min_tokens or 0) > limit:
            raise contradiction("min_tokens", "is above `max_tokens`")
        if self.beam_search is not None:
            others = (name for name in SamplingBody.model_fields if name not in _BESIDE_BEAMS)
            beside = [name for name in others if getattr(self, name)]
            if beside or self.choices > 1 or self.top_logprobs_wanted() is not None:
                raise contradiction("beam_search", f"does not go with `{(beside or ['n or logprobs'])[0]}`")
        if self.conditional_sampling is not None:
            if (other := self._beside_conditional()) is not None:
                raise contradiction("conditional_sampling", f"does not go with `{other}`: it would be another model")
            if self.choices > 1:
                raise contradiction("conditional_sampling", "does not go with `n`: send a request for each answer")
            if self.temperature is not None and self.temperature < LEAST_CONDITIONAL_TEMPERATURE:
                message = f"needs a `temperature` of at least {LEAST_CONDITIONAL_TEMPERATURE}"
                raise contradiction("conditional_sampling", message)
        if self.raw_logprobs and self.top_logprobs_wanted() is None:
            raise contradiction("raw_logprobs", "needs `logprobs`")
        return self

    def _beside_conditional(self) -> str | None:
        """The first setting that would make another model of the one to be conditioned."""
        given = self.sampling(drawn_seed=0)
        defaults = SamplingParameters().model_dump()
        names = (name for name in BESIDE_CONDITIONAL if name in given and given[name] != defaults[name])
        return next(names, None)

    @property
    def choices(self) -> int:
        return self.n or 1

    @property
    def sequences(self) -> int:
        """How many outputs the engine draws at the same time, at least."""
        return 1 if self.conditional_sampling is None else self.conditional_sampling.particles

    def stop_strings(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    def limit(self) -> int | None:
        """The most tokens to generate; None leaves it to the model's context."""
        return self.max_tokens

    def top_logprobs_wanted(self) -> int | None:
        """How many alternatives to report beside each token; None: no log-probabilities at all."""
        raise NotImplementedError

    def sampling(self, *, drawn_seed: int) -> dict[str, Any]:
        """`gpu_workers.request.SamplingParameters` as plain data; what the client left out has its default there.

        `drawn_seed` replaces an absent seed: a retry on another replica then repeats the same tokens.
        """
        return {
            **self.model_dump(include=set(SamplingParameters.model_fields), exclude_none=True),
            "max_tokens": self.limit(),
            "top_k": max(self.top_k or 0, 0),
            "seed": drawn_seed if self.seed is None else self.seed,
            "stop": self.stop_strings(),
            "logprobs": self.top_logprobs_wanted(),
        }
