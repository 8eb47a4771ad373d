"""Deadline of one response: a time limit on everything that the server awaits for the request."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

from deployments.http.errors import ApiError


class Deadline:
    """Time limit of one response. The time starts when the object is created. The limit can be changed later.

    Args:
        seconds: Time limit in seconds. None: no limit.
        param: Request field that sets the limit, for the error. None: the limit is a setting of the server.
    """

    def __init__(self, seconds: float | None, param: str | None = None) -> None:
        self._began = time.monotonic()
        self._waiting: set[asyncio.Timeout] = set()
        self.set(seconds, param)

    def set(self, seconds: float | None, param: str | None) -> None:
        """Change the time limit, also for blocks that already run in a context of `bounds`.

        Args:
            seconds: Time limit in seconds, from the creation of this object. None: no limit.
            param: Request field that sets the limit, for the error. None: the limit is a setting of the server.
        """
        self._seconds = seconds
        self._param = param
        for timeout in self._waiting:
            timeout.reschedule(self._when())

    @property
    def left(self) -> float | None:
        """Remaining time in seconds, at least 0.001 (even after the deadline). None: there is no limit."""
        return None if self._seconds is None else max(self._began + self._seconds - time.monotonic(), 1e-3)

    def passed(self) -> ApiError:
        """Return the error (408) for a response that exceeds the time limit. Call this only if a limit is set."""
        whose = "" if self._param else ", the setting `router.timeout_s` of this server"
        message = f"the answer was not complete within {self._seconds:g} s{whose}: allow more, or ask for fewer tokens"
        # Without this header, OpenAI's clients send the request again, with the same deadline.
        headers = {"x-should-retry": "false"}
        return ApiError(408, message, param=self._param, code="deadline_exceeded", headers=headers)

    @contextlib.asynccontextmanager
    async def bounds(self) -> AsyncIterator[None]:
        """Return an asynchronous context that cancels its block at the deadline, and then raises `ApiError` 408.

        A later change of the limit also applies to the running block.

        Raises:
            TimeoutError: The block itself has raised this error, for another reason than this deadline.
        """
        timeout = asyncio.timeout_at(self._when())
        try:
            async with timeout:
                self._waiting.add(timeout)
                try:
                    yield
                finally:
                    self._waiting.discard(timeout)
        except TimeoutError as error:
            if not timeout.expired():  # raised by another timeout
                raise
            raise self.passed() from error

    def _when(self) -> float | None:
        return None if (left := self.left) is None else asyncio.get_running_loop().time() + left
