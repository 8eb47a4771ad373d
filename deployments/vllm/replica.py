"""Ray Serve deployment of a model replica that runs vLLM (`replica.engine.kind: vllm` in the config file)."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from ray import serve
from ray.serve.handle import DeploymentHandle
from transformers import AutoTokenizer

from deployments.vllm.engine import VllmEngine
from gpu_workers.config import VllmEngineConfig
from gpu_workers.replica import Replica
from gpu_workers.request import GrammarReference
from grammar_workers.logs import SERVE, get_logger
from grammar_workers.vocabulary.vocabulary import load_vocabulary

logger = get_logger(SERVE)

_LAST_WORDS_S = 1.0


@serve.deployment(name="ModelReplica")
class VllmReplica(Replica):
    """Model replica that runs vLLM. The constructor loads the model, which may take minutes.

    Args:
        model: Folder or Hugging Face ID of the model.
        store_url: URL of the store of compiled grammars.
        compiler: Handle of the deployment `GrammarCompiler`.
        engine: Fields of `VllmEngineConfig` as plain data.
        process_growth_mb: Maximum growth of the memory of this process after its start, in MiB. Above the maximum,
            requests are rejected.
    """

    def __init__(
        self,
        model: str,
        store_url: str,
        compiler: DeploymentHandle,
        *,
        engine: dict[str, Any],
        process_growth_mb: int = 4096,
    ) -> None:
        config = VllmEngineConfig.model_validate(engine)
        vocabulary = load_vocabulary(model, trust_remote_code=config.trust_remote_code)
        tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=config.trust_remote_code)
        super().__init__(store_url, compiler, config, vocabulary, keeps=True, process_growth_mb=process_growth_mb)
        self._leaving = False
        # Serve constructs a replica inside its event loop. vLLM's client belongs to this loop.
        self._begin(VllmEngine(model, store_url, config, vocabulary, tokenizer, self._grammars, self._leave))

    async def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Warm up the engine with one generation, then load the grammars (constraints) of `user_config`.

        Ray Serve calls this method before the replica receives requests, and after a change of `user_config`.

        Args:
            user_config: `user_config` of the deployment. `precompile` lists the specifications of the grammars to load.
        """
        await self._generate_once(min(256, self._engine.max_model_len // 2))
        await super().reconfigure(user_config)

    async def _prepare(self, grammar: GrammarReference) -> None:
        """Generate one token, so that the EngineCore loads the grammar and prefetches masks."""
        await self._generate_once(1, grammar=grammar.model_dump())

    def _leave(self) -> None:
        """End this process after its streams have received the reason.

        Without an EngineCore, this replica would reject all requests at once, and routers would take it for an idle
        replica.
        """
        if not self._leaving:
            self._leaving = True
            logger.critical("vLLM's EngineCore has ended, stopping the replica")
            asyncio.get_running_loop().call_later(_LAST_WORDS_S, os._exit, 1)
