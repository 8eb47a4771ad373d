"""Turnstile without its grammar tier: model replicas that compile in their own process, as engines without one do.

    python -m benchmarks.in_replica CONFIG --port N

What `benchmarks.cold_storm` compares the tier with, and no way to serve: the launcher, with another application. Half
as many threads compile as there are CPUs, the share that vLLM gives its grammar backends.

No `from __future__ import annotations` here: Serve finds the type of the builder's arguments in the live annotation.
"""

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ray import serve
from ray.serve import Application
from ray.serve.handle import DeploymentHandle

from deployments import config_file
from deployments.app import router
from deployments.arguments import AppArguments
from deployments.local import launcher
from gpu_workers.replica import ModelReplica
from gpu_workers.request import GrammarReference
from grammar_workers import GrammarError, GrammarOptions, compile_grammar, warm_up, warm_up_formats
from grammar_workers.vocabulary.vocabulary import load_vocabulary


class NoCompilers:
    """Stands where the router expects the grammar tier, and calls every grammar ready."""

    def __init__(self, model: str, options: dict[str, Any]) -> None:
        self._info = {"vocabulary_fingerprint": load_vocabulary(model).fingerprint, "options": options}

    async def info(self) -> dict[str, Any]:
        return self._info

    async def compile(self, key: str, *_: Any) -> dict[str, Any]:
        return {"key": key, "status": "ready", "source": "replica", "notes": []}


class CompilingReplica(ModelReplica.func_or_class):  # type: ignore[name-defined, misc]
    """A model replica that asks itself."""

    def __init__(self, model: str, store_url: str, compiler: DeploymentHandle, *, engine: dict[str, Any]) -> None:
        self._compilers = ThreadPoolExecutor(max(1, ((os.cpu_count() or 1) + 1) // 2))
        self._vocabulary = load_vocabulary(model)
        warm_up(self._vocabulary)
        warm_up_formats(self._vocabulary)
        super().__init__(model, store_url, compiler, engine=engine)

    async def _ask_compiler(self, grammar: GrammarReference, anew: bool) -> bytes | dict[str, Any]:
        del anew  # nothing is stored
        assert grammar.specification is not None
        try:
            return await asyncio.get_running_loop().run_in_executor(self._compilers, self._compile, grammar)
        except GrammarError as error:
            return {"status": "refused", "error": error.to_dict()}

    def _compile(self, grammar: GrammarReference) -> bytes:
        return compile_grammar(grammar.specification, self._vocabulary, options=GrammarOptions()).to_bytes()


def build_app(args: AppArguments) -> Application:
    """Router -> CompilingReplica."""
    compilers = serve.deployment(name="GrammarCompiler", num_replicas=1, ray_actor_options={"num_cpus": 0})(NoCompilers)
    compiler = compilers.bind(args.model_source, args.compiler.options.model_dump())
    replicas = serve.deployment(name="ModelReplica", **args.replica.deployment_options())(CompilingReplica)
    replica = replicas.options(user_config={"precompile": []}).bind(
        args.model_source, args.store_url, compiler, engine=args.replica.engine.model_dump()
    )
    return router(args, compiler, replica)


if __name__ == "__main__":
    config_file.IMPORT_PATH = "benchmarks.in_replica:build_app"
    launcher.main()
