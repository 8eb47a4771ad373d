"""What the asyncio side tells the engine thread, and the inbox in between."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from gpu_workers.request import RequestError
from gpu_workers.sequence.sequence import Sequence
from grammar_workers import TokenFSM


@dataclass(frozen=True, slots=True)
class Add:
    """A new sequence."""

    sequence: Sequence


@dataclass(frozen=True, slots=True)
class Constrain:
    """The grammar of `sequence` has arrived; `state` is where its replayed tokens lead."""

    sequence: Sequence
    fsm: TokenFSM
    state: int


@dataclass(frozen=True, slots=True)
class Fail:
    """`sequence` cannot go on."""

    sequence: Sequence
    error: RequestError


@dataclass(frozen=True, slots=True)
class Cancel:
    """Nobody wants the output any more; of no effect when it is over."""

    sequence: Sequence


@dataclass(frozen=True, slots=True)
class Wake:
    """A mask row has been read: look again."""


@dataclass(frozen=True, slots=True)
class Close:
    """End the engine thread."""


Message = Add | Constrain | Fail | Cancel | Wake | Close


class Inbox:
    """Messages to the engine thread, in the order they were sent. Any thread sends, the engine thread receives."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._closing = threading.Lock()
        self._closed = False

    def send(self, message: Message) -> None:
        """Raises RequestError when nobody will receive it any more."""
        with self._closing:
            if self._closed:
                raise RequestError("the engine has shut down", code="unavailable", status=503)
            self._queue.put(message)

    def wake(self) -> None:
        """Lets the engine thread look again; of no effect when it has ended."""
        self._queue.put(Wake())

    def receive(self, *, wait: bool) -> Iterator[Message]:
        """All that is there; waits for the first message if told so."""
        while True:
            try:
                message = self._queue.get(block=wait)
            except queue.Empty:
                return
            wait = False
            yield message

    def close(self) -> Iterator[Message]:
        """Refuses messages from here on; what was sent before and not received."""
        with self._closing:
            self._closed = True
        return self.receive(wait=False)
