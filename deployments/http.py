"""The HTTP application: paths, parsing, statuses. It knows the tiers only through `Tiers`, and nothing of Serve."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import json
import re
import time
import uuid
from contextlib import aclosing
from typing import Any, Literal

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel
from starlette.types import Send

from deployments.arguments import MAX_PROMPT_BYTES, RateLimit
from deployments.errors import ERRORS, ApiError, ErrorBody, install_error_handlers
from deployments.explorer import explorer
from deployments.generation import Grammar, Tiers
from deployments.grammar_keys import GrammarKeys
from deployments.grammars import Grammars, grammar_routes
from deployments.limits import LimitedCaller, RateLimits
from deployments.protocol import ChatCompletionBody, CompletionBody, GenerationBody
from deployments.responses import Answer, ChatCompletion, TextCompletion
from deployments.strict_json import StrictJsonRoute
from deployments.tenants import Caller, Tenant, Tenants
from deployments.tool_calls import ToolCallParser
from deployments.tool_formats import ToolFormatName
from deployments.tools import ToolDialect

HEALTH_TIMEOUT_S = 5.0
REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")


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

    def __init__(
        self,
        tiers: Tiers,
        *,
        model: str,
        tool_format: ToolFormatName | Literal["auto"] = "auto",
        max_prompt_bytes: int = MAX_PROMPT_BYTES,
    ) -> None:
        self._tiers = tiers
        self._model = model
        self._started = int(time.time())
        self._tool_format = tool_format
        self._max_prompt_bytes = max_prompt_bytes
        self._dialect: ToolDialect | None = None
        self._keys = GrammarKeys(tiers)
        self.grammars = Grammars(tiers, self._keys)

    async def answer(self, body: GenerationBody, request: Request, tenant: Tenant) -> Response:
        """Both completion endpoints."""
        if body.model not in (None, self._model):
            raise ApiError(404, f"the model `{body.model}` does not exist", param="model", code="model_not_found")
        request_id = _request_id(request)
        grammar = await self._grammar(body, tenant)
        drawn_seed = _drawn_seed(request_id)
        # Clients choose ids, also those of others: what the replicas go by is made here.
        generation_request = body.generation_request(uuid.uuid4().hex, drawn_seed=drawn_seed)
        calls = None
        if isinstance(body, ChatCompletionBody) and body.speaks_of_tools:
            dialect, offer = await self._tool_dialect(), body.offer()
            generation_request |= dialect.prompt_fields(body.template_messages(), offer)
            if offer is not None:
                generation_request["special_token_text"] = True
                calls = functools.partial(ToolCallParser, dialect.format, drawn_seed)
        self._check_prompt(generation_request)
        generation = await self._tiers.start_generation(generation_request, grammar, choices=body.choices)
        answer = Answer(
            generation,
            request_id=request_id,
            model=self._model,
            chat=isinstance(body, ChatCompletionBody),
            logprobs=body.top_logprobs_wanted() is not None,
            calls=calls,
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

    def _check_prompt(self, generation_request: dict[str, Any]) -> None:
        """Raises `ApiError` 400 for a prompt that would keep the tokenizer busy for long."""
        param = "prompt" if generation_request["messages"] is None else "messages"
        parts = [generation_request[param], generation_request.get("tools")]
        size = sum(len(json.dumps(part, ensure_ascii=False).encode()) for part in parts if part is not None)
        if size > self._max_prompt_bytes:
            message = f"the prompt has {size} bytes, more than the {self._max_prompt_bytes} that this server accepts"
            raise ApiError(400, message, param=param, code="prompt_too_large")

    async def _tool_dialect(self) -> ToolDialect:
        if self._dialect is None:
            template = (await self._tiers.replica_info())["chat_template"]
            self._dialect = ToolDialect.of_model(self._tool_format, template)
        return self._dialect

    async def _grammar(self, body: GenerationBody, tenant: Tenant) -> Grammar | None:
        if (key := body.grammar_key()) is not None:
            return Grammar(key, None, "structured_outputs", tenant.name)
        if isinstance(body, ChatCompletionBody) and (offer := body.offer()) is not None:
            specification = (await self._tool_dialect()).specification(offer)
            return await self._keys.grammar(specification, "tools", tenant.name, offer.places())
        if (asked := body.specification()) is None:
            return None
        return await self._keys.grammar(*asked, tenant.name)


class EventStream(StreamingResponse):
    """A stream whose source is closed at once when the client goes away, wherever the response stands."""

    async def stream_response(self, send: Send) -> None:
        async with aclosing(self.body_iterator):  # type: ignore[type-var]
            await super().stream_response(send)


def create_http_app(
    service: Service, *, max_body_bytes: int, tenants: Tenants, rate_limit: RateLimit | None = None
) -> FastAPI:
    """The application around `service`; bodies above `max_body_bytes` are answered with 413."""
    api = APIRouter(route_class=StrictJsonRoute)

    @api.post("/v1/chat/completions", response_model=ChatCompletion, responses=ERRORS, tags=["completions"])
    async def chat_completions(body: ChatCompletionBody, request: Request, tenant: LimitedCaller) -> Response:
        """Answer a conversation, under a constraint if one is given."""
        return await service.answer(body, request, tenant)

    @api.post("/v1/completions", response_model=TextCompletion, responses=ERRORS, tags=["completions"])
    async def completions(body: CompletionBody, request: Request, tenant: LimitedCaller) -> Response:
        """Continue a prompt, under a constraint if one is given."""
        return await service.answer(body, request, tenant)

    @api.get("/v1/models", response_model=ModelList, tags=["server"])
    async def models(tenant: Caller) -> dict[str, Any]:
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
    app.state.tenants = tenants
    app.state.rate_limits = RateLimits(rate_limit)
    app.include_router(api)
    app.include_router(grammar_routes(service.grammars))
    app.mount("/explorer", explorer())
    install_error_handlers(app)
    return app


def _request_id(request: Request) -> str:
    """The answer's id: the request's `x-request-id`, which Serve makes when the client sends none, and returns."""
    given = request.headers.get("x-request-id")
    if given is None:
        return uuid.uuid4().hex
    if REQUEST_ID.fullmatch(given) is None:
        message = "`x-request-id` takes up to 128 letters, digits and . _ : / + = -"
        raise ApiError(400, message, param="x-request-id", code="invalid_value")
    return given


def _drawn_seed(request_id: str) -> int:
    """The seed of a request that gives none: repeated with its id it gives the same tokens, whatever broke before."""
    return int.from_bytes(hashlib.sha256(request_id.encode()).digest()[:8], "big") >> 1
