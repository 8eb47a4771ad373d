"""Answers as server-sent events."""

from __future__ import annotations

from contextlib import aclosing

from fastapi.responses import StreamingResponse
from starlette.types import Send


class EventStream(StreamingResponse):
    """A stream whose source is closed at once when the client goes away, wherever the response stands."""

    async def stream_response(self, send: Send) -> None:
        async with aclosing(self.body_iterator):  # type: ignore[type-var]
            await super().stream_response(send)
