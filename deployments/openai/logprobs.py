"""Log-probabilities and diagnostics of an answer's tokens, in the shapes of the two completion endpoints."""

from __future__ import annotations

import codecs
from typing import Any

from pydantic import BaseModel, Field

Report = dict[str, Any]
"""What a replica tells about one token (`gpu_workers.sampling.logprobs.TokenNames.describe`)."""


class TokenLogprob(BaseModel):
    """One token; `bytes` is empty for special tokens, which are no part of the text.

    `raw_logprob` is before the constraint's mask, where that was asked for.
    """

    token: str
    logprob: float
    bytes: list[int]
    raw_logprob: float | None = None


class ChatTokenLogprob(TokenLogprob):
    """A token of the answer, and the likeliest ones in its place."""

    top_logprobs: list[TokenLogprob]


class ChatLogprobs(BaseModel):
    """`logprobs` of a choice of `/v1/chat/completions`."""

    content: list[ChatTokenLogprob]
    refusal: None = None


class TextLogprobs(BaseModel):
    """`logprobs` of a choice of `/v1/completions`; the lists run in parallel, offsets count from the output's start."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]
    raw_token_logprobs: list[float] | None = None


class NamedToken(BaseModel):
    """A token by its id; `bytes` is empty for special tokens."""

    token_id: int
    text: str
    bytes: list[int]


class LikelyToken(NamedToken):
    """One of the likeliest tokens of a step."""

    logprob: float


class ReachableState(BaseModel):
    """A state that tokens lead to."""

    state: int | None = Field(description="Its number; null while nothing has been there.")
    terminal: bool = Field(description="Whether the output may end there.")
    tokens: list[NamedToken] = Field(description="Some of the tokens that lead to it, the likeliest first.")
    more_tokens: int = Field(description="How many others do, of the likeliest and of one byte.")


class Surroundings(BaseModel):
    """The automaton around a state: where the likeliest tokens lead, and all of one byte."""

    terminal: bool = Field(description="Whether the output may end here.")
    successors: list[ReachableState]
    more_successors: int = Field(description="How many other states these tokens lead to.")


class GraphState(BaseModel):
    """A state of a whole automaton."""

    state: int
    terminal: bool = Field(description="Whether the output may end there.")


class GraphEdge(BaseModel):
    """What leads from one state to another."""

    source: int
    target: int
    tokens: list[NamedToken] = Field(description="Some of the tokens that do, those of one byte first.")
    more_tokens: int = Field(description="How many others do.")


class AutomatonGraph(BaseModel):
    """A whole automaton, the initial state first; end tokens are no edges."""

    states: list[GraphState]
    edges: list[GraphEdge]


class StepDiagnostics(BaseModel):
    """What the mask did at one token."""

    token: str
    state: int | None = Field(description="State of the automaton before it; numbers differ between replicas.")
    drafted: bool = Field(description="It was proposed ahead, and confirmed.")
    rolled_back: int = Field(description="Tokens that were taken back at its place, for a banned word.")
    forced: bool = Field(description="No other token was allowed.")
    allowed: int | None = Field(description="How many tokens were allowed; null without a constraint.")
    rejection_mass: float = Field(description="Probability that the model gave to forbidden tokens.")
    raw_choices: list[LikelyToken] = Field(description="The likeliest tokens before the mask.")
    masked_choices: list[LikelyToken] = Field(description="The likeliest tokens after the mask.")
    automaton: Surroundings | None = Field(None, description="With a constraint, as far as its limits let one look.")
    graph: AutomatonGraph | None = Field(
        None, description="At steps from the initial state: the whole automaton, if it is small."
    )


def chat_logprobs(reports: list[Report]) -> dict[str, Any]:
    """Data of `ChatLogprobs`."""
    content = [{**_token(report), "top_logprobs": [_token(one) for one in report["top"]]} for report in reports]
    return {"content": content, "refusal": None}


class TextOffsets:
    """Formats one choice's reports for `/v1/completions`, counting characters from one call to the next."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._characters = 0

    def logprobs(self, reports: list[Report]) -> dict[str, Any]:
        """Data of `TextLogprobs` for the next tokens."""
        offsets = []
        for report in reports:
            offsets.append(self._characters)
            self._characters += len(self._decoder.decode(bytes(report["bytes"])))
        raw = [report["raw_logprob"] for report in reports if "raw_logprob" in report]
        return {
            "tokens": [report["text"] for report in reports],
            "token_logprobs": [report["logprob"] for report in reports],
            "top_logprobs": [{choice["text"]: choice["logprob"] for choice in report["top"]} for report in reports],
            "text_offset": offsets,
            **({"raw_token_logprobs": raw} if raw else {}),
        }


def diagnostics(reports: list[Report]) -> list[dict[str, Any]]:
    """What the mask did at each token, where that was asked for."""
    return [{"token": report["text"], **report["diagnostics"]} for report in reports if "diagnostics" in report]


def _token(named: dict[str, Any]) -> dict[str, Any]:
    token = {"token": named["text"], "logprob": named["logprob"], "bytes": named["bytes"]}
    return {**token, "raw_logprob": named["raw_logprob"]} if "raw_logprob" in named else token
