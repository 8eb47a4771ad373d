"""The HTTP application: paths, parsing, statuses. It knows the tiers only through `Service`, and nothing of Serve."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body, FastAPI, Path, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse
from fastapi.routing import APIRoute

from deployments.anthropic.answer import MessageAnswer, TokenCount
from deployments.anthropic.body import CountTokensBody, MessagesBody
from deployments.arguments import RouterArguments
from deployments.explorer import explorer
from deployments.http import examples
from deployments.http.body_arrival import BodyArrival
from deployments.http.documentation import add_documentation
from deployments.http.errors import ERRORS, GENERATION, ErrorBody, in_anthropics_words, install_error_handlers
from deployments.http.limits import LimitedCaller, RateLimits
from deployments.http.outcomes import Outcomes
from deployments.http.strict_json import LargeBodies, StrictJsonRoute
from deployments.http.tenants import Caller, Tenant, Tenants, Visitor
from deployments.openai.completions import ChatCompletion, TextCompletion
from deployments.openai.protocol import ChatCompletionBody, CompletionBody, GenerationBody
from deployments.openai.responses.answer import Response as ResponseModel
from deployments.openai.responses.body import ResponsesBody
from deployments.routing.grammars import grammar_routes
from deployments.routing.service import Health, ModelCard, ModelList, Service
from deployments.status.page import HEADERS, status_page
from deployments.tokens.body import DetokenizeBody, Detokenized, TokenizeBody, Tokens
from deployments.version import version

MESSAGES, COUNT = in_anthropics_words(GENERATION), in_anthropics_words(ERRORS)
BODIES = 64
"""How many of the largest bodies may be arriving at the same time."""


def create_http_app(service: Service, args: RouterArguments, tenants: Tenants) -> FastAPI:
    """The application around `service`."""
    api = APIRouter(route_class=StrictJsonRoute)

    @api.post("/v1/chat/completions", response_model=ChatCompletion, responses=GENERATION, tags=["completions"])
    async def chat_completions(
        body: Annotated[ChatCompletionBody, Body(openapi_examples=examples.CHAT_COMPLETIONS)],
        request: Request,
        tenant: LimitedCaller,
    ) -> Response:
        """Answer a conversation, under a constraint if one is given."""
        _count_sequences(body, request, tenant)
        return await service.answer(body, request, tenant)

    @api.post("/v1/completions", response_model=TextCompletion, responses=GENERATION, tags=["completions"])
    async def completions(
        body: Annotated[CompletionBody, Body(openapi_examples=examples.COMPLETIONS)],
        request: Request,
        tenant: LimitedCaller,
    ) -> Response:
        """Continue a prompt, under a constraint if one is given."""
        _count_sequences(body, request, tenant)
        return await service.answer(body, request, tenant)

    @api.get("/v1/models", response_model=ModelList, responses=ERRORS, tags=["server"])
    async def models(tenant: Caller) -> dict[str, Any]:
        """The served models."""
        return await service.models()

    @api.get("/v1/models/{name:path}", response_model=ModelCard, responses=ERRORS, tags=["server"])
    async def model(
        name: Annotated[str, Path(description="A name from `/v1/models`.")], tenant: Caller
    ) -> dict[str, Any]:
        """One served model."""
        return await service.model_card(name)

    @api.head("/health", include_in_schema=False)
    @api.get("/health", response_model=Health, responses={503: {"model": ErrorBody}}, tags=["server"])
    async def health() -> dict[str, str]:
        """200 once the next request will be answered at full speed."""
        return await service.health()

    @api.post("/v1/responses", response_model=ResponseModel, responses=GENERATION, tags=["completions"])
    async def responses(
        body: Annotated[ResponsesBody, Body(openapi_examples=examples.RESPONSES)],
        request: Request,
        tenant: LimitedCaller,
    ) -> Response:
        """Answer a conversation in the shape of OpenAI's newer endpoint, under a constraint if one is given."""
        return await service.respond(body, request, tenant)

    @api.post("/v1/messages", response_model=MessageAnswer, responses=MESSAGES, tags=["completions"])
    async def messages(
        body: Annotated[MessagesBody, Body(openapi_examples=examples.MESSAGES)],
        request: Request,
        tenant: LimitedCaller,
    ) -> Response:
        """Answer a conversation in the shape of Anthropic's API, under a constraint if one is given."""
        return await service.message(body, request, tenant)

    @api.post("/v1/messages/count_tokens", response_model=TokenCount, responses=COUNT, tags=["tokens"])
    async def count_tokens(
        body: Annotated[CountTokensBody, Body(openapi_examples=examples.COUNT_TOKENS)], tenant: LimitedCaller
    ) -> Response:
        """How many tokens the prompt of a message would have."""
        return JSONResponse(await service.count_tokens(body, tenant))

    @api.post("/tokenize", response_model=Tokens, responses=ERRORS, tags=["tokens"])
    async def tokenize(
        body: Annotated[TokenizeBody, Body(openapi_examples=examples.TOKENIZE)], tenant: LimitedCaller
    ) -> Response:
        """The tokens of a prompt; of a conversation those that a chat completion would count."""
        return JSONResponse(await service.tokenize(body, tenant))

    @api.post("/detokenize", response_model=Detokenized, responses=ERRORS, tags=["tokens"])
    async def detokenize(
        body: Annotated[DetokenizeBody, Body(openapi_examples=examples.DETOKENIZE)], tenant: LimitedCaller
    ) -> Response:
        """The text of tokens."""
        return JSONResponse(await service.detokenize(body, tenant))

    @api.get("/", include_in_schema=False)
    async def status(visitor: Visitor) -> Response:
        """What runs, for people."""
        reports = None if visitor is None else await service.reports.get()
        tenant = None if visitor is None or visitor.administrator else visitor.name
        page = status_page(service.model, version(), reports, service.seen_grammars, tenant)
        return HTMLResponse(page, headers=HEADERS)

    app = FastAPI(
        title="Turnstile",
        version=version(),
        description="Structured-output LLM serving: what leaves with `finish_reason: stop` matches what you asked for."
        " Other pages: [status](/), [explorer](/explorer/).",
        license_info={"name": "Apache-2.0"},
        docs_url=None,  # they load their scripts from elsewhere
        redoc_url=None,
    )
    app.add_middleware(BodyArrival, deadline_s=args.body_timeout_s, room_bytes=BODIES * args.max_body_bytes)
    app.state.max_body_bytes = args.max_body_bytes
    app.state.timeout_s = args.timeout_s
    app.state.stream_timeout_s = args.stream_timeout_s
    app.state.large_bodies = LargeBodies()
    app.state.tenants = tenants
    app.state.rate_limits = RateLimits(args.rate_limit, args.most_replicas)
    routers = api, grammar_routes(service.grammars)
    for router in routers:
        app.include_router(router)
    paths = {route.path for router in routers for route in router.routes if isinstance(route, APIRoute)}
    app.state.paths = sorted(path for path in paths - {"/"} if "{" not in path)
    add_documentation(app)
    app.mount("/explorer", explorer())
    install_error_handlers(app)
    app.add_middleware(Outcomes)
    return app


def _count_sequences(body: GenerationBody, request: Request, tenant: Tenant) -> None:
    """Each particle counts as a request; the first has been counted."""
    rate_limits: RateLimits = request.app.state.rate_limits
    rate_limits.charge(tenant, body.sequences - 1)
