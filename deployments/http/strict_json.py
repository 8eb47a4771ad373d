"""Request bodies: read up to a size, by a parser that refuses what Python's would let pass, and checked."""

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

LARGE_BYTES = 1 << 16
MOST = {"keys": 1 << 17, "objects and lists": 1 << 18}
"""A specification of the largest size has less, unless all its names are as short as names can be. What holds nothing
takes three bytes in a body and a hundred in memory, as long as the request runs.
"""
_SIGNS = {"keys": b":", "objects and lists": b"[{"}
_STRING_OR_SIGN = {
    what: re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[' + re.escape(signs) + rb"]", re.DOTALL)
    for what, signs in _SIGNS.items()
}
PAUSE_S_PER_BYTE = 25e-9
"""About as long as reading and checking takes: half of the time is for all others."""


class LargeBodies:
    """Lets one large body in at a time, after a pause: each keeps the event loop to itself while it is read."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def parse(self, body: bytes) -> Any:
        """The value. Raises `JsonTextError`."""
        if len(body) < LARGE_BYTES:
            return parse_json(body)
        async with self._turn:
            await asyncio.sleep(len(body) * PAUSE_S_PER_BYTE)
            _check_parts(body)
            # The caller goes on without another pause before the next body is let in.
            return parse_json(body)


def _check_parts(body: bytes) -> None:
    """Raises `JsonTextError` for a body of so many parts that to read and keep them would cost more than all else."""
    for what, most in MOST.items():
        if sum(body.count(sign) for sign in _SIGNS[what]) <= most:
            continue
        outside_of_strings = (one for one in _STRING_OR_SIGN[what].finditer(body) if one[0][:1] != b'"')
        if next(itertools.islice(outside_of_strings, most, None), None) is not None:
            raise JsonTextError(f"more than {most} {what}")


class StrictJsonRoute(APIRoute):
    """Reads bodies up to a size, with a parser that refuses NaN, lone surrogates, endless nesting and keys that stand
    twice, and tells what is wrong with them. The answer has a deadline, `request.state.deadline`.
    """

    def get_route_handler(self) -> Any:
        handler = super().get_route_handler()

        async def handle(request: Request) -> Any:
            strict = _StrictRequest(request.scope, request.receive)
            if self.body_field is not None:
                await strict.body()  # inside of the handler the framework would hide what is wrong with it
            # From here on nothing of the request waits on its client any more, but on this server.
            request.state.deadline = deadline = Deadline(request.app.state.timeout_s)
            try:
                async with deadline.bounds():
                    return await handler(strict)
            except RequestValidationError as error:
                refusal = strict.refusal or self._of_validation(error)
            raise refusal  # not as long as the error is there, which holds all that was in the body

        return handle

    def _of_validation(self, error: RequestValidationError) -> Exception:
        if self.body_field is None or error.errors()[0]["loc"][0] != "body":
            return error
        problems = [{**problem, "loc": problem["loc"][1:]} for problem in error.errors()]
        model = cast(type[BaseModel], self.body_field.field_info.annotation)
        return of_validation(problems, model)


class _StrictRequest(Request):
    refusal: ApiError | None = None
    """What is wrong with the body's JSON."""

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
