"""The answer of `POST /v1/responses`, whole or as server-sent events.

Both are one sequence of events: the whole answer is the response that the last one carries.

    created, in_progress, {item added, {part added, delta..., done}, item done}..., completed | incomplete | failed
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Any, Literal

from pydantic import BaseModel

from deployments.chat.output_parser import OutputParser
from deployments.chat.tool_calls import Delta
from deployments.http.errors import ApiError
from deployments.http.event_stream import block, ended, named_blocks
from deployments.openai.completions import GrammarReport, grammar_report
from deployments.openai.logprobs import ChatTokenLogprob, chat_logprobs
from deployments.openai.responses.body import ResponsesBody
from deployments.openai.responses.items import Status
from deployments.routing.tiers import Generation

_CALLS = {"function_call": "arguments", "custom_tool_call": "input"}
"""Type of an item -> the field that holds the input of the call."""

Event = dict[str, Any]
"""`type`, `sequence_number` and what belongs to the type."""


class OutputText(BaseModel):
    """The text of a message; `annotations` is always empty, and `logprobs` where none are asked for."""

    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[ChatTokenLogprob]


class _Item(BaseModel):
    id: str
    status: Status


class MessageItem(_Item):
    """What the assistant says."""

    type: Literal["message"]
    role: Literal["assistant"]
    content: list[OutputText]


class CallItem(_Item):
    """A call; `arguments` is JSON text that matches its schema unless the answer was cut."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str


class CustomCallItem(_Item):
    """A call of a custom tool; `input` matches its grammar unless the answer was cut."""

    type: Literal["custom_tool_call"]
    call_id: str
    name: str
    input: str


class ThoughtText(BaseModel):
    """A piece of thoughts."""

    type: Literal["reasoning_text"]
    text: str


class ReasoningItem(_Item):
    """What the model thought."""

    type: Literal["reasoning"]
    summary: list[Any]
    content: list[ThoughtText]


class InputDetails(BaseModel):
    """Nothing is counted here yet."""

    cached_tokens: int
    cache_write_tokens: int


class OutputDetails(BaseModel):
    """`reasoning_tokens` counts in the pieces in which tokens arrive: up to the one that ends the thoughts."""

    reasoning_tokens: int


class ResponseUsage(BaseModel):
    """Token counts."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class Incomplete(BaseModel):
    """Why an answer is not complete: such text need not match the constraint."""

    reason: Literal["max_output_tokens"]


class Failure(BaseModel):
    """A fault after the first event of a stream; OpenAI has no other codes for it."""

    code: Literal["server_error", "rate_limit_exceeded", "invalid_prompt"]
    message: str


class Response(BaseModel):
    """Answer of `POST /v1/responses`; it repeats the request's settings."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    error: Failure | None
    incomplete_details: Incomplete | None
    model: str
    output: list[MessageItem | CallItem | CustomCallItem | ReasoningItem]
    usage: ResponseUsage | None
    grammar: GrammarReport | None = None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    previous_response_id: None
    reasoning: dict[str, Any]
    store: Literal[False]
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int | None = None
    top_p: float
    truncation: Literal["auto", "disabled"]
    user: str | None


