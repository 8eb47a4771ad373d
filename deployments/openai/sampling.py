"""Fields of request bodies about sampling, the end of an output, and reports about tokens.

The fields have the names of OpenAI's API, or of vLLM's API if OpenAI has no such field. Ranges of values are checked
here, so that an error names the field of the client.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, StrictBool, StrictFloat, StrictInt, Tag, model_validator

from deployments.http.client_fields import ClientModel
from deployments.http.fields import DecimalName, Natural, Positive, TokenId, contradiction
from deployments.openai.constraints import ON_UNSUPPORTED, StructuredOutputs
from gpu_workers.request import (
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

# Fields that are allowed with a beam search: its own fields, fields without an effect on it, and fields with checks of
# their own.
_BESIDE_BEAMS = {
    *("model", "stream", "structured_outputs", "on_unsupported"),
    *("beam_search", "n", "max_tokens", "temperature", "top_p", "top_k", "seed", "raw_logprobs"),
}

_LEAST_CONDITIONAL_TEMPERATURE = 0.01
# Settings that cannot be combined with `conditional_sampling`: they change the distribution that is conditioned.
_BESIDE_CONDITIONAL = (
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

Penalty = Annotated[StrictFloat, Field(ge=-2, le=2)]
Bias = Annotated[StrictFloat, Field(ge=-100, le=100)]
StopText = Annotated[str, Field(min_length=1, max_length=MAX_STOP_LENGTH)]
Stop = Annotated[
    Annotated[StopText, Tag("string")]
    | Annotated[list[StopText], FailFast(), Field(max_length=MAX_STOPS), Tag("array")],
    by_json_type("text, or a list of texts"),
]


class CommonBody(ClientModel):
    """Settings that all requests for generated text share. A field that is null has its default."""

    stream: StrictBool | None = None
    """`true`: the response is a stream of server-sent events."""
    structured_outputs: StructuredOutputs | None = None
    """Constraint on the output, in vLLM's format."""
    on_unsupported: OnUnsupported | None = Field(None, description=ON_UNSUPPORTED)
    temperature: StrictFloat | None = Field(None, ge=0, le=2, allow_inf_nan=False)
    """Sampling temperature. 0: greedy. Default: 1."""
    top_p: StrictFloat | None = Field(None, gt=0, le=1)
    """Nucleus sampling: sample from the fewest likeliest allowed tokens with this total probability. Default: 1."""
    top_k: StrictInt | None = Field(None, ge=-1, lt=1 << 63)
    """Sample from this number of the likeliest allowed tokens. 0 or -1: all."""

    def settings(self, of: type[CommonBody]) -> dict[str, Any]:
        """Return the fields of this body that are defined in, or inherited by, one of its base classes.

        Args:
            of: A base class of this body, such as `CommonBody`.

        Returns:
            Name of a field -> value of the field in this body.
        """
        return {name: getattr(self, name) for name in of.model_fields}


class OpenAIBody(CommonBody):
    """Settings that the bodies of all generation endpoints of OpenAI's API share."""

    model: str | None = None
    """A name from `/v1/models`. Absent: the served model."""
    seed: StrictInt | None = Field(None, ge=-(1 << 63), lt=1 << 63)
    """Seed of the sampling. Requests with equal seeds and equal content get equal tokens, up to rounding."""
    stop: Stop | None = None
    """Up to 16 strings that end the output. Under a constraint, they end the output only where it is complete."""
    finish_within_budget: StrictBool | None = None
    """`true`, under a constraint: the output is complete within `max_tokens`. If this is impossible, the server rejects
    the request."""


