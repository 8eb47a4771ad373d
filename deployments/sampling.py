"""The fields of an HTTP body that say how tokens are drawn, when an output ends and what is told about it.

OpenAI's names where it has one, vLLM's otherwise. Ranges are checked here, so that an error names the client's field.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, model_validator
from pydantic_core import PydanticCustomError

from gpu_workers.request import BannedWords, BeamSearch

MAX_CHOICES = 16
MAX_STOPS = 16
MAX_TOP_LOGPROBS = 20

_PASSED_ON = (
    "min_tokens",
    "temperature",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "stop_token_ids",
    "ignore_eos",
    "finish_within_budget",
    "raw_logprobs",
    "diagnostics",
)
"""Fields that a replica takes by the same name and in the same form."""

_NOT_WITH_BEAMS = (
    "min_tokens",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "finish_within_budget",
    "banned_words",
    "diagnostics",
)

Penalty = Annotated[StrictFloat, Field(ge=-2, le=2)]


def contradiction(param: str, message: str) -> PydanticCustomError:
    """The error of a field that is fine alone, but not beside the others."""
    return PydanticCustomError("contradiction", "`{param}` {message}", {"param": param, "message": message})


class SamplingBody(BaseModel):
    """Settings that both completion endpoints share; null is the default everywhere."""

    model_config = ConfigDict(extra="forbid")

    n: StrictInt | None = Field(None, ge=1, le=MAX_CHOICES, description="Outputs, each drawn for itself; default 1.")
    max_tokens: StrictInt | None = Field(None, ge=1, description="The most tokens to generate.")
    min_tokens: StrictInt | None = Field(
        None, ge=0, description="Nothing but the constraint ends an output with fewer tokens."
    )
    temperature: StrictFloat | None = Field(
        None, ge=0, le=2, allow_inf_nan=False, description="0 is greedy; default 1."
    )
    top_p: StrictFloat | None = Field(
        None, gt=0, le=1, description="Nucleus sampling inside the allowed tokens; default 1."
    )
    top_k: StrictInt | None = Field(None, ge=-1, description="Most likely allowed tokens to sample from; 0 or -1: all.")
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
    logit_bias: dict[int, Annotated[StrictFloat, Field(ge=-100, le=100)]] | None = Field(
        None, max_length=1024, description="Added to the logits of token ids; forbidden tokens stay forbidden."
    )
    seed: StrictInt | None = Field(None, ge=-(1 << 63), lt=1 << 63, description="Equal seeds give equal tokens.")
    stop: str | list[str] | None = Field(
        None, description="Up to 16 strings that end the text. Under a constraint they count only where it may end."
    )
    stop_token_ids: list[StrictInt] | None = Field(
        None, max_length=MAX_STOPS, description="Tokens that end the text, as `stop` does."
    )
    ignore_eos: StrictBool | None = Field(None, description="Goes on to `max_tokens` unless the constraint ends it.")
    finish_within_budget: StrictBool | None = Field(
        None, description="Under a constraint: be complete within `max_tokens`, or refuse if that is impossible."
    )
    banned_words: BannedWords | None = Field(
        None,
        description="Words that must not occur. In free text tokens are taken back when one comes up; beside a "
        "constraint they become part of it, as `all_of` does.",
    )
    beam_search: BeamSearch | None = Field(
        None,
        description="Search for a likely output instead of drawing one; beside it only `max_tokens` counts.",
    )
    raw_logprobs: StrictBool | None = Field(
        None, description="With `logprobs`: tell them before the constraint's mask, too."
    )
    diagnostics: StrictBool | None = Field(None, description="Tell for each token what the constraint's mask did.")

    @model_validator(mode="after")
    def _check_sampling(self) -> SamplingBody:
        if len(self.stop_strings()) > MAX_STOPS or "" in self.stop_strings():
            raise contradiction("stop", "takes up to 16 non-empty strings")
        limit = self.limit()
        if limit is not None and (self.min_tokens or 0) > limit:
            raise contradiction("min_tokens", "is above `max_tokens`")
        if self.beam_search is not None:
            beside = [name for name in _NOT_WITH_BEAMS if getattr(self, name)]
            if beside or self.choices > 1 or self.top_logprobs_wanted() is not None:
                raise contradiction("beam_search", f"does not go with `{(beside or ['n or logprobs'])[0]}`")
        if self.raw_logprobs and self.top_logprobs_wanted() is None:
            raise contradiction("raw_logprobs", "needs `logprobs`")
        return self

    @property
    def choices(self) -> int:
        return self.n or 1

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
        given = {name: value for name in _PASSED_ON if (value := getattr(self, name)) is not None}
        for name in ("banned_words", "beam_search"):
            if (value := getattr(self, name)) is not None:
                given[name] = value.model_dump()
        return {
            **given,
            "max_tokens": self.limit(),
            "top_k": max(self.top_k or 0, 0),
            "seed": drawn_seed if self.seed is None else self.seed,
            "stop": self.stop_strings(),
            "logprobs": self.top_logprobs_wanted(),
        }
