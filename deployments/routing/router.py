"""The Serve ingress deployment: an HTTP application over handles to the two tiers."""

from __future__ import annotations

from typing import Literal

from fastapi import FastAPI
from ray import serve
from ray.serve.handle import DeploymentHandle

from deployments.arguments import RateLimit, ThinkingArguments
from deployments.chat.tool_formats import ToolFormatName
from deployments.http.app import create_http_app
from deployments.http.tenants import Tenants
from deployments.routing.service import Service
from deployments.routing.tiers import Tiers
from grammar_workers.service.gc_control import collect_seldom


@serve.deployment(name="Router")
@serve.ingress()
class Router:
    """Composes the tiers. It holds no state of a request but its open connection."""

    def __init__(
        self,
        compiler: DeploymentHandle,
        replica: DeploymentHandle,
        *,
        model: str,
        max_body_bytes: int,
        body_timeout_s: float,
        api_keys: str | None,
        tool_format: ToolFormatName | Literal["auto"],
        thinking: ThinkingArguments | Literal["auto", "off"],
        max_prompt_bytes: int,
        rate_limit: RateLimit | None,
        new_grammars: int,
    ) -> None:
        self._service = Service(
            Tiers(compiler, replica, new_grammars=new_grammars),
            model=model,
            tool_format=tool_format,
            thinking=thinking,
            max_prompt_bytes=max_prompt_bytes,
        )
        self._rate_limit = rate_limit
        self._tenants = Tenants.from_file(api_keys)
        self._max_body_bytes = max_body_bytes
        self._body_timeout_s = body_timeout_s

    def __serve_build_asgi_app__(self) -> FastAPI:
        """Called by Serve after the constructor (`serve.ingress` without an application)."""
        app = create_http_app(
            self._service,
            max_body_bytes=self._max_body_bytes,
            body_timeout_s=self._body_timeout_s,
            tenants=self._tenants,
            rate_limit=self._rate_limit,
        )
        collect_seldom()
        return app
