"""Responses of `/v1/chat/completions` and `/v1/completions` in OpenAI's format, complete or as server-sent events.

A stream consists of server-sent events `data: CHUNK`. The chunks have the generated text, and the last chunk of each
choice (output) has the finish reason. After them, a chunk with the token counts (if requested) and `data: [DONE]`
follow. If the generation fails after the stream has begun, an event has the error body.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Literal

from pydantic import BaseModel, Field

from deployments.chat.output_parser import OutputParser
from deployments.event_stream import block, ended
from deployments.generation import Event, Generation
from deployments.http.unenforced import Unenforced
from deployments.openai.logprobs import (
    ChatLogprobs,
    StepDiagnostics,
    TextLogprobs,
    TextOffsets,
    chat_logprobs,
    diagnostics,
)
from deployments.openai.protocol import GenerationBody


class Usage(BaseModel):
    """Token counts of one response: tokens of all prompts, tokens of all outputs, and the sum of both."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class GrammarReport(BaseModel):
    """Report on the constraint of a response.

    `key` identifies the compiled grammar. `source` is the cache level in which the server found the grammar (memory of
    a process, file or Redis), or `compiled` if the server has compiled it for this response. `notes` are warnings of
    the compiler, such as ignored keywords. `unenforced` lists the keywords of a JSON Schema that are not enforced (with
    `on_unsupported: report`). `applies_to` is the part of the output that must match: `output` (the whole output) or
    `answer` (the text after the reasoning).
    """

    key: str
    source: Literal["process", "file", "redis", "compiled"]
    notes: list[str]
    unenforced: list[Unenforced]
    applies_to: Literal["output", "answer"]


class ConditionalEstimate(BaseModel):
    """Estimate of the probability of a valid output, for one choice of a request with `conditional_sampling`.

    Conditional sampling generates several outputs (*particles*) in parallel for each choice. `usage` counts the tokens
    of all particles.
    """

    valid_logprob: float | None = Field(
        description="Estimated natural logarithm of the probability that the model, without a mask, generates a valid "
        "output within the token limit. `null`: no particle was complete."
    )
    effective_sample_size: float = Field(
        description="Number of particles of equal weight that would give an estimate of the same quality. If it is "
        "close to 1, send more particles."
    )


class AnswerFunction(BaseModel):
    """Name and arguments of a function that the model calls in a response.

    `arguments` is JSON text that matches the function's schema, unless the response is truncated.
    """

    name: str
    arguments: str


class AnswerInput(BaseModel):
    """Name and input of a custom tool (tool that takes text instead of JSON arguments) that the model calls.

    `input` is text that matches the constraint of the tool, unless the response is truncated.
    """

    name: str
    input: str


class AnswerCall(BaseModel):
    """Call of a function or of a custom tool in a response.

    `type` tells which of the fields `function` and `custom` is present. A later message of the role `tool` refers to
    the call by its `id`.
    """

    id: str
    type: Literal["function", "custom"]
    function: AnswerFunction | None = None
    custom: AnswerInput | None = None


class AnswerMessage(BaseModel):
    """Message of the assistant in a response.

    `content` is null if the request has tools and the message has no text. `reasoning_content` is the model's
    reasoning, and is absent if the model does not reason. `tool_calls` is absent if there are no calls.
    """

    role: Literal["assistant"]
    content: str | None
    reasoning_content: str | None = None
    tool_calls: list[AnswerCall] | None = None


class _Choice(BaseModel):
    index: int
    diagnostics: list[StepDiagnostics] | None = None
    conditional_sampling: ConditionalEstimate | None = None


class ChatChoice(_Choice):
    """One output of the model for a conversation.

    `finish_reason: length` means that the output was truncated (by `max_tokens` or by the context length), and need not
    match the constraint. `grammar_start` is present if the constraint applies only to the text after the reasoning. It
    is the number of generated characters before the constrained text, including the reasoning. It is null if the output
    was truncated before the constrained text.
    """

    message: AnswerMessage
    finish_reason: Literal["stop", "length", "tool_calls"]
    grammar_start: int | None = None
    logprobs: ChatLogprobs | None = None


class TextChoice(_Choice):
    """One continuation of a prompt.

    `finish_reason: length` means that the text was truncated, and need not match the constraint. If the request has
    several prompts, the choices are in the order of the prompts.
    """

    text: str
    finish_reason: Literal["stop", "length"]
    logprobs: TextLogprobs | None = None


class _Completion(BaseModel):
    id: str
    created: int
    model: str
    system_fingerprint: str
    usage: Usage
    grammar: GrammarReport | None = None


