"""The answers of the two completion endpoints, whole or as server-sent events, in OpenAI's format.

A stream is `data: <chunk>` blocks: text as it comes, a last chunk with the finish reason, one with the token counts if
asked for, then `data: [DONE]`. An error after the first byte is one more block with the usual error body.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Literal

from pydantic import BaseModel, Field

from deployments.chat.output_parser import OutputParser
from deployments.http.event_stream import block, ended
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
from deployments.routing.tiers import Event, Generation


class Usage(BaseModel):
    """Token counts of one answer."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class GrammarReport(BaseModel):
    """The constraint that applied: its key, where its automaton was found, and what the compiler ignored.

    `unenforced`: what it does not enforce, where `on_unsupported` is `report`; else nothing.
    `applies_to`: all of the output, or what follows the thinking section.
    """

    key: str
    source: Literal["process", "file", "redis", "compiled"]
    notes: list[str]
    unenforced: list[Unenforced]
    applies_to: Literal["output", "answer"]


class ConditionalEstimate(BaseModel):
    """What the particles of `conditional_sampling` say; their tokens are part of `usage`."""

    valid_logprob: float | None = Field(
        description="Estimated natural logarithm of the probability that the model's output, without the constraint's "
        "mask, is valid within the limit; null where no particle came to its end."
    )
    effective_sample_size: float = Field(
        description="How many particles of equal weight would be worth as much: near 1, more particles would help."
    )


class AnswerFunction(BaseModel):
    """The function of a call; `arguments` is JSON text that matches its schema unless the answer was cut."""

    name: str
    arguments: str


class AnswerInput(BaseModel):
    """The custom tool of a call; `input` matches its grammar unless the answer was cut."""

    name: str
    input: str


class AnswerCall(BaseModel):
    """One tool call, of a function or a custom tool."""

    id: str
    type: Literal["function", "custom"]
    function: AnswerFunction | None = None
    custom: AnswerInput | None = None


class AnswerMessage(BaseModel):
    """The assistant's turn; `content` is null where it has calls alone, or one that was cut before its arguments.

    `reasoning_content`: what a model thought.
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
    """One answer to a conversation. `length` means cut: such text need not match the constraint.

    `grammar_start`: with a constraint behind thoughts, how many characters were generated before the place from which
    it applied; null where the output was cut before.
    """

    message: AnswerMessage
    finish_reason: Literal["stop", "length", "tool_calls"]
    grammar_start: int | None = None
    logprobs: ChatLogprobs | None = None


class TextChoice(_Choice):
    """One continuation of a prompt. `length` means cut: such text need not match the constraint."""

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
    """Answer of `POST /v1/chat/completions`."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]


class TextCompletion(_Completion):
    """Answer of `POST /v1/completions`."""

    object: Literal["text_completion"]
    choices: list[TextChoice]


class Answer:
    """Formats one generation, which its caller closes.

    `readers[i]` cuts the text of the i-th choice of a chat into thoughts, content and calls; without readers
    the shape is that of `/v1/completions`.
    """

    def __init__(
        self,
        body: GenerationBody,
        generation: Generation,
        readers: Sequence[OutputParser],
        *,
        request_id: str,
        model: str,
        system_fingerprint: str,
    ) -> None:
        self._generation = generation
        self._chat = bool(readers)
        self._logprobs = body.top_logprobs_wanted() is not None
        self._include_usage = body.include_usage
        self._choices = len(generation.first)
        self._readers = readers
        self._prompt_tokens = sum(first["prompt_tokens"] for first in generation.first[:: body.choices])
        self._completion_tokens = 0
        self._offsets = [TextOffsets() for _ in range(self._choices)]
        self._head = {
            "id": request_id,
            "object": "chat.completion" if readers else "text_completion",
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": system_fingerprint,
        }

    async def whole(self) -> dict[str, Any]:
        """The body of an answer that is not streamed; data of `ChatCompletion` or `TextCompletion`."""
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
        grammar = grammar_report(self._generation, self._readers)
        return {**self._head, "choices": choices, "usage": self._usage(), **grammar}

    def blocks(self) -> AsyncGenerator[bytes, None]:
        """The blocks of a server-sent event stream, each ending in a blank line."""
        request_id = str(self._head["id"])
        return ended(self._blocks(), request_id, lambda error: block(error.body()), mark=b"data: [DONE]\n\n")

    async def _blocks(self) -> AsyncGenerator[bytes, None]:
        """`blocks` but for the last. Raises `ApiError`."""
        head: dict[str, Any] = {**self._head, "object": "chat.completion.chunk" if self._chat else "text_completion"}
        if self._include_usage:
            head["usage"] = None
        grammar = grammar_report(self._generation, self._readers)
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
        """The generation's events, counted."""
        async with aclosing(aiter(self._generation)) as events:
            async for event in events:
                self._completion_tokens += len(event["token_ids"])
                # Of particles that are not the answer: they cost as much.
                self._completion_tokens += event.get("conditional_sampling", {}).get("other_tokens", 0)
                yield event

    def _deltas(self, event: Event) -> list[dict[str, Any]]:
        """What a stream says about an event; what is told about its tokens stands in the first of several."""
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
        """How a choice ended, when its text has been read: one with complete calls says so."""
        if not self._chat:
            return {"finish_reason": reason}
        reader = self._readers[index]
        end: dict[str, Any] = {"finish_reason": "tool_calls" if reader.called and reason == "stop" else reason}
        if reader.thoughts is not None and self._generation.grammar is not None:
            end["grammar_start"] = reader.thoughts.answer_at
        return end

    def _told(self, index: int, reports: list[dict[str, Any]]) -> dict[str, Any]:
        """`logprobs` and `diagnostics` of a choice, where they were asked for."""
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
    """`conditional_sampling` of a choice, at its end, where it was asked for."""
    if (told := event.get("conditional_sampling")) is None:
        return {}
    return {"conditional_sampling": {name: told[name] for name in ConditionalEstimate.model_fields}}


def grammar_report(generation: Generation, readers: Sequence[OutputParser]) -> dict[str, Any]:
    """The field `grammar` of an answer, data of `GrammarReport`; nothing without a constraint."""
    if (grammar := generation.grammar) is None:
        return {}
    applies_to = "answer" if any(reader.thoughts is not None for reader in readers) else "output"
    told = {name: grammar[name] for name in ("key", "source", "notes", "unenforced")}
    return {"grammar": {**told, "applies_to": applies_to}}
