"""The Serve ingress deployment: an HTTP application over handles to the two tiers."""

from __future__ import annotations

from fastapi import FastAPI
from ray import serve
from ray.serve.handle import DeploymentHandle

from deployments.arguments import AppArguments
from deployments.http.app import create_http_app
from deployments.http.tenants import Tenants
from deployments.routing.service import Service
from deployments.routing.tiers import Tiers
from grammar_workers.gc_control import collect_seldom
from grammar_workers.service.logs import log_as_serve_does
from grammar_workers.service.memory_guard import GUARD


@serve.deployment(name="Router")
@serve.ingress()
class Router:
    """Composes the tiers. It holds no state of a request but its open connection."""

    def __init__(self, compiler: DeploymentHandle, replica: DeploymentHandle, args: AppArguments) -> None:
        log_as_serve_does()
        # Two for each compile process: one is done, the next is there.
        at_once = args.compiler.processes * args.compiler.most_replicas
        self._tiers = Tiers(compiler, replica, new_grammars=2 * at_once, routers=args.router.most_replicas)
        self._service = Service(self._tiers, args)
        self._tenants = Tenants.from_file(args.router.api_keys)
        self._args = args.router
        GUARD.start(args.router.process_growth_mb)

    async def check_health(self) -> None:
        """Called by Serve every few seconds: tell the compilers how much of their demand waits in this router."""
        await self._tiers.report_held_back()

    def __serve_build_asgi_app__(self) -> FastAPI:
        """Called by Serve after the constructor (`serve.ingress` without an application)."""
        app = create_http_app(self._service, self._args, self._tenants)
        collect_seldom()
        return app
