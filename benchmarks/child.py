"""A process that answers questions one by one, started anew after a timeout or a crash."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any


class ChildFailedError(Exception):
    """The question got no answer; another process is ready for the next one."""


class Child:
    """`target(*arguments, connection)` sends anything when it is ready, then an answer to whatever it receives."""

    def __init__(self, target: Callable[..., None], *arguments: Any, timeout_s: float) -> None:
        self._target = target
        self._arguments = arguments
        self._timeout_s = timeout_s
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=self._target, args=(*self._arguments, theirs), daemon=True)
        self._process.start()
        theirs.close()
        self._connection.recv()

    def ask(self, question: Any) -> Any:
        """The answer. Raises ChildFailedError."""
        self._connection.send(question)
        try:
            if self._connection.poll(self._timeout_s):
                return self._connection.recv()
            failure = f"no answer within {self._timeout_s} s"
        except EOFError:
            failure = "the process died"
        self.close()
        self._start()
        raise ChildFailedError(failure)

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.join()
