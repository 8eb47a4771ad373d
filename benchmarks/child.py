"""A child process that receives requests and sends one response for each. It is restarted after a timeout or crash."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any


class ChildFailedError(Exception):
    """The child process has crashed or timed out during a request. A new process is ready for the next request.

    Args:
        message: What has happened.
        exit_code: Exit code of the process, negative for a signal. None: a timeout.
    """

    def __init__(self, message: str, exit_code: int | None = None) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Child:
    """A child process that receives requests and sends one response for each.

    The process runs `target(*arguments, connection)`. `target` sends any object when it is ready. Then it sends one
    response for each request that it receives on the connection.

    Args:
        target: Function that the process runs. It must be picklable.
        *arguments: First arguments of `target`.
        timeout_s: Maximum number of seconds for one response.
    """

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
        """Send a request to the process, and return the response.

        Args:
            question: The request, a picklable object.

        Returns:
            The object that the process has sent.

        Raises:
            ChildFailedError: The process has crashed or has exceeded the time limit. It has been replaced.
        """
        self._connection.send(question)
        try:
            if self._connection.poll(self._timeout_s):
                return self._connection.recv()
            failure, code = f"no answer within {self._timeout_s} s", None
        except EOFError:
            self._process.join()
            failure, code = "the process died", self._process.exitcode
        self.close()
        self._start()
        raise ChildFailedError(failure, code)

    def close(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.join()
