"""Outputs of a generation, and the stream that carries them from the engine thread to the event loop.

engine thread: OutputStream.push --> Outbox --deliver, once per step--> OutputStream.take
event loop:                                                             OutputStream.next
"""

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
    """New text and tokens of one generation, since the previous output of its stream.

    Attributes:
        text: The new text, whole characters only.
        token_ids: The new tokens. Their text may come in a later output.
        reports: Log-probabilities and diagnostics: for each new token, a dict from `TokenNames.describe`. Empty if the
            request needs no reports.
        finish_reason: Reason of the end: "stop" (complete), "length" (truncated), "cancelled" or "error". None unless
            this is the last output.
        prompt_tokens: Number of tokens of the prompt.
        error: Error as plain data, with the keys `status`, `code`, `message` and `param`. None unless the generation
            failed and this is the last output.
        conditional_sampling: In the last output of a request with conditional sampling, a dict with the estimates
            `valid_logprob`, `effective_sample_size` and `other_tokens` (see `ParticleGroup.choose`). None in all other
            outputs.
        stop_string: In the last output, the stop string that ended the generation; None if something else ended it.
        spans: In the last output, the phases of the generation for tracing: tuples (name, start, end) in seconds of
            `time.monotonic`. Empty if the engine does not measure phases.
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
        """Return the output as plain data, for other processes.

        Returns:
            A dict with `text`, `token_ids`, `finish_reason` and `prompt_tokens`. It also has `reports`,
            `conditional_sampling` and `stop_string` if they are set and not empty. If the generation failed, the dict
            has only `error`.
        """
        if self.error is not None:
            return {"error": self.error}
        names = ["text", "token_ids", "finish_reason", "prompt_tokens"]
        names += [name for name in ("reports", "conditional_sampling", "stop_string") if getattr(self, name)]
        return {name: getattr(self, name) for name in names}


# Function that streams one generation of a search (a request with `probe`). A failure raises RequestError.
Generate = Callable[[GenerationRequest], AsyncGenerator[GenerationOutput, None]]

# Decoded text, or a function that decodes it later.
Text = str | Callable[[], str]


@dataclass(frozen=True, slots=True)
class Piece:
    """One event of an output stream: a new token, or the end of the stream.

    An event contains everything that its output needs, because the sequence may have advanced or ended before the event
    is delivered.

    Attributes:
        stream: The stream.
        text: Text that the event adds to the output, or a function that returns this text.
        token_id: The token; None for the end of the stream.
        report: Function that returns log-probabilities and diagnostics of the token; None if none are needed.
        ending: An output with the finish reason, error and stop string of the generation; None if the stream goes on.
    """

    stream: OutputStream
    text: Text
    token_id: int | None = None
    report: Callable[[], dict[str, Any]] | None = None
    ending: GenerationOutput | None = None


class Outbox:
    """Queue of events of all output streams, in order. For the engine thread only.

    The engine thread calls `deliver` once per step, while the device runs a forward pass. Slow work is deferred to this
    call: decoding text, building reports, and waking event loops (a system call).
    """

    def __init__(self) -> None:
        self._pieces: list[Piece] = []

    def add(self, piece: Piece) -> None:
        """Append an event to the queue.

        Args:
            piece: The event: a new token of a stream, or the end of a stream.
        """
        self._pieces.append(piece)

    def deliver(self) -> None:
        """Merge every queued event into the unread output of its stream, empty the queue, and wake the readers."""
        pieces, self._pieces = self._pieces, []
        streams = dict.fromkeys(piece.stream for piece in pieces if piece.stream.take(piece))
        for loop in {stream.loop for stream in streams}:
            with contextlib.suppress(RuntimeError):  # the loop is closed: no reader is left to wake
                loop.call_soon_threadsafe(_wake, [stream for stream in streams if stream.loop is loop])


class OutputStream:
    """Stream of the outputs of one generation: the engine thread writes tokens, and one asyncio task reads outputs.

    Tokens that were written since the last read are merged into one output. Create the stream in the event loop of the
    reader.

    Args:
        prompt_tokens: Number of tokens of the prompt, for the outputs.
        outbox: Queue through which the engine thread writes.
        interval_s: Minimum time between two outputs, in seconds, because each output costs CPU time in every process on
            its path. The first and the last output are not delayed. 0: no minimum.

    Attributes:
        loop: Event loop of the reader.
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
        """Queue one new token of the stream. Called by the engine thread.

        Args:
            token_id: The token.
            text: Text that became final with this token, or a function that returns this text.
            report: Function that returns log-probabilities and diagnostics of the token; None if none are needed.
        """
        assert not self._ended, "output after the terminal event"
        self._outbox.add(Piece(self, text, token_id, report))

    def end(self, ending: GenerationOutput, text: Text = "") -> None:
        """Queue the end of the stream. Called by the engine thread, once.

        Args:
            ending: An output with the finish reason, error and stop string of the generation. Other fields are not
                used.
            text: Text that was held back until the end, or a function that returns this text.
        """
        assert not self._ended, "a second terminal event"
        self._ended = True
        self._outbox.add(Piece(self, text, ending=ending))

    def take(self, piece: Piece) -> bool:
        """Merge an event into the unread output. Called by the engine thread.

        Args:
            piece: The event: a new token, or the end of the stream.

        Returns:
            True if the reader must be woken: nothing was unread before, or the stream ends.
        """
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
        """Wake the reader as soon as `interval_s` has passed since the previous output. The last output is not delayed.

        Call this method in the reader's event loop.
        """
        pause = 0.0 if self._ended else self._not_before - self.loop.time()
        if pause > 0:
            self.loop.call_later(pause, self._ready.set)
        else:
            self._ready.set()

    async def next(self) -> GenerationOutput:
        """Wait until there is unread text, an unread token or the end of the stream.

        Returns:
            All text and tokens since the previous call, merged into one output. The last output of the stream has a
            `finish_reason`.
        """
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
