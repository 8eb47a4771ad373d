"""Log-probabilities and diagnostics of an answer's tokens, in the shapes of the two completion endpoints."""

from __future__ import annotations

import codecs
from typing import Any

from pydantic import BaseModel

Report = dict[str, Any]
"""What a replica tells about one token (`gpu_workers.logprobs.TokenNames.describe`)."""


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
