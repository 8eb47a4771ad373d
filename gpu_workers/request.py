"""Requests to a model replica: `GenerationRequest`, `TokenizeRequest` and their error, `RequestError`.

The router sends requests as plain data. The replica validates them with these models.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field, StrictBool, StrictFloat, StrictInt, model_validator

from grammar_workers.validation import FailFast, FrozenModel, RenamedFields


class BannedWords(FrozenModel):
    """Words that must not occur in the output of a request without a grammar.

    If the model generates one of the words, the engine removes the word and samples other tokens instead. There are at
    most 1,000 `words` of at most 200 characters. Upper and lower case differ only if `case_sensitive` is true.
    """

    words: Annotated[tuple[Annotated[str, Field(min_length=1, max_length=200)], ...], FailFast()] = Field(
        min_length=1, max_length=1000
    )
    case_sensitive: StrictBool = False
    whole_words: StrictBool = False
    """Ban the words only where no letter, digit or `_` stands next to them."""


class BeamSearch(FrozenModel):
    """Settings of beam search, which returns a likely output, as `transformers.generate(num_beams=...)` does.

    In each step, the `num_beams` most likely partial outputs are continued. A grammar masks the tokens.
    """

    num_beams: StrictInt = Field(ge=2, le=16)
    """Number of outputs that the search keeps at each step."""
    length_penalty: StrictFloat = Field(default=1.0, ge=-10, le=10)
    """Exponent of the output's length, by which a score is divided."""
    early_stopping: StrictBool = False
    """End at `num_beams` complete outputs, even if another could become likelier."""


class ConditionalSampling(RenamedFields, FrozenModel):
    """Settings of conditional sampling, which samples from the model's own distribution over valid outputs.

    The method is sequential Monte Carlo. The engine samples several outputs in parallel under the mask; each one is a
    *particle*. For each token of a particle, the model gives some probability to all allowed tokens together. The
    weight of the particle is the product of these probabilities. The response is one particle, sampled with a
    probability proportional to its weight. With more particles, the distribution of responses comes closer to the
    model's distribution over valid outputs.
    """

    renamed: ClassVar[Mapping[str, str]] = {"resample_below": "ess_threshold"}

    particles: StrictInt = Field(ge=1, le=64)
    """Number of outputs that are sampled in parallel. The maximum is half of the engine's `max_num_seqs`."""
    ess_threshold: StrictFloat = Field(default=0.5, ge=0, le=1)
    """Resample if the effective sample size is below this share of `particles`: particles with a low weight end, and
    copies of particles with a high weight replace them."""


class SamplingParameters(FrozenModel):
    """Sampling settings of a request: they determine how tokens are sampled and when the output ends.

    A token is sampled from the model's logits in this order: mask, logit bias, repetition penalty, presence and
    frequency penalties, temperature, top-k, top-p, min-p.

    Attributes:
        max_tokens: Maximum number of output tokens. Absent: up to the engine's max_model_len.
        temperature: Divides the logits. 0: greedy.
        top_p: Sample from the fewest likeliest tokens with this total probability.
        top_k: Sample from this many likeliest tokens. 0: off.
        min_p: Drop tokens below this share of the likeliest one's probability. 0: off.
        repetition_penalty: Divides positive and multiplies negative logits of tokens in prompt or output. 1: off.
        presence_penalty: Subtracted from the logits of all tokens in the output.
        frequency_penalty: Subtracted from a token's logit once for each time it is in the output.
        logit_bias: Token ID to the number added to its logit. The mask still holds.
        seed: Seed of all random numbers of the request, modulo 2**64.
        stop: Strings that end the output. The output does not include them.
        stop_token_ids: IDs of tokens that end the output. The output does not include their text.
        min_tokens: Minimum number of output tokens. Only the grammar can end the output earlier.
        ignore_eos: Sample an end token only where the grammar allows nothing else.
        finish_within_budget: With a grammar: reject tokens after which the output could not be completed within
            max_tokens.
        logprobs: Report the log-probability, after the mask, of each token and of this many likeliest tokens.
        raw_logprobs: With logprobs: also report the values before the mask.
        diagnostics: Report for each token how the mask changed its probability.
        banned_words: Words that an output without a grammar must not have.
        probe: For a search over several generations: report what the mask leaves of the model's probability, and sample
            the end even where nothing else may follow.
        beam_search: Use beam search. Of the other sampling settings only max_tokens may be set.
        conditional_sampling: With a grammar: sample from the model's distribution over valid outputs.
    """

    max_tokens: int | None = Field(default=None, ge=1)
    temperature: float = Field(default=1.0, ge=0, le=100, allow_inf_nan=False)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=0)
    min_p: float = Field(default=0.0, ge=0, le=1)
    repetition_penalty: float = Field(default=1.0, gt=0, le=100)
    presence_penalty: float = Field(default=0.0, ge=-2, le=2)
    frequency_penalty: float = Field(default=0.0, ge=-2, le=2)
    logit_bias: dict[int, Annotated[float, Field(ge=-100, le=100)]] = Field(default_factory=dict)
    seed: int = 0
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    min_tokens: int = Field(default=0, ge=0)
    ignore_eos: bool = False
    finish_within_budget: bool = False
    logprobs: int | None = Field(default=None, ge=0, le=256)
    raw_logprobs: bool = False
    diagnostics: bool = False
    banned_words: BannedWords | None = None
    probe: bool = False
    beam_search: BeamSearch | None = None
    conditional_sampling: ConditionalSampling | None = None

    @property
    def penalizes(self) -> bool:
        """True if a logit bias or a penalty changes logits before sampling."""
        return (
            self.repetition_penalty != 1
            or self.presence_penalty != 0
            or self.frequency_penalty != 0
            or bool(self.logit_bias)
        )

    @property
    def reports(self) -> bool:
        """True if the engine reports on each token (`logprobs`, `diagnostics` or `probe`).

        A report needs the logits of all tokens.
        """
        return self.logprobs is not None or self.diagnostics or self.probe

    def check_token_ids(self, token_limit: int) -> None:
        """Check that all token IDs in `logit_bias` and `stop_token_ids` exist.

        Args:
            token_limit: One past the largest token ID of the model.

        Raises:
            RequestError: A token ID does not exist (code `invalid_token_id`). `param` names the setting.
        """
        for name, token_ids in (("logit_bias", self.logit_bias), ("stop_token_ids", self.stop_token_ids)):
            if (wrong := wrong_token_id(token_ids, token_limit)) is not None:
                raise RequestError(f"{name}: {wrong}", code="invalid_token_id", param=name)


