"""Answers as server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from fastapi.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from deployments.http.errors import ApiError, tell
from deployments.http.unenforced import headers_of
from deployments.routing.tiers import Generation
from grammar_workers.logs import SERVE, get_logger

logger = get_logger(SERVE)


class EventStream(StreamingResponse):
    """The blocks of a generation, which ends at once when the client goes away, wherever the response stands.

    A client that takes nothing for `router.stream_timeout_s` has gone, too.
    """

    media_type = "text/event-stream"

    def __init__(self, blocks: AsyncGenerator[bytes, None], generation: Generation) -> None:
        super().__init__(blocks, headers=headers_of(generation.grammar))
        self._blocks = blocks
        self._generation = generation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Closing the blocks is not enough: before the first one they have not begun, and closing does nothing.
        async with aclosing(self._generation), aclosing(self._blocks):
            patience_s: float = scope["app"].state.stream_timeout_s

            async def send_in_time(message: Message) -> None:
                try:
                    async with asyncio.timeout(patience_s):
                        await send(message)
                except TimeoutError as error:
                    logger.info("ended a stream whose client took nothing for %g s", patience_s)
                    raise OSError("the client takes nothing") from error

            await super().__call__(scope, receive, send_in_time)


async def ended(
    blocks: AsyncGenerator[bytes, None], request_id: str, failed: Callable[[ApiError], bytes], mark: bytes = b""
) -> AsyncGenerator[bytes, None]:
    """Streams `blocks`, and where they fail one more, what `failed` makes of the error. Then `mark`, if any."""
    try:
        async with aclosing(blocks):
            async for one in blocks:
                yield one
    except ApiError as error:
        yield failed(tell(error))
    except Exception:
        logger.exception("stream %s failed", request_id)
        yield failed(tell(ApiError.internal()))
    if mark:
        yield mark


_LINE_ENDS = str.maketrans({"\x85": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"})
"""JSON allows these characters in strings, but clients that split lines as Python does end a line at each of them."""


def block(data: dict[str, Any], event: str | None = None) -> bytes:
    """One server-sent event with JSON data, and its type if it has one."""
    name = b"" if event is None else f"event: {event}\n".encode()
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).translate(_LINE_ENDS)
    return name + b"data: " + text.encode() + b"\n\n"


async def named_blocks(events: AsyncGenerator[dict[str, Any], None]) -> AsyncGenerator[bytes, None]:
    """Streams events as blocks of their `type`."""
    async with aclosing(events):
        async for event in events:
            yield block(event, event["type"])
