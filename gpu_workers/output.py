"""What a generation sends back, and the stream that carries it from the engine thread to its consumer."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from gpu_workers.request import GenerationRequest

FinishReason = Literal["stop", "length", "cancelled", "error"]


@dataclass(slots=True)
class GenerationOutput:
    """New text and tokens since the previous output. The last one has a `finish_reason`, and `error` if that is why.

    `reports` has one item per token when the request asked for any (`logprobs.TokenNames.describe`).
    `conditional_sampling`: with the last one, what the particles say (`ParticleGroup.choose`). `stop_string`: with
    the last one, the stop string that ended the output. `spans`: with the last one, where the engine knows it, the
    parts of the generation, for its trace (`Times.spans`).
    """

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    reports: list[dict[str, Any]] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    prompt_tokens: int = 0
    error: dict[str, Any] | None = None
    conditional_sampling: dict[str, Any] | None = None
    stop_string: str | None = None
    spans: list[tuple[str, float, float]] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        if self.error is not None:
            return {"error": self.error}
        names = ["text", "token_ids", "finish_reason", "prompt_tokens"]
        names += [name for name in ("reports", "conditional_sampling", "stop_string") if getattr(self, name)]
        return {name: getattr(self, name) for name in names}


Generate = Callable[[GenerationRequest], AsyncGenerator[GenerationOutput, None]]
"""Streams a part of a search: a request with `probe`. Raises RequestError where it fails."""

Text = str | Callable[[], str]
"""Text, or the call that will decode it."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One more token of a stream, or its end (`ending`: what is told with it).

    What it will say was fixed when it was made: its sequence goes on, and may be gone, before it is delivered.
    """

    stream: OutputStream
    text: Text
    token_id: int | None = None
    report: Callable[[], dict[str, Any]] | None = None
    ending: GenerationOutput | None = None


class Outbox:
    """What the streams are to be told, in order. Engine thread only.

    Decoding, describing and waking event loops, which costs a system call, wait for `deliver`: once a step, while the
    device is busy with the next one.
    """

    def __init__(self) -> None:
        self._pieces: list[Piece] = []

    def add(self, piece: Piece) -> None:
        self._pieces.append(piece)

    def deliver(self) -> None:
        """Hands every piece to its stream and wakes the readers."""
        pieces, self._pieces = self._pieces, []
        streams = dict.fromkeys(piece.stream for piece in pieces if piece.stream.take(piece))
        for loop in {stream.loop for stream in streams}:
            with contextlib.suppress(RuntimeError):  # the loop is closed: no reader is left to wake
                loop.call_soon_threadsafe(_wake, [stream for stream in streams if stream.loop is loop])


class OutputStream:
    """One generation's outputs: the engine thread writes, one asyncio task reads, what waits is merged into one.

    Between two outputs `interval_s` goes by: each costs every process on its way. The first and the end do not wait.
    """

    def __init__(self, prompt_tokens: int, outbox: Outbox, interval_s: float = 0.0) -> None:
        self.loop = asyncio.get_running_loop()
        self._ready = asyncio.Event()
        self._interval_s = interval_s
        self._not_before = self.loop.time()
        self._outbox = outbox
        self._prompt_tokens = prompt_tokens
        self._lock = threading.Lock()
        self._waiting: GenerationOutput | None = None
        self._ended = False

    def push(self, token_id: int, text: Text, report: Callable[[], dict[str, Any]] | None = None) -> None:
        """One more token, the text that it made certain and what is to be told about it, in the order of the calls."""
        assert not self._ended, "output after the terminal event"
        self._outbox.add(Piece(self, text, token_id, report))

    def end(self, ending: GenerationOutput, text: Text = "") -> None:
        """The one terminal event: `ending` has its reason and what is told with it, `text` is the last text."""
        assert not self._ended, "a second terminal event"
        self._ended = True
        self._outbox.add(Piece(self, text, ending=ending))

    def take(self, piece: Piece) -> bool:
        """Merges a piece into what waits for the reader. Whether the reader is to be told: of something new."""
        text = piece.text if isinstance(piece.text, str) else piece.text()
        report = None if piece.report is None else piece.report()
        with self._lock:
            first = self._waiting is None
            output = self._waiting = self._waiting or GenerationOutput(prompt_tokens=self._prompt_tokens)
            output.text += text
            if piece.token_id is not None:
                output.token_ids.append(piece.token_id)
            if report is not None:
                output.reports.append(report)
            if (ending := piece.ending) is not None:
                output.finish_reason, output.error = ending.finish_reason, ending.error
                output.stop_string = ending.stop_string
        return first or piece.ending is not None

    def wake(self) -> None:
        """There is something to read. In the reader's event loop."""
        pause = 0.0 if self._ended else self._not_before - self.loop.time()
        if pause > 0:
            self.loop.call_later(pause, self._ready.set)
        else:
            self._ready.set()

    async def next(self) -> GenerationOutput:
        """Everything since the last call; waits until there is something."""
        await self._ready.wait()
        with self._lock:
            output, self._waiting = self._waiting, None
            self._ready.clear()
        assert output is not None
        self._not_before = self.loop.time() + self._interval_s
        return output


def _wake(streams: Iterable[OutputStream]) -> None:
    for stream in streams:
        stream.wake()
