"""Builder of the Ray Serve application. A Serve config file names it as `import_path`: `deployments.app:build_app`.

`build_app` turns the `args` of a config file into three deployments: `Router` (HTTP), `GrammarCompiler` (compiles
constraints) and `ModelReplica` (runs the model).

This module must not use `from __future__ import annotations`. Serve reads the type of the arguments from the annotation
of `build_app`. This annotation must be a class, not a string.
"""

from typing import cast

from ray import serve
from ray.serve import Application, Deployment
from ray.serve.config import RequestRouterConfig

from deployments.arguments import AppArguments, CompilerArguments
from deployments.router import Router
from deployments.vllm.replica import VllmReplica
from gpu_workers.replica import ModelReplica
from grammar_workers.service.deployment import GrammarCompiler

# A grammar key is always sent to the same compiler, which has it in its caches. If that compiler is full, the key is
# sent to the next one on the ring.
BY_GRAMMAR_KEY = RequestRouterConfig.model_validate(
    {
        "request_router_class": "ray.serve.experimental.consistent_hash_router.ConsistentHashRouter",
        "request_router_kwargs": {"num_virtual_nodes": 100, "num_fallback_replicas": 1},
    }
)


# Arguments of `GrammarCompiler` that have the same name in the config.
COMPILER_SETTINGS = {
    *("processes", "compile_timeout_s", "compile_cpu_s", "queue_timeout_s"),
    *("memory_limit_mb", "process_growth_mb", "options"),
}


def build_app(args: AppArguments) -> Application:
    """Build the Serve application of one model: router, grammar compilers and model replicas.

    The router receives HTTP requests and calls both other deployments. A model replica calls a compiler if no cache has
    the compiled grammar (constraint on the output). `args.replica.engine.kind` selects the engine of the model
    replicas: `native` (Turnstile's own) or `vllm`.

    Args:
        args: Arguments of the application. Serve makes this object from `args` of the config file.

    Returns:
        The bound application, for `serve.run` or a config file. The router is its ingress deployment.
    """
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
    """Bind the deployment that compiles grammars (constraints on the output) for one model.

    Args:
        args: Number of replicas, limits and default options of the deployment.
        model_source: Absolute path of the model's folder, or Hugging Face ID. Grammars are compiled for its vocabulary.
        store_url: URL of the store of compiled grammars, such as `file:///folder` or `redis://host:port/0`.
        name: Name of the deployment in Ray Serve.
        trust_remote_code: True: Python code from the model's repository may run when the tokenizer is loaded.

    Returns:
        The bound deployment. Calls have a session ID: the grammar key, which is a hash of the constraint. Consistent
        hashing sends all calls with one session ID to one replica, whose caches then have the grammar.
    """
    options = {"name": name, "request_router_config": BY_GRAMMAR_KEY, **args.deployment_options()}
    return serve.deployment(**options)(GrammarCompiler).bind(
        model_source,
        store_url,
        **args.model_dump(include=COMPILER_SETTINGS),
        precompile=args.plain_precompile(),
        trust_remote_code=trust_remote_code,
    )


def router(args: AppArguments, compiler: Application, replica: Application) -> Application:
    """Bind the router (the HTTP ingress) to the deployments that it calls.

    Args:
        args: Arguments of the whole application. `args.router` has the number of replicas and the limits of the router.
        compiler: Bound deployment that compiles grammars.
        replica: Bound deployment of the model replicas.

    Returns:
        The bound application. The router is its ingress deployment.
    """
    return cast(Deployment, Router).options(**args.router.deployment_options()).bind(compiler, replica, args)
