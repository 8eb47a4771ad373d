"""Limits on the time and the memory of request bodies while they arrive. The limits apply to every path."""

from __future__ import annotations

import asyncio
import time

from fastapi import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# Bytes at the beginning of each body that do not count. So there is room for ordinary requests even if large bodies
# that never end use the whole limit.
FREE_BYTES = 1 << 16
# Headers that close the connection, because the server does not read the rest of the body.
CLOSE = {"Connection": "close"}


class BodyArrival:
    """ASGI middleware that limits the arrival of request bodies, in time (error 408) and in memory (error 429).

    Args:
        app: The wrapped application.
        deadline_s: Maximum number of seconds from the start of a request until its whole body has arrived.
        room_bytes: Maximum total size in bytes of all incomplete bodies. The first 64 KiB (`FREE_BYTES`) of each body
            do not count.
    """

    def __init__(self, app: ASGIApp, *, deadline_s: float, room_bytes: int) -> None:
        self._app = app
        self._deadline_s = deadline_s
        self._room = room_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the application with a `receive` that enforces both limits."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        arrival = _Arrival(self, receive, time.monotonic() + self._deadline_s)
        try:
            await self._app(scope, arrival, send)
        finally:
            arrival.end()

    def take(self, more: int) -> None:
        """Reserve memory for a part of an incomplete body. The caller must release it with `give_back`.

        Args:
            more: Size of the part in bytes.

        Raises:
            HTTPException: 429 if all incomplete bodies together would exceed the limit. Then nothing is reserved.
        """
        if more > self._room:
            message = "bodies that are still arriving take all the memory there is for them; try again shortly"
            raise HTTPException(429, message, headers={"Retry-After": "1", **CLOSE})
        self._room -= more

    def give_back(self, taken: int) -> None:
        """Release memory that `take` has reserved.

        Args:
            taken: Number of bytes to release: the total of all calls of `take` for one body.
        """
        self._room += taken


class _Arrival:
    """The ASGI `receive` callable of one request."""

    def __init__(self, bodies: BodyArrival, receive: Receive, deadline: float) -> None:
        self._bodies = bodies
        self._receive = receive
        self._deadline = deadline
        self._free = FREE_BYTES
        self._taken = 0
        self._arriving = True

    async def __call__(self) -> Message:
        if not self._arriving:
            return await self._receive()
        try:
            async with asyncio.timeout(self._deadline - time.monotonic()):
                message = await self._receive()
        except TimeoutError as error:
            self.end()
            raise HTTPException(408, "the body did not arrive in time", headers=CLOSE) from error
        if message["type"] == "http.request" and message.get("more_body"):
            size = len(message.get("body", b""))
            more = max(0, size - self._free)
            self._free = max(0, self._free - size)
            self._bodies.take(more)
            self._taken += more
        else:
            self.end()
        return message

    def end(self) -> None:
        self._arriving = False
        self._bodies.give_back(self._taken)
        self._taken = 0
