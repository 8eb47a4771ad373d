"""Log-probabilities and diagnostics of generated tokens, in the formats of both completion endpoints.

All log-probabilities are natural logarithms.
"""

from __future__ import annotations

import codecs
from typing import Any

from pydantic import BaseModel, Field

# Report of a replica about one token (`gpu_workers.sampling.logprobs.TokenNames.describe`).
Report = dict[str, Any]


class TokenLogprob(BaseModel):
    """Token with its log-probability (natural logarithm) after the constraint's mask.

    `token` is the text of the token, and `bytes` are the bytes of this text. For a special token, `token` is its name,
    and `bytes` is empty. `raw_logprob`, the log-probability before the mask, is absent unless the request sets
    `raw_logprobs`.
    """

    token: str
    logprob: float
    bytes: list[int]
    raw_logprob: float | None = None


class ChatTokenLogprob(TokenLogprob):
    """Generated token with its log-probability. `top_logprobs` lists the most likely tokens at its position."""

    top_logprobs: list[TokenLogprob]


class ChatLogprobs(BaseModel):
    """Log-probabilities of one choice (output) of `/v1/chat/completions`, with one entry of `content` per token."""

    content: list[ChatTokenLogprob]
    refusal: None = None


class TextLogprobs(BaseModel):
    """Log-probabilities (natural logarithms) of one choice (output) of `/v1/completions`.

    Each list has one entry per generated token. An entry of `top_logprobs` maps the texts of the most likely tokens at
    one position to their log-probabilities. `text_offset` has the number of output characters before each token.
    `raw_token_logprobs` has the values before the constraint's mask, and is absent unless the request sets
    `raw_logprobs`.
    """

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]
    raw_token_logprobs: list[float] | None = None


class NamedToken(BaseModel):
    """Token with its id, its text, and the bytes of the text.

    For a special token, `text` is its name, and `bytes` is empty.
    """

    token_id: int
    text: str
    bytes: list[int]


class LikelyToken(NamedToken):
    """One of the most likely tokens at a position, with its log-probability (natural logarithm)."""

    logprob: float


class ReachableState(BaseModel):
    """Successor of a state of the constraint's automaton, with the tokens that lead from the state to the successor."""

    state: int | None = Field(description="Number of the state. `null`: no output has reached the state.")
    terminal: bool = Field(description="`true`: the output may end in this state.")
    tokens: list[NamedToken] = Field(description="Some of the tokens that lead to this state, the likeliest first.")
    more_tokens: int = Field(
        description="Number of other tokens that lead to this state. Only the likeliest tokens "
        "and one-byte tokens count."
    )


class Surroundings(BaseModel):
    """A state of the constraint's automaton, and its successors.

    `successors` lists only the states to which the most likely tokens and the one-byte tokens lead. Successors after
    other tokens are missing.
    """

    terminal: bool = Field(description="`true`: the output may end in the state.")
    successors: list[ReachableState]
    more_successors: int = Field(description="Number of further states to which these tokens lead.")


class GraphState(BaseModel):
    """State in the graph of the constraint's automaton."""

    state: int
    terminal: bool = Field(description="`true`: the output may end in this state.")


class GraphEdge(BaseModel):
    """Edge in the graph of the constraint's automaton: the tokens that lead from state `source` to state `target`."""

    source: int
    target: int
    tokens: list[NamedToken] = Field(description="Some of the tokens of this edge, one-byte tokens first.")
    more_tokens: int = Field(description="Number of other tokens of this edge.")


class AutomatonGraph(BaseModel):
    """Whole graph of the constraint's automaton.

    The initial state is the first of `states`. Edges have no end tokens (tokens that end the output).
    """

    states: list[GraphState]
    edges: list[GraphEdge]


class StepDiagnostics(BaseModel):
    """Effect of the constraint's mask on the choice of one generated token."""

    token: str
    state: int | None = Field(
        description="Number of the automaton's state before the token. Replicas number states differently."
    )
    drafted: bool = Field(description="`true`: the token is an accepted draft.")
    rolled_back: int = Field(
        description="Number of tokens that were rolled back at this position because of a banned word."
    )
    forced: bool = Field(description="`true`: no other token was allowed.")
    allowed: int | None = Field(description="Number of allowed tokens. `null`: the request has no constraint.")
    rejection_mass: float = Field(description="Probability that the model gave to disallowed tokens.")
    raw_choices: list[LikelyToken] = Field(description="The likeliest tokens before the mask.")
    masked_choices: list[LikelyToken] = Field(description="The likeliest tokens after the mask.")
    automaton: Surroundings | None = Field(
        None,
        description="Part of the automaton around the state, if the request "
        "has a constraint and the engine can compute this part.",
    )
    graph: AutomatonGraph | None = Field(
        None, description="Whole automaton, if it is small. Only steps in the initial state have this field."
    )


def chat_logprobs(reports: list[Report]) -> dict[str, Any]:
    """Return the log-probabilities of tokens in the format of `/v1/chat/completions`.

    Args:
        reports: One dict per token, in output order, as a model replica sends it. Keys: `text`, `bytes`, `logprob`,
            optionally `raw_logprob`, and `top`. The value of `top` lists the most likely tokens: dicts with these keys
            except `top`.

    Returns:
        The fields of `ChatLogprobs` as JSON data.
    """
    content = [{**_token(report), "top_logprobs": [_token(one) for one in report["top"]]} for report in reports]
    return {"content": content, "refusal": None}


class TextOffsets:
    """Converter of token reports to the log-probabilities of one choice of `/v1/completions`.

    The object counts the characters of the output over all calls, so each choice (output) needs its own object.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._characters = 0

    def logprobs(self, reports: list[Report]) -> dict[str, Any]:
        """Return the log-probabilities of the next tokens in the format of `/v1/completions`.

        Args:
            reports: One dict per token, in output order, as a model replica sends it. Keys: `text`, `bytes`, `logprob`,
                optionally `raw_logprob`, and `top`. The value of `top` lists the most likely tokens: dicts with these
                keys except `top`.

        Returns:
            The fields of `TextLogprobs` as JSON data.
        """
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
    """Return the diagnostics of generated tokens: the effect of the constraint's mask on the choice of each token.

    Args:
        reports: One dict per token, in output order, as a model replica sends it. Keys: `text` and `diagnostics`. A
            dict without `diagnostics` is skipped.

    Returns:
        The fields of `StepDiagnostics` as JSON data, one dict per token that has diagnostics.
    """
    return [{"token": report["text"], **report["diagnostics"]} for report in reports if "diagnostics" in report]


def _token(named: dict[str, Any]) -> dict[str, Any]:
    token = {"token": named["text"], "logprob": named["logprob"], "bytes": named["bytes"]}
    return {**token, "raw_logprob": named["raw_logprob"]} if "raw_logprob" in named else token
