"""`deployments.app:build_app`, the `import_path` of the config files: arguments in, Serve application out.

No `from __future__ import annotations` here: Serve finds the type of the arguments in the live annotation.
"""

from typing import cast

from ray import serve
from ray.serve import Application, Deployment
from ray.serve.config import RequestRouterConfig

from deployments.arguments import AppArguments
from deployments.routing.router import Router
from deployments.vllm.replica import VllmReplica
from gpu_workers.replica import ModelReplica
from grammar_workers.service.deployment import GrammarCompiler

# One key always meets the same compiler, whose caches know it; the next on the ring when that one is full.
BY_GRAMMAR_KEY = RequestRouterConfig.model_validate(
    {
        "request_router_class": "ray.serve.experimental.consistent_hash_router.ConsistentHashRouter",
        "request_router_kwargs": {"num_virtual_nodes": 100, "num_fallback_replicas": 1},
    }
)


def build_app(args: AppArguments) -> Application:
    """Router -> (GrammarCompiler, ModelReplica), and ModelReplica -> GrammarCompiler for the automata."""
    compiler_options = {"request_router_config": BY_GRAMMAR_KEY, **args.compiler.deployment_options()}
    compiler = serve.deployment(**compiler_options)(GrammarCompiler).bind(
        args.model_source,
        args.store_url,
        processes=args.compiler.processes,
        compile_timeout_s=args.compiler.compile_timeout_s,
        memory_limit_mb=args.compiler.memory_limit_mb,
        max_wait_s=args.compiler.max_wait_s,
        options=args.compiler.options.model_dump(),
        precompile=args.compiler.plain_precompile(),
    )
    kind = VllmReplica if args.replica.engine.kind == "vllm" else ModelReplica
    replica = (
        cast(Deployment, kind)
        .options(**args.replica.deployment_options(), user_config={"precompile": args.compiler.plain_precompile()})
        .bind(args.model_source, args.store_url, compiler, engine=args.replica.engine.model_dump())
    )
    return router(args, compiler, replica)


def router(args: AppArguments, compiler: Application, replica: Application) -> Application:
    """The front over its two tiers."""
    return cast(Deployment, Router).options(**args.router.deployment_options()).bind(compiler, replica, args)