class ChatCompletion(_Completion):
    """Complete response (not a stream) of `POST /v1/chat/completions`."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]


class TextCompletion(_Completion):
    """Complete response (not a stream) of `POST /v1/completions`."""

    object: Literal["text_completion"]
    choices: list[TextChoice]


@dataclasses.dataclass(frozen=True)
class Begun:
    """Started generation of one request. The owner of this object must close `generation`.

    Attributes:
        request_id: ID of the request, chosen by the client or generated.
        model: Name of the model in the response.
        generation: Running generation of all choices (outputs).
        readers: For a chat, one new parser per choice, which splits the output into reasoning, text and tool calls.
            Empty for a text completion.
    """

    request_id: str
    model: str
    generation: Generation
    readers: list[OutputParser]


class Answer:
    """Converts a generation (running output of a model) to the response of one of the two completion endpoints.

    A generation can be read only once: call either `whole` or `blocks`, and only once. The caller must close the
    generation.

    Args:
        body: The request.
        begun: The running generation, with all choices (outputs) of the response. It has parsers if the endpoint is
            `/v1/chat/completions`.
        system_fingerprint: Text in the response that identifies the versions of model and server.
    """

    def __init__(self, body: GenerationBody, begun: Begun, system_fingerprint: str) -> None:
        self._generation = begun.generation
        self._readers = begun.readers
        self._grammar = grammar_report(begun)
        self._chat = bool(begun.readers)
        self._logprobs = body.top_logprobs_wanted() is not None
        self._include_usage = body.include_usage
        self._choices = len(begun.generation.first)
        self._prompt_tokens = sum(first["prompt_tokens"] for first in begun.generation.first[:: body.choices])
        self._completion_tokens = 0
        self._offsets = [TextOffsets() for _ in range(self._choices)]
        self._head = {
            "id": begun.request_id,
            "object": "chat.completion" if begun.readers else "text_completion",
            "created": int(time.time()),
            "model": begun.model,
            "system_fingerprint": system_fingerprint,
        }

    async def whole(self) -> dict[str, Any]:
        """Wait until the generation has ended, and return the response body for a request without `stream`.

        `ApiError` is raised if the generation fails.

        Returns:
            The fields of `ChatCompletion` or `TextCompletion` as JSON data.
        """
        texts = [""] * self._choices
        reports: list[list[dict[str, Any]]] = [[] for _ in texts]
        reasons: list[str | None] = [None] * self._choices
        estimates: list[dict[str, Any]] = [{} for _ in texts]
        async with aclosing(self._events()) as events:
            async for event in events:
                index = event["index"]
                texts[index] += event["text"]
                reports[index] += event.get("reports", ())
                reasons[index] = event["finish_reason"]
                estimates[index] = _estimate(event)
        choices = []
        for index, (text, reason) in enumerate(zip(texts, reasons, strict=True)):
            part = {"message": self._message(index, text, reason)} if self._chat else {"text": text}
            told = self._told(index, reports[index])
            choices.append({"index": index, **part, **told, **self._end(index, reason), **estimates[index]})
        return {**self._head, "choices": choices, "usage": self._usage(), **self._grammar}

    def blocks(self) -> AsyncGenerator[bytes, None]:
        """Return the response as encoded server-sent events, for a request with `stream`.

        If the generation fails, no exception is raised. An event with the error body is sent before the last event.

        Returns:
            Iterator of encoded events. Each item is one event and ends in a blank line. The last event is
            `data: [DONE]`.
        """
        request_id = str(self._head["id"])
        return ended(self._blocks(), request_id, lambda error: block(error.body()), mark=b"data: [DONE]\n\n")

    async def _blocks(self) -> AsyncGenerator[bytes, None]:
        """Yield all blocks of the stream but the last one. Raise `ApiError`."""
        head: dict[str, Any] = {**self._head, "object": "chat.completion.chunk" if self._chat else "text_completion"}
        if self._include_usage:
            head["usage"] = None
        grammar = self._grammar
        told_again = grammar if grammar and grammar["grammar"]["unenforced"] else {}
        running = self._choices
        for index in range(self._choices if self._chat else 0):
            content = "" if self._readers[index].plain else None
            begin = {"index": index, "delta": {"role": "assistant", "content": content}, "logprobs": None}
            yield block({**head, "choices": [{**begin, "finish_reason": None}], **grammar})
            grammar = {}
        async with aclosing(self._events()) as events:
            async for event in events:
                for choice in self._deltas(event):
                    running -= choice["finish_reason"] is not None
                    if not running:
                        grammar = grammar or told_again
                    yield block({**head, "choices": [choice], **grammar})
                    grammar = {}
        if self._include_usage:
            yield block({**head, "choices": [], "usage": self._usage()})

    async def _events(self) -> AsyncGenerator[Event, None]:
        """Yield the events of the generation, and count their tokens."""
        async with aclosing(aiter(self._generation)) as events:
            async for event in events:
                self._completion_tokens += len(event["token_ids"])
                # Tokens of the other particles count, too, because they cost as much.
                self._completion_tokens += event.get("conditional_sampling", {}).get("other_tokens", 0)
                yield event

    def _deltas(self, event: Event) -> list[dict[str, Any]]:
        """Return the chunks for an event. Only the first one has the reports about its tokens."""
        index, text, reports = event["index"], event["text"], event.get("reports", [])
        if self._chat:
            deltas = self._readers[index].read(text, event["finish_reason"])
            parts: list[dict[str, Any]] = [{"delta": delta} for delta in deltas]
        else:
            parts = [{"text": text}] if text else []
        if not parts and (reports or event["finish_reason"] is not None):
            parts = [{"delta": {}} if self._chat else {"text": ""}]
        choices = []
        for part in parts:
            told = self._told(index, reports) if reports else {"logprobs": None}
            choices.append({"index": index, **part, **told, "finish_reason": None})
            reports = []
        if event["finish_reason"] is not None:
            choices[-1] |= self._end(index, event["finish_reason"])
        return choices

    def _message(self, index: int, text: str, reason: str | None) -> dict[str, Any]:
        reader = self._readers[index]
        content, thoughts, calls = "", "", []
        for delta in reader.read(text, reason):
            content += delta.get("content", "")
            thoughts += delta.get("reasoning_content", "")
            for call in delta.get("tool_calls", ()):
                if "id" in call:
                    calls.append({name: value for name, value in call.items() if name != "index"})
                elif "custom" in call:
                    calls[-1]["custom"]["input"] += call["custom"]["input"]
                else:
                    calls[-1]["function"]["arguments"] += call["function"]["arguments"]
        message: dict[str, Any] = {"role": "assistant", "content": (content or None) if reader.may_call else content}
        if thoughts or reader.thoughts is not None:
            message["reasoning_content"] = thoughts
        return message | {"tool_calls": calls} if calls else message

    def _end(self, index: int, reason: str | None) -> dict[str, Any]:
        """Return the fields that describe the end of a choice. Its text must have been read before."""
        if not self._chat:
            return {"finish_reason": reason}
        reader = self._readers[index]
        end: dict[str, Any] = {"finish_reason": "tool_calls" if reader.called and reason == "stop" else reason}
        if reader.thoughts is not None and self._generation.grammar is not None:
            end["grammar_start"] = reader.thoughts.answer_at
        return end

    def _told(self, index: int, reports: list[dict[str, Any]]) -> dict[str, Any]:
        """Return `logprobs`, and `diagnostics` if requested, of a choice."""
        logprobs = None
        if self._logprobs:
            logprobs = chat_logprobs(reports) if self._chat else self._offsets[index].logprobs(reports)
        steps = diagnostics(reports)
        return {"logprobs": logprobs, **({"diagnostics": steps} if steps else {})}

    def _usage(self) -> dict[str, int]:
        return {
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": self._completion_tokens,
            "total_tokens": self._prompt_tokens + self._completion_tokens,
        }


def _estimate(event: Event) -> dict[str, Any]:
    """Return the field `conditional_sampling` of a choice, if it was requested and the choice has ended."""
    if (told := event.get("conditional_sampling")) is None:
        return {}
    return {"conditional_sampling": {name: told[name] for name in ConditionalEstimate.model_fields}}


def grammar_report(begun: Begun) -> dict[str, Any]:
    """Return the field `grammar` of a response: a report on the constraint.

    Args:
        begun: The running generation. If one of its parsers expects reasoning, the report says that the constraint
            applies only to the text after the reasoning.

    Returns:
        A dict with the key `grammar` and the fields of `GrammarReport` as its value. Empty without a constraint.
    """
    if (grammar := begun.generation.grammar) is None:
        return {}
    applies_to = "answer" if any(reader.thoughts is not None for reader in begun.readers) else "output"
    told = {name: grammar[name] for name in ("key", "source", "notes", "unenforced")}
    return {"grammar": {**told, "applies_to": applies_to}}
