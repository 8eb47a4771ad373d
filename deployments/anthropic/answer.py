"""Response of `POST /v1/messages`, complete or as a stream of server-sent events.

A stream has the events below, in this order. Braces enclose the events of one content block, and three dots mark a
repetition. A complete response is assembled from the same events.

    message_start, {content_block_start, content_block_delta..., content_block_stop}..., message_delta, message_stop
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Any, Literal

from pydantic import BaseModel

from deployments.chat.tool_bodies import arguments_in
from deployments.chat.tool_calls import Delta
from deployments.event_stream import block, ended, named_blocks
from deployments.openai.completions import Begun, GrammarReport, grammar_report

# Event with `type` and the fields of its type.
Event = dict[str, Any]


class AnswerText(BaseModel):
    """Block of text in the content of a `/v1/messages` response."""

    type: Literal["text"]
    text: str


class AnswerThinking(BaseModel):
    """Block of reasoning in the content of a `/v1/messages` response.

    `thinking` is the text of the reasoning. `signature` is always empty.
    """

    type: Literal["thinking"]
    thinking: str
    signature: str


class AnswerToolUse(BaseModel):
    """Block with one function call in the content of a `/v1/messages` response.

    `name` is the name of the called function. `input` has the arguments, which match the function's schema. With
    `stop_reason: max_tokens`, the arguments of the last call may be incomplete. A later `tool_result` block refers to
    the call by its `id`.
    """

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class MessageUsage(BaseModel):
    """Token counts of one `/v1/messages` response. `output_tokens` includes the tokens of the reasoning."""

    input_tokens: int
    output_tokens: int


class MessageAnswer(BaseModel):
    """Complete response (not a stream) of `POST /v1/messages`.

    `content` has the blocks of the output in their order. `stop_reason: max_tokens` means that the output is truncated,
    and need not match the constraint. `stop_sequence` is the stop sequence that ended the output, or null. `grammar`
    reports on the constraint. It is absent if the request has no constraint.
    """

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
    """Response of `POST /v1/messages/count_tokens`. `input_tokens` is the number of tokens of the prompt."""

    input_tokens: int


class MessagesAnswer:
    """Converts a generation (running output of a model) to the response of `POST /v1/messages`.

    A generation can be read only once: call one of `whole`, `blocks` and `events`, and only once. The caller must close
    the generation.

    Args:
        begun: The running generation, with exactly one choice (output) and a new parser. The message gets the id
            `msg_<request_id>`.
    """

    def __init__(self, begun: Begun) -> None:
        self._begun = begun
        (self._reader,) = begun.readers
        self._grammar = grammar_report(begun)
        self._blocks: list[dict[str, Any]] = []
        self._call: dict[str, str] = {}
        self._input = ""
        self._open = False
        self._tokens = 0
        self._stop: dict[str, Any] = {"stop_reason": None, "stop_sequence": None}

    async def whole(self) -> dict[str, Any]:
        """Wait until the generation has ended, and return the response body for a request without `stream`.

        `ApiError` is raised if the generation fails.

        Returns:
            The fields of `MessageAnswer` as JSON data.
        """
        async with aclosing(self.events()) as events:
            async for _ in events:
                pass
        return {**self._message(), "content": self._blocks, **self._stop, **self._grammar}

    def blocks(self) -> AsyncGenerator[bytes, None]:
        """Return the response as encoded server-sent events, for a request with `stream`.

        If the generation fails, no exception is raised. The last event is then an `error` event.

        Returns:
            Iterator of encoded events. Each item is one event and ends in a blank line.
        """
        return ended(
            named_blocks(self.events()),
            self._begun.request_id,
            lambda error: block(error.anthropic_body(self._begun.request_id), "error"),
        )

    async def events(self) -> AsyncGenerator[Event, None]:
        """Yield the events of the response while the model generates the output.

        `ApiError` is raised if the generation fails.

        Yields:
            Events as JSON data, from `message_start` to `message_stop`. The docstring of the module shows their order.
        """
        message = {**self._message(), "content": [], **self._stop}
        yield {"type": "message_start", "message": message}
        last: dict[str, Any] = {}
        async with aclosing(aiter(self._begun.generation)) as outputs:
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
        yield {"type": "message_delta", "delta": dict(self._stop), "usage": self._usage(), **self._grammar}
        yield {"type": "message_stop"}

    def _reason(self, last: dict[str, Any]) -> str:
        if last.get("finish_reason") != "stop":
            return "max_tokens"
        if self._reader.called:
            return "tool_use"
        return "end_turn" if last.get("stop_string") is None else "stop_sequence"

    # -- blocks ------------------------------------------------------------------------------------------------------

    def _told(self, delta: Delta) -> Iterator[Event]:
        """Yield the events for a delta of `OutputParser`."""
        if "content" in delta:
            yield from self._opened("text", text="")
            self._blocks[-1]["text"] += delta["content"]
            yield self._delta({"type": "text_delta", "text": delta["content"]})
        elif "reasoning_content" in delta:
            yield from self._opened("thinking", thinking="", signature="")
            self._blocks[-1]["thinking"] += delta["reasoning_content"]
            yield self._delta({"type": "thinking_delta", "thinking": delta["reasoning_content"]})
        else:
            (call,) = delta["tool_calls"]
            function = call["function"]
            if "id" in call:
                yield from self._closed()
                self._call, self._input = {"id": call["id"], "name": function["name"]}, ""
            if function["arguments"]:
                # The block starts with the arguments. A call that is truncated before them would look complete.
                yield from self._opened("tool_use", **self._call, input={})
                self._input += function["arguments"]
                yield self._delta({"type": "input_json_delta", "partial_json": function["arguments"]})

    def _opened(self, kind: str, **fields: Any) -> Iterator[Event]:
        """Yield the start of a block, unless a block of this type is open."""
        if self._open and self._blocks[-1]["type"] == kind:
            return
        yield from self._closed()
        self._open = True
        self._blocks.append({"type": kind, **fields})
        yield {"type": "content_block_start", "index": len(self._blocks) - 1, "content_block": dict(self._blocks[-1])}

    def _closed(self) -> Iterator[Event]:
        """Yield the end of the last block, if it is open."""
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
            "id": f"msg_{self._begun.request_id}",
            "type": "message",
            "role": "assistant",
            "model": self._begun.model,
            "usage": self._usage(),
        }

    def _usage(self) -> dict[str, int]:
        return {"input_tokens": self._begun.generation.first[0]["prompt_tokens"], "output_tokens": self._tokens}
