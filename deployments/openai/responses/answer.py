"""Response of `POST /v1/responses`, complete or as a stream of server-sent events.

A stream has the events below, in this order. The last event contains the complete response, which is also the response
without a stream. Braces enclose the events of one item or part of the output, and three dots mark a repetition. The
names are abbreviated: `created` is `response.created`.

    created, in_progress, {item added, {part added, delta..., done}, item done}..., completed | incomplete | failed
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Any, Literal

from pydantic import BaseModel

from deployments.chat.tool_calls import Delta
from deployments.event_stream import block, ended, named_blocks
from deployments.http.errors import ApiError
from deployments.openai.completions import Begun, GrammarReport, grammar_report
from deployments.openai.logprobs import ChatTokenLogprob, chat_logprobs
from deployments.openai.responses.body import ResponsesBody
from deployments.openai.responses.items import Status

# Type of an item -> field that has the input of the call.
_CALLS = {"function_call": "arguments", "custom_tool_call": "input"}

# Event with `type`, `sequence_number`, and the fields of its type.
Event = dict[str, Any]


class OutputText(BaseModel):
    """Text of a message in a response.

    `annotations` is always empty. `logprobs` is empty unless the request asks for log-probabilities.
    """

    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[ChatTokenLogprob]


class _Item(BaseModel):
    id: str
    status: Status


class MessageItem(_Item):
    """Message of the assistant in the `output` of a response."""

    type: Literal["message"]
    role: Literal["assistant"]
    content: list[OutputText]


class CallItem(_Item):
    """Function call in a response.

    `arguments` is JSON text that is valid under the function's schema, unless the response is truncated.
    """

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str


class CustomCallItem(_Item):
    """Call of a custom tool (tool that takes text instead of JSON arguments) in a response.

    `input` is text that matches the constraint of the tool, unless the response is truncated.
    """

    type: Literal["custom_tool_call"]
    call_id: str
    name: str
    input: str


class ThoughtText(BaseModel):
    """Text of the model's reasoning in a response."""

    type: Literal["reasoning_text"]
    text: str


class ReasoningItem(_Item):
    """Reasoning of the model in the `output` of a response. `summary` is always empty."""

    type: Literal["reasoning"]
    summary: list[Any]
    content: list[ThoughtText]


class InputDetails(BaseModel):
    """Details about the input tokens of a response. `cached_tokens` and `cache_write_tokens` are always 0."""

    cached_tokens: int
    cache_write_tokens: int


class OutputDetails(BaseModel):
    """Details about the output tokens of a response.

    `reasoning_tokens` may be slightly too high: it also counts the tokens of the answer that arrive in one batch with
    the end of the reasoning.
    """

    reasoning_tokens: int


class ResponseUsage(BaseModel):
    """Token counts of one response: tokens of the input, tokens of the output, and the sum of both."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class Incomplete(BaseModel):
    """Reason why a response is incomplete. An incomplete response need not match the constraint."""

    reason: Literal["max_output_tokens"]


class Failure(BaseModel):
    """Error that ended a stream after its first event. OpenAI's API defines the possible values of `code`."""

    code: Literal["server_error", "rate_limit_exceeded", "invalid_prompt"]
    message: str


class Response(BaseModel):
    """Response of `POST /v1/responses`. It repeats the settings of the request.

    `output` is the list of output items in the order of generation. `grammar` reports on the constraint. It is absent
    if the request has no constraint.
    """

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
    """Converts a generation (running output of a model) to the response of `POST /v1/responses`.

    A generation can be read only once: call one of `whole`, `blocks` and `events`, and only once. The caller must close
    the generation.

    Args:
        body: The request. The response repeats its settings.
        begun: The running generation, with exactly one choice (output) and a new parser. The id of the request becomes
            the id of the response.
    """

    def __init__(self, body: ResponsesBody, begun: Begun) -> None:
        self._body = body
        self._begun = begun
        (self._reader,) = begun.readers
        self._id = begun.request_id
        self._created = int(time.time())
        self._numbers = 0
        self._items: list[dict[str, Any]] = []
        self._tokens = self._thought_tokens = 0
        self._logprobs: list[dict[str, Any]] = []  # of tokens whose text has not been sent

    async def whole(self) -> dict[str, Any]:
        """Wait until the generation has ended, and return the response body for a request without `stream`.

        `ApiError` is raised if the generation fails.

        Returns:
            The fields of `Response` as JSON data.
        """
        last: Event = {}
        async with aclosing(self.events()) as events:
            async for event in events:
                last = event
        return dict(last["response"])

    def blocks(self) -> AsyncGenerator[bytes, None]:
        """Return the response as encoded server-sent events, for a request with `stream`.

        If the generation fails, no exception is raised. The last event is then `response.failed`.

        Returns:
            Iterator of encoded events. Each item is one event and ends in a blank line.
        """
        return ended(named_blocks(self.events()), self._id, self._failed)

    async def events(self) -> AsyncGenerator[Event, None]:
        """Yield the events of the response while the model generates the output.

        `ApiError` is raised if the generation fails.

        Yields:
            Events as JSON data. The first event is `response.created`. The last event is `response.completed` or
            `response.incomplete`. The docstring of the module shows their order.
        """
        yield self._event("response.created", response=self._response("in_progress"))
        yield self._event("response.in_progress", response=self._response("in_progress"))
        reason = None
        async with aclosing(aiter(self._begun.generation)) as outputs:
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
        """Yield the events for a delta of `OutputParser`."""
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
        """Yield the events that end the last item, if it is open."""
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
        """Return the block that ends a stream after an error."""
        code = "rate_limit_exceeded" if error.status == 429 else "server_error"
        if error.status == 400:
            code = "invalid_prompt"
        failure = {"code": code, "message": error.detail.message}
        response = {**self._response("failed"), "error": failure}
        return block(self._event("response.failed", response=response), "response.failed")

    def _response(self, status: str) -> dict[str, Any]:
        """Return data of `Response` in the current state."""
        body = self._body
        prompt_tokens = self._begun.generation.first[0]["prompt_tokens"]
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
            "model": self._begun.model,
            "output": [_copy(item) for item in self._items] if status != "in_progress" else [],
            "usage": None if status == "in_progress" else usage,
            **grammar_report(self._begun),
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
    """Return a copy of an item in its current state."""
    return {**item, "content": [dict(part) for part in item["content"]]} if "content" in item else dict(item)