class GrammarReference(FrozenModel):
    """Reference to a compiled grammar: its key, and data with which a replica can get the grammar.

    A replica first looks up `key` in its memory. If the key is not there, the replica loads `artifact` (the compiled
    grammar as bytes). Without an artifact, it looks up `key` in the store. If the store does not have the key, a
    compiler compiles `specification` on behalf of `tenant`. Without a specification, an unknown key is an error.

    Attributes:
        key: Grammar key.
        specification: The grammar specification as plain data, or as `job`.
        artifact: Compiled grammar, as `TokenFSM.to_bytes` returns it.
    """

    key: str = Field(pattern="^[0-9a-f]{64}$")
    specification: dict[str, Any] | None = None
    tenant: str = ""
    artifact: bytes | None = None


class GenerationRequest(FrozenModel):
    """Request to generate one output: a prompt or chat messages, sampling settings, and at most one grammar.

    Attributes:
        tenant: Tenant of the request. Tenants take turns for threads.
        prompt: Text, or token IDs that are used unchanged.
        messages: Chat messages for the model's chat template.
        tools: With messages: functions that the chat template describes.
        template_arguments: With messages: variables of the chat template.
        answer_prefix: With messages: text appended to the rendered chat template, which the output continues.
        continue_final_message: With messages: the output continues the last message, and a grammar constrains both
            together.
        special_token_text: Include the names of special tokens, except end tokens, in the text.
        adapter: Name of the LoRA adapter. Absent: none.
        choice_index: Index of this output among the outputs of one client request.
        traceparent: Parent span as a W3C `traceparent` header.
        timeout_s: Seconds after which the generation ends with an error; absent: none.
        emitted_token_ids: To resume a generation: output tokens that the client has. They are not sent again.
    """

    request_id: str
    tenant: str = ""
    prompt: str | list[int] | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    template_arguments: dict[str, Any] = Field(default_factory=dict)
    answer_prefix: str = ""
    continue_final_message: bool = False
    special_token_text: bool = False
    sampling: SamplingParameters = Field(default_factory=SamplingParameters)
    adapter: str | None = None
    choice_index: int = Field(default=0, ge=0)
    grammar: GrammarReference | None = None
    traceparent: str = ""
    timeout_s: float | None = Field(default=None, gt=0)
    emitted_token_ids: list[int] = Field(default_factory=list)

    @property
    def add_generation_prompt(self) -> bool:
        """True if the chat template opens a new assistant message; false if the output continues the last message."""
        return not self.continue_final_message

    @property
    def begun_text(self) -> str:
        """Text of the last message, if the output continues it (`continue_final_message`); otherwise empty.

        Under a grammar, this text is the beginning of the constrained output.
        """
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


class TokenizeRequest(FrozenModel):
    """Request to tokenize a prompt or chat messages, without generation. Either `prompt` or `messages` is None.

    Fields that also exist in `GenerationRequest` have the meaning described there. `add_generation_prompt` is true if
    the chat template opens a new assistant message. With `add_special_tokens`, the tokenizer adds tokens such as the
    beginning of the sequence. With `return_token_strs`, the response also has the tokens as strings.
    """

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
    """An error that ends one request and no other, with the data for an HTTP error response.

    Args:
        message: Text for the client.
        code: Machine-readable error code, such as `invalid_prompt`.
        status: HTTP status.
        param: Name of the request field with the error; None if no field has it.

    Attributes:
        message: Text for the client.
        code: Machine-readable error code.
        status: HTTP status.
        param: Name of the request field with the error; None if no field has it.
    """

    def __init__(self, message: str, *, code: str, status: int = 400, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.status = status
        self.param = param

    def to_dict(self) -> dict[str, Any]:
        """Return the error as plain data with the keys `status`, `code`, `message` and `param`."""
        return {"status": self.status, "code": self.code, "message": self.message, "param": self.param}


def wrong_token_id(token_ids: Iterable[int], token_limit: int) -> str | None:
    """Check that the model has all of the given token IDs.

    Args:
        token_ids: The token IDs.
        token_limit: One past the largest token ID of the model.

    Returns:
        An error message that names the first ID below 0 or not below `token_limit`; None if all IDs are valid.
    """
    wrong = next((token_id for token_id in token_ids if not 0 <= token_id < token_limit), None)
    limits = f"they are between 0 and {token_limit - 1}"
    return None if wrong is None else f"{wrong} is not a token ID of this model: {limits}"
