"""The HTTP application over fake tiers, and a client of it."""

from __future__ import annotations

from typing import Any, Literal

import httpx
from fastapi import FastAPI

from deployments.arguments import AppArguments, ReplicaArguments, RouterArguments, ThinkingArguments
from deployments.chat.tool_formats import ToolFormatName
from deployments.http.tenants import Tenants
from deployments.routes import create_http_app
from deployments.routing.service import Service
from deployments.routing.tiers import Tiers
from tests.deployments.fakes import FakeCompiler, FakeReplica

MAX_BODY_BYTES = 100_000
BODY_TIMEOUT_S = 60.0
NEW_GRAMMARS = 2


def application(
    compiler: FakeCompiler,
    replica: FakeReplica,
    *,
    tenants: Tenants | None = None,
    tool_format: ToolFormatName | Literal["auto"] = "auto",
    thinking: ThinkingArguments | Literal["auto", "off"] = "auto",
    engine: dict[str, Any] | None = None,
    model: str = "tiny",
    **router: Any,
) -> FastAPI:
    """Serves `model`; `engine`: settings of the replicas', `router`: fields of `RouterArguments`."""
    limits = {"max_body_bytes": MAX_BODY_BYTES, "body_timeout_s": BODY_TIMEOUT_S, **router}
    args = AppArguments(
        model=model,
        tool_format=tool_format,
        thinking=thinking,
        router=RouterArguments.model_validate(limits),
        replica=ReplicaArguments.model_validate({"engine": engine or {}}),
    )
    service = Service(Tiers(compiler.handle, replica.handle, new_grammars=NEW_GRAMMARS), args)
    return create_http_app(service, args.router, tenants or Tenants())


def client_of(app: FastAPI) -> httpx.AsyncClient:
    """A client that sees faults of the application as it would over a network."""
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://turnstile")
