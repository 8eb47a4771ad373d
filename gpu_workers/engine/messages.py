"""Messages from the event loop to the engine thread, such as "add" or "cancel a sequence", and their queue.

A *sequence* is one generation: a prompt and its output.
"""

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
    """Message: start a new sequence (one generation: a prompt and its output).

    Attributes:
        sequence: The sequence, which has no slot of the KV cache yet.
    """

    sequence: Sequence


@dataclass(frozen=True, slots=True)
class Constrain:
    """Message: the compiled grammar of a sequence (one generation) has arrived, so its tokens can be sampled.

    Attributes:
        sequence: The sequence, which waits for its grammar.
        fsm: Automaton of the grammar.
        state: State of `fsm` after the output tokens that the sequence already has; the initial state if there are
            none.
    """

    sequence: Sequence
    fsm: TokenFSM
    state: int


@dataclass(frozen=True, slots=True)
class End:
    """Message: end a sequence (one generation), with an error or because the client no longer reads its output.

    Attributes:
        sequence: The sequence. If it has already ended, the message has no effect.
        error: Error that the client receives as the last output of the sequence, such as a missed deadline or an
            unavailable grammar. None: the client no longer reads the output.
    """

    sequence: Sequence
    error: RequestError | None = None


@dataclass(frozen=True, slots=True)
class Wake:
    """Message: a worker thread has computed a token mask or has failed, so a sequence that waits for it can go on."""


@dataclass(frozen=True, slots=True)
class Close:
    """Message: end all sequences with an error and stop the engine thread."""


Message = Add | Constrain | End | Wake | Close


class Inbox:
    """Queue of messages to the engine thread, first in, first out.

    Any thread may send messages. Only the engine thread receives them.
    """

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._closing = threading.Lock()
        self._closed = False

    def send(self, message: Message) -> None:
        """Append a message to the queue. Does not block.

        Args:
            message: The message to the engine thread.

        Raises:
            RequestError: The inbox is closed (code `unavailable`, HTTP status 503): nothing would receive the message.
        """
        with self._closing:
            if self._closed:
                raise RequestError("the engine has shut down", code="unavailable", status=503)
            self._queue.put(message)

    def wake(self) -> None:
        """Append a `Wake` message, so that a blocking `receive` of the engine thread returns.

        The method raises nothing, even after `close`.
        """
        self._queue.put(Wake())

    def receive(self, *, wait: bool) -> Iterator[Message]:
        """Yield all messages in the queue, oldest first, and remove them from the queue.

        Args:
            wait: If true, block until there is at least one message. If false, an empty queue yields nothing.

        Yields:
            The messages, until the queue is empty.
        """
        while True:
            try:
                message = self._queue.get(block=wait)
            except queue.Empty:
                return
            wait = False
            yield message

    def close(self) -> Iterator[Message]:
        """Close the inbox: from now on `send` raises RequestError.

        Returns:
            Iterator over the messages that have not been received yet, oldest first.
        """
        with self._closing:
            self._closed = True
        return self.receive(wait=False)
