"""The time that an answer may take: one deadline for each request, which bounds every wait on its way."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

from deployments.http.errors import ApiError


class Deadline:
    """`seconds` from now on; None for no end. `set` changes it, also for blocks that wait already."""

    def __init__(self, seconds: float | None, param: str | None = None) -> None:
        self._began = time.monotonic()
        self._waiting: set[asyncio.Timeout] = set()
        self.set(seconds, param)

    def set(self, seconds: float | None, param: str | None) -> None:
        """So long after its beginning it ends; `param`: the field that says so, where it is not the server's."""
        self._seconds = seconds
        self._param = param
        for timeout in self._waiting:
            timeout.reschedule(self._when())

    @property
    def left(self) -> float | None:
        """Seconds, more than none."""
        return None if self._seconds is None else max(self._began + self._seconds - time.monotonic(), 1e-3)

    def passed(self) -> ApiError:
        """The 408 of an answer that took longer."""
        whose = "" if self._param else ", the setting `router.timeout_s` of this server"
        message = f"the answer was not complete within {self._seconds:g} s{whose}: allow more, or ask for fewer tokens"
        # Clients of OpenAI would send it again, with the same deadline.
        headers = {"x-should-retry": "false"}
        return ApiError(408, message, param=self._param, code="deadline_exceeded", headers=headers)

    @contextlib.asynccontextmanager
    async def bounds(self) -> AsyncIterator[None]:
        """Raises `ApiError` 408 in a block that goes on for longer."""
        timeout = asyncio.timeout_at(self._when())
        try:
            async with timeout:
                self._waiting.add(timeout)
                try:
                    yield
                finally:
                    self._waiting.discard(timeout)
        except TimeoutError as error:
            if not timeout.expired():  # somebody else's
                raise
            raise self.passed() from error

    def _when(self) -> float | None:
        return None if (left := self.left) is None else asyncio.get_running_loop().time() + left
