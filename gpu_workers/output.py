"""What a generation sends back, and the stream that carries it from the engine thread to its consumer."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

FinishReason = Literal["stop", "length", "cancelled", "error"]


@dataclass(slots=True)
class GenerationOutput:
    """New text and tokens since the previous output. The last one has a `finish_reason`, and `error` if that is why.

    `reports` has one item per token when the request asked for any (`logprobs.TokenNames.describe`).
    """

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    reports: list[dict[str, Any]] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    prompt_tokens: int = 0
    error: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        if self.error is not None:
            return {"error": self.error}
        output = {
            "text": self.text,
            "token_ids": self.token_ids,
            "finish_reason": self.finish_reason,
            "prompt_tokens": self.prompt_tokens,
        }
        return {**output, "reports": self.reports} if self.reports else output


class Outbox:
    """The streams with news since the last `flush`. Waking an event loop costs a system call: once a step is enough."""

    def __init__(self) -> None:
        self._streams: list[OutputStream] = []

    def add(self, stream: OutputStream) -> None:
        self._streams.append(stream)

    def flush(self) -> None:
        """Wakes the readers."""
        streams, self._streams = self._streams, []
        for loop in {stream.loop for stream in streams}:
            with contextlib.suppress(RuntimeError):  # the loop is closed: no reader is left to wake
                loop.call_soon_threadsafe(_wake, [stream for stream in streams if stream.loop is loop])


class OutputStream:
    """One generation's outputs: the engine thread pushes, one asyncio task reads, what waits is merged into one."""

    def __init__(self, prompt_tokens: int, outbox: Outbox) -> None:
        self.loop = asyncio.get_running_loop()
        self.ready = asyncio.Event()
        self._outbox = outbox
        self._prompt_tokens = prompt_tokens
        self._lock = threading.Lock()
        self._waiting: GenerationOutput | None = None
        self._ended = False

    def push(self, text: str, token_ids: list[int], reports: Sequence[dict[str, Any]] = ()) -> None:
        with self._lock:
            assert not self._ended, "output after the terminal event"
            self._merge(text, token_ids).reports += reports

    def end(self, finish_reason: FinishReason, *, text: str = "", error: dict[str, Any] | None = None) -> None:
        """The one terminal event."""
        with self._lock:
            assert not self._ended, "a second terminal event"
            self._ended = True
            output = self._merge(text, [])
            output.finish_reason, output.error = finish_reason, error

    async def next(self) -> GenerationOutput:
        """Everything since the last call; waits until there is something."""
        await self.ready.wait()
        with self._lock:
            output, self._waiting = self._waiting, None
            self.ready.clear()
        assert output is not None
        return output

    def _merge(self, text: str, token_ids: list[int]) -> GenerationOutput:
        if self._waiting is None:
            self._waiting = GenerationOutput(prompt_tokens=self._prompt_tokens)
            self._outbox.add(self)
        self._waiting.text += text
        self._waiting.token_ids += token_ids
        return self._waiting


def _wake(streams: list[OutputStream]) -> None:
    for stream in streams:
        stream.ready.set()