class SamplingBody(OpenAIBody):
    """Sampling settings of `/v1/chat/completions` and `/v1/completions`."""

    n: StrictInt | None = Field(None, ge=1, le=MAX_CHOICES)
    """Number of outputs, which are sampled independently. Default: 1."""
    max_tokens: Positive | None = None
    """Maximum number of output tokens."""
    min_tokens: Natural | None = None
    """Minimum number of output tokens. Only the constraint can end the output earlier."""
    min_p: StrictFloat | None = Field(None, ge=0, le=1)
    """Drop tokens whose probability is below this share of the probability of the likeliest token. Default: 0."""
    repetition_penalty: StrictFloat | None = Field(None, gt=0, le=100)
    """Values above 1 make tokens that are in the prompt or output less likely. Default: 1."""
    presence_penalty: Penalty | None = None
    """Number that is subtracted from the logits of all tokens in the output."""
    frequency_penalty: Penalty | None = None
    """Number that is subtracted from the logit of a token for each occurrence of the token in the output."""
    logit_bias: Annotated[dict[DecimalName, Bias], at_most(MAX_BIASES)] | None = None
    """Token ID -> number that is added to its logit. Disallowed tokens stay disallowed."""
    stop_token_ids: Annotated[list[TokenId], FailFast(), Field(max_length=MAX_STOPS)] | None = None
    """IDs of tokens that end the output, as the strings of `stop` do."""
    ignore_eos: StrictBool | None = None
    """`true`: the output continues until `max_tokens`, unless the constraint ends it."""
    banned_words: BannedWords | None = None
    """Words that the output must not contain. In free text, the engine rolls back tokens that form a banned word. Under
    a constraint, the mask excludes banned words, as with `all_of`."""
    beam_search: BeamSearch | None = None
    """Beam search for a likely output, instead of sampling. Of the other sampling settings, only `max_tokens` may be
    set."""
    conditional_sampling: ConditionalSampling | None = None
    """Under a constraint: sample from the model's distribution under the condition that the output is valid. A mask
    alone changes this distribution. The response cannot be streamed. `usage` counts the tokens of all sampled outputs
    (particles)."""
    raw_logprobs: StrictBool | None = None
    """With `logprobs`: the response also has the log-probabilities before the mask."""
    diagnostics: StrictBool | None = None
    """`true`: the response describes the effect of the mask on each token."""

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
            if self.temperature is not None and self.temperature < _LEAST_CONDITIONAL_TEMPERATURE:
                message = f"needs a `temperature` of at least {_LEAST_CONDITIONAL_TEMPERATURE}"
                raise contradiction("conditional_sampling", message)
        if self.raw_logprobs and self.top_logprobs_wanted() is None:
            raise contradiction("raw_logprobs", "needs `logprobs`")
        return self

    def _beside_conditional(self) -> str | None:
        """Return the first setting that changes the distribution that `conditional_sampling` conditions, or None."""
        given = self.sampling(drawn_seed=0)
        defaults = SamplingParameters().model_dump()
        names = (name for name in _BESIDE_CONDITIONAL if name in given and given[name] != defaults[name])
        return next(names, None)

    @property
    def choices(self) -> int:
        """Number of choices (outputs) for each prompt, at least 1."""
        return self.n or 1

    @property
    def sequences(self) -> int:
        """Number of requests for which this request counts in the rate limit.

        It is 1, or the number of particles with `conditional_sampling`, which generates several outputs (*particles*)
        in parallel and returns one of them.
        """
        return 1 if self.conditional_sampling is None else self.conditional_sampling.particles

    def stop_strings(self) -> list[str]:
        """Return the texts that end the output (field `stop`) as a list. Empty: no text ends the output."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    def limit(self) -> int | None:
        """Return the maximum number of output tokens. None: only the context length of the model limits the output."""
        return self.max_tokens

    def top_logprobs_wanted(self) -> int | None:
        """Return the number of most likely tokens to report at each position. Subclasses override this method.

        Returns:
            0: report only the generated token. None: report no log-probabilities.
        """
        raise NotImplementedError

    def sampling(self, *, drawn_seed: int) -> dict[str, Any]:
        """Return the sampling settings of the generation request that a model replica gets.

        Args:
            drawn_seed: Seed that is used if the body has no `seed`.

        Returns:
            Fields of `gpu_workers.request.SamplingParameters` as plain data. An absent field means its default.
        """
        return {
            **self.model_dump(include=set(SamplingParameters.model_fields), exclude_none=True),
            "max_tokens": self.limit(),
            "top_k": max(self.top_k or 0, 0),
            "seed": drawn_seed if self.seed is None else self.seed,
            "stop": self.stop_strings(),
            "logprobs": self.top_logprobs_wanted(),
        }
