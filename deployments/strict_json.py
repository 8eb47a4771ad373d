"""Request bodies: read up to a size, by a parser that refuses what Python's would let pass."""

from __future__ import annotations

import json
from typing import Any

from fastapi import HTTPException, Request
from fastapi.routing import APIRoute
from pydantic_core import from_json


class StrictJsonRoute(APIRoute):
    """Reads bodies up to a size, with a parser that refuses NaN, lone surrogates and endless nesting."""

    def get_route_handler(self) -> Any:
        handler = super().get_route_handler()

        async def handle(request: Request) -> Any:
            return await handler(_StrictRequest(request.scope, request.receive))

        return handle


class _StrictRequest(Request):
    async def body(self) -> bytes:
        if not hasattr(self, "_body"):
            limit = self.app.state.max_body_bytes
            body = bytearray()
            async for chunk in self.stream():
                body += chunk
                if len(body) > limit:
                    raise HTTPException(413, f"the body is larger than the {limit} bytes that this server accepts")
            self._body = bytes(body)
        return self._body

    async def json(self) -> Any:
        body = await self.body()
        try:
            return from_json(body, allow_inf_nan=False)
        except ValueError as error:
            raise json.JSONDecodeError(str(error), "", 0) from error
