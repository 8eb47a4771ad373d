"""Streaming HTTP responses as server-sent events: encoding of events, errors in the stream, and client disconnects.

A *block* is the bytes of one event: an optional line `event: TYPE`, a line `data: JSON`, and an empty line.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from fastapi.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from deployments.generation import Generation
from deployments.http.errors import ApiError, tell
from deployments.http.unenforced import headers_of
from grammar_workers.logs import SERVE, get_logger

logger = get_logger(SERVE)


class EventStream(StreamingResponse):
    """HTTP response that streams one generation, and stops the generation as soon as the client disconnects.

    The client may disconnect even before the first event. A client that reads nothing for `router.stream_timeout_s`
    seconds counts as disconnected.

    Args:
        blocks: Server-sent events, encoded to bytes. The response closes this generator when it ends.
        generation: The running generation that `blocks` formats. The headers of the response list the schema keywords
            of its constraint that are not enforced. The response closes the generation when the response ends.
    """

    media_type = "text/event-stream"

    def __init__(self, blocks: AsyncGenerator[bytes, None], generation: Generation) -> None:
        super().__init__(blocks, headers=headers_of(generation.grammar))
        self._blocks = blocks
        self._generation = generation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Closing the blocks alone is not enough: closing a generator that has not started runs none of its code.
        """Send the response as an ASGI application. Then close its events and its generation, even after an error."""
        async with aclosing(self._generation), aclosing(self._blocks):
            patience_s: float = scope["app"].state.stream_timeout_s

            async def send_in_time(message: Message) -> None:
                try:
                    async with asyncio.timeout(patience_s):
                        await send(message)
                except TimeoutError as error:
                    logger.info("stream ended, its client reads nothing: stream_timeout_s=%g", patience_s)
                    raise OSError("the client takes nothing") from error

            await super().__call__(scope, receive, send_in_time)


async def ended(
    blocks: AsyncGenerator[bytes, None], request_id: str, failed: Callable[[ApiError], bytes], mark: bytes = b""
) -> AsyncGenerator[bytes, None]:
    """Complete a stream of encoded events: turn an exception into an error event, and append a last event.

    The caller gets no exception. An exception other than `ApiError` is logged, and the client gets an internal error
    (500).

    Args:
        blocks: Server-sent events of the response, encoded to bytes. The generator is closed at the end.
        request_id: ID of the request, for the log.
        failed: Function that encodes an error as a server-sent event.
        mark: Encoded last event, such as `data: [DONE]`. It is also sent after an error. Empty: there is none.

    Yields:
        The encoded events of `blocks`, then an error event if `blocks` has raised an exception, then `mark`.
    """
    try:
        async with aclosing(blocks):
            async for one in blocks:
                yield one
    except ApiError as error:
        yield failed(tell(error))
    except Exception:
        logger.exception("stream failed: request_id=%s", request_id)
        yield failed(tell(ApiError.internal()))
    if mark:
        yield mark


# Escapes of characters that are valid in JSON strings, but end a line for clients that split lines as Python does.
_LINE_ENDS = str.maketrans({"\x85": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"})


def block(data: dict[str, Any], event: str | None = None) -> bytes:
    """Encode one server-sent event.

    Args:
        data: Data of the event. It is encoded as JSON in one line.
        event: Event type, for the line `event:`. None: the event has no type.

    Returns:
        The bytes of the event in UTF-8, with the empty line that ends it.
    """
    name = b"" if event is None else f"event: {event}\n".encode()
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).translate(_LINE_ENDS)
    return name + b"data: " + text.encode() + b"\n\n"


async def named_blocks(events: AsyncGenerator[dict[str, Any], None]) -> AsyncGenerator[bytes, None]:
    """Encode events as server-sent events with a type, such as `event: message_stop`.

    Args:
        events: Data of the events. The field `type` of the data is the type of the event. The generator is closed at
            the end.

    Yields:
        The bytes of one server-sent event for each item of `events`.
    """
    async with aclosing(events):
        async for event in events:
            yield block(event, event["type"])
