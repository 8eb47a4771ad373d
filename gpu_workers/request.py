"""What a model replica is asked for: `GenerationRequest`, validated where it enters the engine."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator


class SamplingParameters(BaseModel):
    """How tokens are drawn. Order: mask, temperature, top-k, top-p, draw."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_tokens: int | None = Field(
        default=None, ge=1, description="Most output tokens; absent: up to the engine's max_length."
    )
    temperature: float = Field(default=1.0, ge=0, le=100, allow_inf_nan=False, description="0 is greedy.")
    top_p: float = Field(
        default=1.0, gt=0, le=1, description="Smallest set of likeliest tokens with this much probability."
    )
    top_k: int = Field(default=0, ge=0, description="Only this many likeliest tokens; 0 is off.")
    seed: int = Field(default=0, description="The only source of randomness; taken modulo 2**64.")
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        default=(), description="Strings that end the output; they are not part of it."
    )


class GrammarReference(BaseModel):
    """Names a compiled grammar and carries the specification for a compiler that has never seen the key."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    key: str = Field(pattern="^[0-9a-f]{64}$", description="Grammar key.")
    specification: dict[str, Any] = Field(description="The grammar specification as plain data.")


class GenerationRequest(BaseModel):
    """One output to generate: a prompt or chat messages, sampling settings, at most one grammar."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    request_id: str
    prompt: str | list[int] | None = Field(default=None, description="Text, or token ids taken as they are.")
    messages: list[dict[str, Any]] | None = Field(
        default=None, description="Chat messages for the model's chat template."
    )
    sampling: SamplingParameters = Field(default_factory=SamplingParameters)
    choice_index: int = Field(default=0, ge=0, description="Which of several outputs of one client request this is.")
    grammar: GrammarReference | None = None
    emitted_token_ids: list[int] = Field(
        default_factory=list,
        description="Resume: output tokens the client already has. They are replayed and not sent again.",
    )

    @model_validator(mode="after")
    def _one_source(self) -> GenerationRequest:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("exactly one of prompt and messages must be given")
        return self


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
