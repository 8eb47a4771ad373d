"""The Serve deployment of a model replica on vLLM's engine (`replica.engine.kind: vllm`)."""

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
    """A replica on vLLM; `engine`: a `VllmEngineConfig` as plain data, the others as in `Replica`."""

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
        super().__init__(
            model, store_url, compiler, config, vocabulary, keeps=True, process_growth_mb=process_growth_mb
        )
        self._leaving = False
        # Serve constructs a replica inside its event loop, which vLLM's client belongs to from here on.
        self._begin(VllmEngine(model, store_url, config, vocabulary, tokenizer, self._grammars, self._leave))

    async def reconfigure(self, user_config: dict[str, Any]) -> None:
        await self._generate_once(min(256, self._engine.max_length // 2))
        await super().reconfigure(user_config)

    async def _prepare(self, grammar: GrammarReference) -> None:
        """Lets the EngineCore load it and make rows ahead."""
        await self._generate_once(1, grammar=grammar.model_dump())

    def _leave(self) -> None:
        """Ends this process when its streams have heard why: without an EngineCore it would refuse everything at once,
        which looks idle to those who choose a replica.
        """
        if not self._leaving:
            self._leaving = True
            logger.critical("vLLM's EngineCore has died: this replica ends")
            asyncio.get_running_loop().call_later(_LAST_WORDS_S, os._exit, 1)
