"""FastAPI route that reads request bodies strictly: limits their size, parses strict JSON, and reports all errors."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from typing import Any, cast

from fastapi import HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel

from deployments.http.body_errors import of_json, of_validation
from deployments.http.deadline import Deadline
from deployments.http.errors import ApiError
from grammar_workers.strict_json import JsonTextError, parse_json

# Size in bytes from which on a body counts as large.
LARGE_BYTES = 1 << 16
# Maximum number of keys, and of objects and lists, in a large body.
#
# A specification of the maximum size has fewer, unless all its names are as short as possible. An empty object takes
# three bytes in a body, but a hundred bytes in memory for the duration of the request.
MOST = {"keys": 1 << 17, "objects and lists": 1 << 18}
_SIGNS = {"keys": b":", "objects and lists": b"[{"}
_STRING_OR_SIGN = {
    what: re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[' + re.escape(signs) + rb"]", re.DOTALL)
    for what, signs in _SIGNS.items()
}
# Seconds to pause per byte of a large body. Reading and checking takes about as long, so the event loop has half of
# the time for other requests.
PAUSE_S_PER_BYTE = 25e-9


class LargeBodies:
    """Parser of JSON bodies. It parses only one large body at a time, and pauses before each large body.

    Parsing a large body blocks the event loop. The pauses leave time for other requests.
    """

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def parse(self, body: bytes) -> Any:
        """Parse a JSON body. Large bodies (64 KiB or more, `LARGE_BYTES`) are parsed one at a time.

        A large body waits until no other large body is parsed, then for a pause of 25 ns per byte.

        `JsonTextError` is raised if the body is not strict JSON. It is also raised if a large body has more keys, or
        more objects and lists, than `MOST` allows.

        Args:
            body: The complete body.

        Returns:
            The value: None, bool, int, float, str, list or dict.
        """
        if len(body) < LARGE_BYTES:
            return parse_json(body)
        async with self._turn:
            await asyncio.sleep(len(body) * PAUSE_S_PER_BYTE)
            _check_parts(body)
            # The task of this request goes on, without another suspension, before the next body is admitted.
            return parse_json(body)


def _check_parts(body: bytes) -> None:
    """Raise `JsonTextError` if reading and keeping the parts of a body would cost too much."""
    for what, most in MOST.items():
        if sum(body.count(sign) for sign in _SIGNS[what]) <= most:
            continue
        outside_of_strings = (one for one in _STRING_OR_SIGN[what].finditer(body) if one[0][:1] != b'"')
        if next(itertools.islice(outside_of_strings, most, None), None) is not None:
            raise JsonTextError(f"more than {most} {what}")


class StrictJsonRoute(APIRoute):
    """FastAPI route that reads a body of limited size, parses it strictly, and reports its errors as `ApiError`.

    The parser rejects NaN, lone surrogates, deep nesting and duplicate keys. When the body has arrived, the route
    creates the `Deadline` of the response and stores it in `request.state.deadline`.
    """

    def get_route_handler(self) -> Any:
        """Return FastAPI's request handler, extended by strict reading of the body and by a deadline.

        Returns:
            Coroutine function from a request to a response. It raises `ApiError` for an invalid body (400), for a
            compressed body (415), and at the deadline (408). It raises `HTTPException` 413 for a body that is too
            large.
        """
        handler = super().get_route_handler()

        async def handle(request: Request) -> Any:
            strict = _StrictRequest(request.scope, request.receive)
            if self.body_field is not None:
                await strict.body()  # inside the handler, the framework would hide the error of a body
            # The body has arrived: from here on the server alone determines how long the response takes.
            request.state.deadline = deadline = Deadline(request.app.state.timeout_s)
            try:
                async with deadline.bounds():
                    return await handler(strict)
            except RequestValidationError as error:
                refusal = strict.refusal or self._of_validation(error)
            raise refusal  # outside of the `except` block, so that the error, which holds the body, can be freed

        return handle

    def _of_validation(self, error: RequestValidationError) -> Exception:
        if self.body_field is None or error.errors()[0]["loc"][0] != "body":
            return error
        problems = [{**problem, "loc": problem["loc"][1:]} for problem in error.errors()]
        model = cast(type[BaseModel], self.body_field.field_info.annotation)
        return of_validation(problems, model)


class _StrictRequest(Request):
    # Error of the body's JSON text, if it is not valid.
    refusal: ApiError | None = None

    async def body(self) -> bytes:
        if not hasattr(self, "_body"):
            _check_encoding(self)
            limit = self.app.state.max_body_bytes
            chunks, size = [], 0
            async for chunk in self.stream():
                chunks.append(chunk)
                size += len(chunk)
                if size > limit:
                    raise HTTPException(413, f"the body is larger than the {limit} bytes that this server accepts")
            self._body = b"".join(chunks)
        return self._body

    async def json(self) -> Any:
        large_bodies: LargeBodies = self.app.state.large_bodies
        try:
            return await large_bodies.parse(await self.body())
        except JsonTextError as error:
            self.refusal = of_json(error)
            raise json.JSONDecodeError("", "", 0) from None


def _check_encoding(request: Request) -> None:
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        message = "bodies are taken as they are: send it without `Content-Encoding`"
        raise ApiError(415, message, param="content-encoding", code="unsupported_encoding")
