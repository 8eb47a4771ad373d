"""The answers of the two completion endpoints, whole or as server-sent events, in OpenAI's format.

A stream is `data: <chunk>` blocks: text as it comes, a last chunk with the finish reason, one with the token counts if
asked for, then `data: [DONE]`. An error after the first byte is one more block with the usual error body.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Literal

from pydantic import BaseModel

from deployments.errors import ApiError
from deployments.generation import Generation

logger = logging.getLogger("ray.serve")


class Usage(BaseModel):
    """Token counts of one answer."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class GrammarReport(BaseModel):
    """The constraint that applied: its key, where its automaton was found, and what the compiler ignored."""

    key: str
    source: Literal["process", "file", "redis", "compiled"]
    notes: list[str]


class AnswerMessage(BaseModel):
    """The assistant's turn."""

    role: Literal["assistant"]
    content: str


class ChatChoice(BaseModel):
    """One answer to a conversation. `length` means cut: such text need not match the constraint."""

    index: int
    message: AnswerMessage
    finish_reason: Literal["stop", "length"]


class TextChoice(BaseModel):
    """One continuation of a prompt. `length` means cut: such text need not match the constraint."""

    index: int
    text: str
    finish_reason: Literal["stop", "length"]


class ChatCompletion(BaseModel):
    """Answer of `POST /v1/chat/completions`."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    grammar: GrammarReport | None = None


class TextCompletion(BaseModel):
    """Answer of `POST /v1/completions`."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage
    grammar: GrammarReport | None = None


class Answer:
    """Formats one generation. `chat` chooses between the shapes of the two endpoints."""

    def __init__(self, generation: Generation, *, request_id: str, model: str, chat: bool) -> None:
        self._generation = generation
        self._chat = chat
        self._prompt_tokens = generation.first["prompt_tokens"]
        self._completion_tokens = 0
        self._head = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{request_id}",
            "object": "chat.completion" if chat else "text_completion",
            "created": int(time.time()),
            "model": model,
        }

    async def whole(self) -> dict[str, Any]:
        """The body of an answer that is not streamed; data of `ChatCompletion` or `TextCompletion`."""
        async with aclosing(self._pieces()) as pieces:
            received = [piece async for piece in pieces]
        content, finish_reason = "".join(text for text, _ in received), received[-1][1]
        part = {"message": {"role": "assistant", "content": content}} if self._chat else {"text": content}
        choice = {"index": 0, **part, "logprobs": None, "finish_reason": finish_reason}
        return {**self._head, "choices": [choice], "usage": self._usage(), **self._grammar()}

    async def blocks(self, *, include_usage: bool) -> AsyncGenerator[bytes, None]:
        """The blocks of a server-sent event stream, each ending in a blank line."""
        head: dict[str, Any] = {**self._head, "object": "chat.completion.chunk" if self._chat else "text_completion"}
        if include_usage:
            head["usage"] = None
        grammar = self._grammar()
        try:
            if self._chat:
                yield _block({**head, "choices": [self._delta({"role": "assistant", "content": ""}, None)], **grammar})
                grammar = {}
            async with aclosing(self._pieces()) as pieces:
                async for piece, finish_reason in pieces:
                    if piece or finish_reason is not None:
                        delta = self._delta({"content": piece} if piece else {}, finish_reason, text=piece)
                        yield _block({**head, "choices": [delta], **grammar})
                        grammar = {}
            if include_usage:
                yield _block({**head, "choices": [], "usage": self._usage()})
        except ApiError as error:
            yield _block(error.body())
        except Exception:
            logger.exception("stream %s failed", self._head["id"])
            yield _block(ApiError.internal().body())
        yield b"data: [DONE]\n\n"

    async def _pieces(self) -> AsyncGenerator[tuple[str, str | None], None]:
        """Text and finish reason of each event. Leaving early, whatever the reason, stops the replica."""
        try:
            async for event in self._generation:
                self._completion_tokens += len(event["token_ids"])
                yield event["text"], event["finish_reason"]
        finally:
            await self._generation.aclose()

    def _delta(self, delta: dict[str, str], finish_reason: str | None, *, text: str = "") -> dict[str, Any]:
        part = {"delta": delta} if self._chat else {"text": text}
        return {"index": 0, **part, "logprobs": None, "finish_reason": finish_reason}

    def _usage(self) -> dict[str, int]:
        return {
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": self._completion_tokens,
            "total_tokens": self._prompt_tokens + self._completion_tokens,
        }

    def _grammar(self) -> dict[str, Any]:
        grammar = self._generation.grammar
        if grammar is None:
            return {}
        return {"grammar": {"key": grammar.key, "source": grammar.source, "notes": grammar.notes}}


def _block(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"
