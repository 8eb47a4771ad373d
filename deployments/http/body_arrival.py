"""Bodies arrive in time and take no more memory than there is: what holds whichever path reads them."""

from __future__ import annotations

import asyncio
import time

from fastapi import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

FREE_BYTES = 1 << 16
"""Of each body; only what is beyond counts, so that ordinary requests have room beside large ones that never end."""
CLOSE = {"Connection": "close"}
"""What comes after such an answer is the rest of a body that nobody reads."""


class BodyArrival:
    """ASGI middleware: a body that is not there after `deadline_s` is answered with 408.

    With `room_bytes` in bodies that are still arriving, one that needs more is answered with 429.
    """

    def __init__(self, app: ASGIApp, *, deadline_s: float, room_bytes: int) -> None:
        self._app = app
        self._deadline_s = deadline_s
        self._room = room_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        arrival = _Arrival(self, receive, time.monotonic() + self._deadline_s)
        try:
            await self._app(scope, arrival, send)
        finally:
            arrival.end()

    def take(self, more: int) -> None:
        """Raises `HTTPException` 429."""
        if more > self._room:
            message = "bodies that are still arriving take all the memory there is for them; try again shortly"
            raise HTTPException(429, message, headers={"Retry-After": "1", **CLOSE})
        self._room -= more

    def give_back(self, taken: int) -> None:
        self._room += taken


class _Arrival:
    """`receive` of one request."""

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