class ResponsesAnswer:
    """Formats one generation, which its caller closes. Iterate `events` once."""

    def __init__(
        self, body: ResponsesBody, generation: Generation, reader: OutputParser, *, request_id: str, model: str
    ) -> None:
        self._body = body
        self._generation = generation
        self._reader = reader
        self._id = request_id
        self._model = model
        self._created = int(time.time())
        self._numbers = 0
        self._items: list[dict[str, Any]] = []
        self._tokens = self._thought_tokens = 0
        self._logprobs: list[dict[str, Any]] = []  # of tokens whose text has not been sent

    async def whole(self) -> dict[str, Any]:
        """The body of an answer that is not streamed; data of `Response`. Raises `ApiError`."""
        last: Event = {}
        async with aclosing(self.events()) as events:
            async for event in events:
                last = event
        return dict(last["response"])

    def blocks(self) -> AsyncGenerator[bytes, None]:
        """The blocks of a server-sent event stream, each ending in a blank line."""
        return ended(named_blocks(self.events()), self._id, self._failed)

    async def events(self) -> AsyncGenerator[Event, None]:
        """The events in their order. Raises `ApiError`."""
        yield self._event("response.created", response=self._response("in_progress"))
        yield self._event("response.in_progress", response=self._response("in_progress"))
        reason = None
        async with aclosing(aiter(self._generation)) as outputs:
            async for output in outputs:
                self._tokens += len(output["token_ids"])
                if self._thinks:
                    self._thought_tokens = self._tokens
                else:
                    self._logprobs += chat_logprobs(output.get("reports", []))["content"]
                reason = output["finish_reason"]
                for delta in self._reader.read(output["text"], reason):
                    for event in self._told(delta):
                        yield event
        status: Literal["completed", "incomplete"] = "completed" if reason == "stop" else "incomplete"
        for event in self._closed(status):
            yield event
        yield self._event(f"response.{status}", response=self._response(status))

    # -- items -------------------------------------------------------------------------------------------------------

    @property
    def _thinks(self) -> bool:
        thoughts = self._reader.thoughts
        return thoughts is not None and thoughts.answer_at is None

    def _told(self, delta: Delta) -> Iterator[Event]:
        """What a stream says about a delta (`OutputParser`)."""
        if "content" in delta:
            yield from self._more_text("message", "output_text", delta["content"])
        elif "reasoning_content" in delta:
            yield from self._more_text("reasoning", "reasoning_text", delta["reasoning_content"])
        else:
            (call,) = delta["tool_calls"]
            yield from self._more_of_call(call)

    def _more_of_call(self, call: dict[str, Any]) -> Iterator[Event]:
        kind, prefix = ("custom_tool_call", "ctc") if "custom" in call else ("function_call", "fc")
        called, field = call.get("custom") or call["function"], _CALLS[kind]
        if "id" in call:
            yield from self._closed("completed")
            self._logprobs.clear()
            yield from self._opened(kind, prefix, call_id=call["id"], name=called["name"], **{field: ""})
        if called[field]:
            self._items[-1][field] += called[field]
            yield self._item_event(f"response.{kind}_{field}.delta", delta=called[field])

    def _more_text(self, kind: str, part: str, text: str) -> Iterator[Event]:
        if not self._items or self._items[-1]["type"] != kind:
            yield from self._closed("completed")
            if kind == "message":
                yield from self._opened(kind, "msg", role="assistant", content=[])
                begun: dict[str, Any] = {"type": part, "text": "", "annotations": [], "logprobs": []}
            else:
                yield from self._opened(kind, "rs", summary=[], content=[])
                begun = {"type": part, "text": ""}
            yield self._item_event("response.content_part.added", content_index=0, part=begun)
            self._items[-1]["content"].append(dict(begun))
        self._items[-1]["content"][0]["text"] += text
        logprobs: dict[str, Any] = {}
        if part == "output_text":
            logprobs, self._logprobs = {"logprobs": self._logprobs}, []
            self._items[-1]["content"][0]["logprobs"] = self._items[-1]["content"][0]["logprobs"] + logprobs["logprobs"]
        yield self._item_event(f"response.{part}.delta", content_index=0, delta=text, **logprobs)

    def _opened(self, kind: str, prefix: str, **fields: Any) -> Iterator[Event]:
        item = {"type": kind, "id": f"{prefix}_{self._id}_{len(self._items)}", "status": "in_progress", **fields}
        self._items.append(item)
        yield self._event("response.output_item.added", output_index=len(self._items) - 1, item=_copy(item))

    def _closed(self, status: Status) -> Iterator[Event]:
        """The end of the last item, where it has not ended yet."""
        if not self._items or self._items[-1]["status"] != "in_progress":
            return
        item = self._items[-1]
        item["status"] = status
        if (field := _CALLS.get(item["type"])) is not None:
            named = {"name": item["name"]} if field == "arguments" else {}
            yield self._item_event(f"response.{item['type']}_{field}.done", **named, **{field: item[field]})
        else:
            part = item["content"][0]
            logprobs = {"logprobs": part["logprobs"]} if part["type"] == "output_text" else {}
            done = f"response.{part['type']}.done"
            yield self._item_event(done, content_index=0, text=part["text"], **logprobs)
            yield self._item_event("response.content_part.done", content_index=0, part=dict(part))
        yield self._event("response.output_item.done", output_index=len(self._items) - 1, item=_copy(item))

    # -- events ------------------------------------------------------------------------------------------------------

    def _item_event(self, kind: str, **fields: Any) -> Event:
        return self._event(kind, item_id=self._items[-1]["id"], output_index=len(self._items) - 1, **fields)

    def _event(self, kind: str, **fields: Any) -> Event:
        self._numbers += 1
        return {"type": kind, "sequence_number": self._numbers - 1, **fields}

    def _failed(self, error: ApiError) -> bytes:
        """The block that ends a stream after a fault."""
        code = "rate_limit_exceeded" if error.status == 429 else "server_error"
        if error.status == 400:
            code = "invalid_prompt"
        failure = {"code": code, "message": error.detail.message}
        response = {**self._response("failed"), "error": failure}
        return block(self._event("response.failed", response=response), "response.failed")

    def _response(self, status: str) -> dict[str, Any]:
        """Data of `Response`, as far as it is known now."""
        body, generation = self._body, self._generation
        prompt_tokens = generation.first[0]["prompt_tokens"]
        usage = {
            "input_tokens": prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": self._tokens,
            "output_tokens_details": {"reasoning_tokens": self._thought_tokens},
            "total_tokens": prompt_tokens + self._tokens,
        }
        told = body.model_dump(mode="json", by_alias=True, exclude_none=True, include={"text", "tools", "reasoning"})
        chosen = body.tool_choice or "auto"
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "model": self._model,
            "output": [_copy(item) for item in self._items] if status != "in_progress" else [],
            "usage": None if status == "in_progress" else usage,
            **grammar_report(generation, [self._reader]),
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": told.get("reasoning", {}),
            "store": False,
            "temperature": 1.0 if body.temperature is None else body.temperature,
            "text": {"format": {"type": "text"}, **told.get("text", {})},
            "tool_choice": chosen if isinstance(chosen, str) else chosen.model_dump(),
            "tools": told.get("tools", []),
            **({"top_logprobs": body.top_logprobs or 0} if body.logprobs else {}),
            "top_p": 1.0 if body.top_p is None else body.top_p,
            "truncation": body.truncation or "disabled",
            "user": body.user,
        }


def _copy(item: dict[str, Any]) -> dict[str, Any]:
    """An item as it is now."""
    return {**item, "content": [dict(part) for part in item["content"]]} if "content" in item else dict(item)
