"""`deployments.app:build_app`, the `import_path` of the config files: arguments in, Serve application out.

No `from __future__ import annotations` here: Serve finds the type of the arguments in the live annotation.
"""

from typing import cast

from ray import serve
from ray.serve import Application, Deployment
from ray.serve.config import RequestRouterConfig

from deployments.arguments import AppArguments, CompilerArguments
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


COMPILER_SETTINGS = {
    *("processes", "compile_timeout_s", "compile_cpu_s", "max_wait_s"),
    *("memory_limit_mb", "process_growth_mb", "options"),
}
"""Arguments of `GrammarCompiler` that have the same name in the config."""


def build_app(args: AppArguments) -> Application:
    """Router -> (GrammarCompiler, ModelReplica), and ModelReplica -> GrammarCompiler for the automata."""
    trusted = args.replica.engine.trust_remote_code
    compiler = grammar_compiler(args.compiler, args.model_source, args.store_url, trust_remote_code=trusted)
    kind = VllmReplica if args.replica.engine.kind == "vllm" else ModelReplica
    replica = (
        cast(Deployment, kind)
        .options(**args.replica.deployment_options(), user_config={"precompile": args.compiler.plain_precompile()})
        .bind(
            args.model_source,
            args.store_url,
            compiler,
            engine=args.replica.engine.model_dump(),
            process_growth_mb=args.replica.process_growth_mb,
        )
    )
    return router(args, compiler, replica)


def grammar_compiler(
    args: CompilerArguments,
    model_source: str,
    store_url: str,
    name: str = "GrammarCompiler",
    *,
    trust_remote_code: bool = False,
) -> Application:
    """The grammar tier of one model."""
    options = {"name": name, "request_router_config": BY_GRAMMAR_KEY, **args.deployment_options()}
    return serve.deployment(**options)(GrammarCompiler).bind(
        model_source,
        store_url,
        **args.model_dump(include=COMPILER_SETTINGS),
        precompile=args.plain_precompile(),
        trust_remote_code=trust_remote_code,
    )


def router(args: AppArguments, compiler: Application, replica: Application) -> Application:
    """The front over its two tiers."""
    return cast(Deployment, Router).options(**args.router.deployment_options()).bind(compiler, replica, args)
