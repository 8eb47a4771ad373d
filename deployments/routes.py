"""FastAPI application of the router (the HTTP ingress): paths, request bodies, response models and error handlers.

Methods of `Service` handle most paths and call the other deployments. This module itself does not use Ray Serve.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, FastAPI, Response
from fastapi.responses import HTMLResponse
from fastapi.routing import APIRoute

from deployments.anthropic.answer import MessageAnswer, TokenCount
from deployments.arguments import RouterArguments
from deployments.explorer import explorer
from deployments.http.body_arrival import BodyArrival
from deployments.http.documentation import add_documentation
from deployments.http.errors import ERRORS, GENERATION, ErrorBody, in_anthropics_words, install_error_handlers
from deployments.http.limits import RateLimits
from deployments.http.outcomes import Outcomes
from deployments.http.strict_json import LargeBodies, StrictJsonRoute
from deployments.http.tenants import Tenants, Visitor
from deployments.openai.completions import ChatCompletion, TextCompletion
from deployments.openai.responses.answer import Response as ResponseModel
from deployments.routing.grammars import grammar_routes
from deployments.routing.service import Health, ModelCard, ModelList, Service
from deployments.status.page import HEADERS, status_page
from deployments.tokens.body import Detokenized, Tokens
from deployments.version import version

MESSAGES, COUNT = in_anthropics_words(GENERATION), in_anthropics_words(ERRORS)
# Number of bodies of the maximum size that may arrive at the same time.
BODIES = 64


def create_http_app(service: Service, args: RouterArguments, tenants: Tenants) -> FastAPI:
    """Create the HTTP application of one router replica (process of the HTTP ingress).

    Args:
        service: Request handlers of the paths, such as `/v1/chat/completions`.
        args: Limits on request bodies, on streams, and on the requests of each tenant (client).
        tenants: Lookup of the tenant that owns an API key.

    Returns:
        The application, with error handlers, middleware, the OpenAPI pages and the page `/explorer`.
    """
    app = FastAPI(
        title="Turnstile",
        version=version(),
        description="LLM serving with structured output: a response with `finish_reason: stop` matches the requested "
        "constraint. Other pages: [status](/), [explorer](/explorer/).",
        license_info={"name": "Apache-2.0"},
        docs_url=None,  # FastAPI's pages load their scripts from other hosts
        redoc_url=None,
    )
    app.add_middleware(BodyArrival, deadline_s=args.body_timeout_s, room_bytes=BODIES * args.max_body_bytes)
    app.state.max_body_bytes = args.max_body_bytes
    app.state.timeout_s = args.timeout_s
    app.state.stream_timeout_s = args.stream_timeout_s
    app.state.large_bodies = LargeBodies()
    app.state.tenants = tenants
    app.state.rate_limits = RateLimits(args.rate_limit, args.most_replicas)
    routers = _service_routes(service), grammar_routes(service.grammars)
    for router in routers:
        app.include_router(router)
    paths = {route.path for router in routers for route in router.routes if isinstance(route, APIRoute)}
    app.state.paths = sorted(path for path in paths - {"/"} if "{" not in path)
    add_documentation(app)
    app.mount("/explorer", explorer())
    install_error_handlers(app)
    app.add_middleware(Outcomes)
    return app


def _service_routes(service: Service) -> APIRouter:
    """Return the routes of all paths except `/v1/grammars`."""
    api = APIRouter(route_class=StrictJsonRoute)

    completions: dict[str, Any] = {"responses": GENERATION, "tags": ["completions"]}
    tokens: dict[str, Any] = {"responses": ERRORS, "tags": ["tokens"]}
    server: dict[str, Any] = {"responses": ERRORS, "tags": ["server"]}
    api.post("/v1/chat/completions", response_model=ChatCompletion, **completions)(service.chat_completions)
    api.post("/v1/completions", response_model=TextCompletion, **completions)(service.completions)
    api.get("/v1/models", response_model=ModelList, **server)(service.models)
    api.get("/v1/models/{name:path}", name="model", response_model=ModelCard, **server)(service.model_card)
    api.head("/health", include_in_schema=False)(service.health)
    api.get("/health", response_model=Health, responses={503: {"model": ErrorBody}}, tags=["server"])(service.health)
    api.post("/v1/responses", response_model=ResponseModel, **completions)(service.responses)
    api.post("/v1/messages", response_model=MessageAnswer, responses=MESSAGES, tags=["completions"])(service.messages)
    api.post("/v1/messages/count_tokens", response_model=TokenCount, responses=COUNT, tags=["tokens"])(
        service.count_tokens
    )
    api.post("/tokenize", response_model=Tokens, **tokens)(service.tokenize)
    api.post("/detokenize", response_model=Detokenized, **tokens)(service.detokenize)

    @api.get("/", include_in_schema=False)
    async def status(visitor: Visitor) -> Response:
        """Return the status page as HTML."""
        reports = None if visitor is None else await service.reports.get()
        tenant = None if visitor is None or visitor.administrator else visitor.name
        page = status_page(service.model, version(), reports, service.seen_grammars, tenant)
        return HTMLResponse(page, headers=HEADERS)

    return api
