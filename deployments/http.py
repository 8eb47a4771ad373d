"""The HTTP application: paths, parsing, statuses. It knows the tiers only through `Tiers`, and nothing of Serve."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
import uuid
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, FastAPI, HTTPException, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic_core import from_json
from starlette.types import Send

from deployments.errors import ApiError, ErrorBody, install_error_handlers
from deployments.generation import Grammar, Tiers
from deployments.protocol import ChatCompletionBody, CompletionBody, GenerationBody
from deployments.responses import Answer, ChatCompletion, TextCompletion
from grammar_workers import GrammarError, GrammarOptions, grammar_key

HEALTH_TIMEOUT_S = 5.0

ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorBody, "description": "The request or its grammar specification is at fault; says where."},
    404: {"model": ErrorBody, "description": "No such model or path."},
    413: {"model": ErrorBody, "description": "The body is too large."},
    429: {"model": ErrorBody, "description": "The server is at its capacity; see `Retry-After`."},
    500: {"model": ErrorBody, "description": "A fault of the server."},
}


class ModelCard(BaseModel):
    """One served model."""

    id: str
    object: str
    created: int
    owned_by: str
    max_model_len: int


class ModelList(BaseModel):
    """Answer of `GET /v1/models`."""

    object: str
    data: list[ModelCard]


class Health(BaseModel):
    """Answer of `GET /health`."""

    status: str


class Service:
    """What the paths do; one per router replica."""

    def __init__(self, tiers: Tiers, *, model: str) -> None:
        self._tiers = tiers
        self._model = model
        self._started = int(time.time())
        self._grammar_settings: tuple[str, GrammarOptions] | None = None

    async def answer(self, body: GenerationBody, request: Request) -> Response:
        """Both completion endpoints."""
        if body.model not in (None, self._model):
            raise ApiError(404, f"the model `{body.model}` does not exist", param="model", code="model_not_found")
        request_id = uuid.uuid4().hex
        grammar = await self._grammar(body)
        generation_request = body.generation_request(request_id, drawn_seed=_drawn_seed(request))
        generation = await self._tiers.start_generation(generation_request, grammar, choices=body.choices)
        answer = Answer(
            generation,
            request_id=request_id,
            model=self._model,
            chat=isinstance(body, ChatCompletionBody),
            logprobs=body.top_logprobs_wanted() is not None,
        )
        if body.stream:
            return EventStream(answer.blocks(include_usage=body.include_usage), media_type="text/event-stream")
        return JSONResponse(await answer.whole())

    async def models(self) -> dict[str, Any]:
        info = await self._tiers.replica_info()
        card = ModelCard(
            id=self._model,
            object="model",
            created=self._started,
            owned_by="turnstile",
            max_model_len=info["max_length"],
        )
        return ModelList(object="list", data=[card]).model_dump()

    async def health(self) -> dict[str, str]:
        """Raises 503 unless both tiers answer. Their replicas join the routing table only once they are warm."""
        try:
            async with asyncio.timeout(HEALTH_TIMEOUT_S):
                await asyncio.gather(self._tiers.compiler_info(), self._tiers.replica_info())
        except ApiError as error:
            if error.status != 429:  # full means working
                raise
        except Exception as error:
            raise ApiError(503, "not ready", code="not_ready") from error
        return {"status": "ok"}

    async def _grammar(self, body: GenerationBody) -> Grammar | None:
        if (asked := body.specification()) is None:
            return None
        specification, param = asked
        fingerprint, options = await self._settings()
        try:
            key = grammar_key(specification, fingerprint, options)
        except GrammarError as error:
            raise ApiError.of_grammar(error.to_dict(), param=param) from error
        return Grammar(key, specification.model_dump(by_alias=True), param)

    async def _settings(self) -> tuple[str, GrammarOptions]:
        """What the key depends on besides the specification; the same for the life of the application."""
        if self._grammar_settings is None:
            info = await self._tiers.compiler_info()
            self._grammar_settings = info["vocabulary_fingerprint"], GrammarOptions.model_validate(info["options"])
        return self._grammar_settings


class EventStream(StreamingResponse):
    """A stream whose source is closed at once when the client goes away, wherever the response stands."""

    async def stream_response(self, send: Send) -> None:
        async with aclosing(self.body_iterator):  # type: ignore[type-var]
            await super().stream_response(send)


class StrictJsonRoute(APIRoute):
    """Reads bodies up to a size, with a parser that refuses NaN, lone surrogates and endless nesting."""

    def get_route_handler(self) -> Any:
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
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


def create_http_app(service: Service, *, max_body_bytes: int) -> FastAPI:
    """The application around `service`; bodies above `max_body_bytes` are answered with 413."""
    api = APIRouter(route_class=StrictJsonRoute)

    @api.post("/v1/chat/completions", response_model=ChatCompletion, responses=ERRORS, tags=["completions"])
    async def chat_completions(body: ChatCompletionBody, request: Request) -> Response:
        """Answer a conversation, under a constraint if one is given."""
        return await service.answer(body, request)

    @api.post("/v1/completions", response_model=TextCompletion, responses=ERRORS, tags=["completions"])
    async def completions(body: CompletionBody, request: Request) -> Response:
        """Continue a prompt, under a constraint if one is given."""
        return await service.answer(body, request)

    @api.get("/v1/models", response_model=ModelList, tags=["server"])
    async def models() -> dict[str, Any]:
        """The served models."""
        return await service.models()

    @api.get("/health", response_model=Health, responses={503: {"model": ErrorBody}}, tags=["server"])
    async def health() -> dict[str, str]:
        """200 once the next request will be answered at full speed."""
        return await service.health()

    app = FastAPI(
        title="Turnstile",
        description="Structured-output LLM serving: what leaves with `finish_reason: stop` matches what you asked for.",
        license_info={"name": "Apache-2.0"},
    )
    app.state.max_body_bytes = max_body_bytes
    app.include_router(api)
    install_error_handlers(app)
    return app


def _drawn_seed(request: Request) -> int:
    """The seed of a request that gives none, derived from its `x-request-id`.

    Serve makes that id when the client sends none, and returns it: repeating a request with its id gives the same
    tokens, also after the connection broke.
    """
    request_id = request.headers.get("x-request-id") or uuid.uuid4().hex
    return int.from_bytes(hashlib.sha256(request_id.encode()).digest()[:8], "big") >> 1
