"""A model with random weights that "draws" given answers: real forward passes, real sampling, known tokens."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.instances import Instance
from benchmarks.vocabulary_tokenizer import VocabularyTokenizer
from gpu_workers.config import EngineConfig
from gpu_workers.engine.engine import Engine
from gpu_workers.model.loader import LoadedModel, prepare
from gpu_workers.request import GenerationRequest, GrammarReference
from gpu_workers.sampling.sampler import Draw, Drawn, Prepared, Sampler
from grammar_workers import TokenFSM, Vocabulary

PROMPT = list(range(1000, 1008))
MAX_LENGTH = 256


def random_llama(vocabulary_size: int, **settings: Any) -> LlamaForCausalLM:
    """4 layers, hidden 256, random float32 weights; `settings`: of LlamaConfig, over ours."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary_size,
        hidden_size=256,
        intermediate_size=688,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        **{"max_position_embeddings": MAX_LENGTH, **settings},
    )
    return LlamaForCausalLM(config).eval()


class ReplayingSampler(Sampler):
    """Does all the work of sampling, then returns the token of the answer that the row's seed names."""

    answers: Sequence[list[int]] = ()

    def prepare(self, draws: Sequence[Draw]) -> Prepared:
        self._wanted = [self.answers[draw.sampling.seed][draw.position] for draw in draws]
        return super().prepare(draws)

    def draw(self, hidden_states: Tensor, prepared: Prepared) -> Drawn:
        drawn = super().draw(hidden_states, prepared)
        drawn.token_ids()
        forced = dict(enumerate(self._wanted))
        return Drawn(Prepared(prepared.many, forced, None, None), None)


class ReplayEngine:
    """An engine that replays instances in batches."""

    def __init__(self, model: LlamaForCausalLM, vocabulary: Vocabulary, spell: Any, config: EngineConfig) -> None:
        self._instances: list[Instance] = []
        tokenizer: Any = VocabularyTokenizer(vocabulary, spell)
        model.set_attn_implementation("sdpa")  # what the engine compares itself with
        self.loaded: LoadedModel = prepare(model, tokenizer, vocabulary, config)
        self.engine = Engine(self.loaded, config, self._fetch)
        self.engine.step_loop.sampler = self._sampler = ReplayingSampler(self.loaded.head)

    async def _fetch(self, grammar: GrammarReference) -> TokenFSM:
        return self._instances[grammar.specification["row"]].fsm

    def run(self, instances: list[Instance], *, guided: bool) -> tuple[int, float]:
        """Generates all answers together. Returns tokens and CPU seconds of the process (all its threads)."""
        self._instances = instances
        self._sampler.answers = [instance.token_ids for instance in instances]
        started = time.process_time()
        made = asyncio.run(self._all(guided))
        return made, time.process_time() - started

    async def _all(self, guided: bool) -> int:
        return sum(await asyncio.gather(*(self._one(row, guided) for row in range(len(self._instances)))))

    async def _one(self, row: int, guided: bool) -> int:
        request = GenerationRequest.model_validate(
            {
                "request_id": str(row),
                "prompt": PROMPT,
                "grammar": {"key": "0" * 64, "specification": {"row": row}} if guided else None,
                "sampling": {"seed": row, "temperature": 1.0},
            }
        )
        made: list[int] = []
        async for output in self.engine.generate(request):
            assert output.error is None, output.error
            made += output.token_ids
        answer = self._instances[row].token_ids
        # Under a grammar an output that nothing can follow ends without its end token.
        assert made in (answer, answer[:-1])
        return len(answer)

    def close(self) -> None:
        self.engine.close()
