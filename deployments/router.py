"""Ray Serve deployment `Router`: receives HTTP requests, and calls the grammar compilers and model replicas."""

from __future__ import annotations

from fastapi import FastAPI
from ray import serve
from ray.serve.handle import DeploymentHandle

from deployments.arguments import AppArguments
from deployments.http.tenants import Tenants
from deployments.routes import create_http_app
from deployments.routing.service import Service
from deployments.routing.tiers import Tiers
from grammar_workers.gc_control import collect_seldom
from grammar_workers.service.logs import log_as_serve_does
from grammar_workers.service.memory_guard import GUARD


@serve.deployment(name="Router")
@serve.ingress()
class Router:
    """Ray Serve deployment that answers HTTP requests. It calls the grammar compilers and the model replicas.

    If a router process dies, only its open connections and its caches are lost.

    Args:
        compiler: Handle of the deployment `GrammarCompiler`.
        replica: Handle of the deployment `ModelReplica`.
        args: Arguments of the whole application. The constructor raises `ValueError` if the file `args.router.api_keys`
            is invalid.
    """

    def __init__(self, compiler: DeploymentHandle, replica: DeploymentHandle, args: AppArguments) -> None:
        log_as_serve_does()
        # Two grammars for each compile worker: when one is compiled, the next one is waiting already.
        at_once = args.compiler.processes * args.compiler.most_replicas
        self._tiers = Tiers(compiler, replica, new_grammars=2 * at_once, routers=args.router.most_replicas)
        self._service = Service(self._tiers, args)
        self._tenants = Tenants.from_file(args.router.api_keys)
        self._args = args.router
        GUARD.start(args.router.process_growth_mb)

    async def check_health(self) -> None:
        """Report to the compilers how many grammars (constraints) wait in this router, for autoscaling.

        Ray Serve calls this method every few seconds as the health check. The method raises no error, so a router that
        responds counts as healthy.
        """
        await self._tiers.report_held_back()

    def __serve_build_asgi_app__(self) -> FastAPI:
        """Return the HTTP application (ASGI). Ray Serve calls this method once, after the constructor."""
        app = create_http_app(self._service, self._args, self._tenants)
        collect_seldom()
        return app
