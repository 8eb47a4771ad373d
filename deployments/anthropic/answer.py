"""The answer of `POST /v1/messages`, whole or as server-sent events.

Both are one sequence of events: the whole answer is what they add up to.

    message_start, {content_block_start, content_block_delta..., content_block_stop}..., message_delta, message_stop
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Any, Literal

from pydantic import BaseModel

from deployments.chat.output_parser import OutputParser
from deployments.chat.tool_calls import Delta
from deployments.http.event_stream import block, ended, named_blocks
from deployments.openai.completions import GrammarReport, grammar_report
from deployments.openai.tool_bodies import arguments_in
from deployments.routing.tiers import Generation

Event = dict[str, Any]
"""`type` and what belongs to the type."""


class AnswerText(BaseModel):
    """Text."""

    type: Literal["text"]
    text: str


class AnswerThinking(BaseModel):
    """What the model thought; `signature` is always empty."""

    type: Literal["thinking"]
    thinking: str
    signature: str


class AnswerToolUse(BaseModel):
    """A call. Its input matches the function's schema; with `stop_reason: max_tokens` it may be incomplete."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class MessageUsage(BaseModel):
    """Token counts."""

    input_tokens: int
    output_tokens: int


class MessageAnswer(BaseModel):
    """Answer of `POST /v1/messages`. With `stop_reason: max_tokens` the text need not match the constraint."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[AnswerText | AnswerThinking | AnswerToolUse]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
    stop_sequence: str | None
    usage: MessageUsage
    grammar: GrammarReport | None = None


class TokenCount(BaseModel):
    """Answer of `POST /v1/messages/count_tokens`."""

    input_tokens: int


class MessagesAnswer:
    """Formats one generation, which its caller closes. Iterate `events` once."""

    def __init__(self, generation: Generation, reader: OutputParser, *, request_id: str, model: str) -> None:
        self._generation = generation
        self._reader = reader
        self._request_id = request_id
        self._model = model
        self._blocks: list[dict[str, Any]] = []
        self._call: dict[str, str] = {}
        self._input = ""
        self._open = False
        self._tokens = 0
        self._stop: dict[str, Any] = {"stop_reason": None, "stop_sequence": None}

    async def whole(self) -> dict[str, Any]:
        """The body of an answer that is not streamed; data of `MessageAnswer`. Raises `ApiError`."""
        async with aclosing(self.events()) as events:
            async for _ in events:
                pass
        report = grammar_report(self._generation, [self._reader])
        return {**self._message(), "content": self._blocks, **self._stop, **report}

    def blocks(self) -> AsyncGenerator[bytes, None]:
        """The blocks of a server-sent event stream, each ending in a blank line."""
        return ended(
            named_blocks(self.events()),
            self._request_id,
            lambda error: block(error.anthropic_body(self._request_id), "error"),
        )

    async def events(self) -> AsyncGenerator[Event, None]:
        """The events in their order. Raises `ApiError`."""
        message = {**self._message(), "content": [], **self._stop}
        yield {"type": "message_start", "message": message}
        last: dict[str, Any] = {}
        async with aclosing(aiter(self._generation)) as outputs:
            async for last in outputs:
                self._tokens += len(last["token_ids"])
                for delta in self._reader.read(last["text"], last["finish_reason"]):
                    for event in self._told(delta):
                        yield event
        for event in self._closed():
            yield event
        reason = self._reason(last)
        stop_string = last["stop_string"] if reason == "stop_sequence" else None
        self._stop = {"stop_reason": reason, "stop_sequence": stop_string}
        report = grammar_report(self._generation, [self._reader])
        yield {"type": "message_delta", "delta": dict(self._stop), "usage": self._usage(), **report}
        yield {"type": "message_stop"}

    def _reason(self, last: dict[str, Any]) -> str:
        if last.get("finish_reason") != "stop":
            return "max_tokens"
        if self._reader.called:
            return "tool_use"
        return "end_turn" if last.get("stop_string") is None else "stop_sequence"

    # -- blocks ------------------------------------------------------------------------------------------------------

    def _told(self, delta: Delta) -> Iterator[Event]:
        """What a stream says about a delta (`OutputParser`)."""
        if "content" in delta:
            yield from self._begun("text", text="")
            self._blocks[-1]["text"] += delta["content"]
            yield self._delta({"type": "text_delta", "text": delta["content"]})
        elif "reasoning_content" in delta:
            yield from self._begun("thinking", thinking="", signature="")
            self._blocks[-1]["thinking"] += delta["reasoning_content"]
            yield self._delta({"type": "thinking_delta", "thinking": delta["reasoning_content"]})
        else:
            (call,) = delta["tool_calls"]
            function = call["function"]
            if "id" in call:
                yield from self._closed()
                self._call, self._input = {"id": call["id"], "name": function["name"]}, ""
            if function["arguments"]:
                # Not before its arguments: one that is cut there would look like a call without any.
                yield from self._begun("tool_use", **self._call, input={})
                self._input += function["arguments"]
                yield self._delta({"type": "input_json_delta", "partial_json": function["arguments"]})

    def _begun(self, kind: str, **fields: Any) -> Iterator[Event]:
        """The start of a block, where the last one is of another kind."""
        if self._open and self._blocks[-1]["type"] == kind:
            return
        yield from self._closed()
        self._open = True
        self._blocks.append({"type": kind, **fields})
        yield {"type": "content_block_start", "index": len(self._blocks) - 1, "content_block": dict(self._blocks[-1])}

    def _closed(self) -> Iterator[Event]:
        """The end of the last block, where it has not ended yet."""
        if not self._open:
            return
        self._open = False
        last = self._blocks[-1]
        if last["type"] == "tool_use":
            last["input"] = arguments_in(self._input)
        elif last["type"] == "thinking":
            yield self._delta({"type": "signature_delta", "signature": ""})
        yield {"type": "content_block_stop", "index": len(self._blocks) - 1}

    def _delta(self, delta: dict[str, Any]) -> Event:
        return {"type": "content_block_delta", "index": len(self._blocks) - 1, "delta": delta}

    # -- the message -------------------------------------------------------------------------------------------------

    def _message(self) -> dict[str, Any]:
        return {
            "id": f"msg_{self._request_id}",
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "usage": self._usage(),
        }

    def _usage(self) -> dict[str, int]:
        return {"input_tokens": self._generation.first[0]["prompt_tokens"], "output_tokens": self._tokens}
