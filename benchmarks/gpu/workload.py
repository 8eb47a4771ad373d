"""Workload of `benchmarks.gpu`: requests under grammars that fit on the device, and an engine with timed steps."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.gpu.copies import CopyCounter
from gpu_workers.config import EngineConfig
from gpu_workers.engine.engine import Engine
from gpu_workers.engine.step_loop import Pass, StepLoop
from gpu_workers.model.loader import LoadedModel
from gpu_workers.request import GenerationRequest, GrammarReference
from gpu_workers.speculative.logits_drafter import LogitsDrafter
from grammar_workers import TokenFSM, Vocabulary, compile_grammar

# Regular expressions of four records: free text, short choices, and forced text between them.
KINDS = (
    '"id": [0-9]{{1,6}}, "kind": "(alpha|beta|gamma)", "tag": "{tag}", "text": "[ !#-\\[\\]-~]{{20,60}}"',
    '"name": "[A-Z][a-z]{{2,12}}", "tag": "{tag}", "score": 0\\.[0-9]{{2}}, "note": "[ !#-\\[\\]-~]{{8,40}}"',
    '"tag": "{tag}", "path": "(/[a-z0-9]{{1,12}}){{1,4}}", "ok": (true|false)',
    '"year": (19|20)[0-9]{{2}}, "tag": "{tag}", "words": "[a-z]{{1,10}}( [a-z]{{1,10}}){{4,9}}"',
)
_TAG = "[a-z]{2,10}"
# Ends the list of records, in place of a tag. A random model hardly ever samples it, so all sequences stay in step.
_RARE = "\ue123"


def automata(vocabulary: Vocabulary) -> list[TokenFSM]:
    """Compile the grammars of `KINDS`: lists of records whose end a random model hardly ever samples.

    Each automaton has a few hundred states.

    Args:
        vocabulary: Vocabulary of the model.

    Returns:
        One automaton for each of `KINDS`.
    """
    made = []
    for kind in KINDS:
        record, last = (r"\{" + kind.format(tag=tag) + r"\}" for tag in (_TAG, _RARE))
        made.append(compile_grammar({"type": "regex", "pattern": f"({record}, )*{last}"}, vocabulary))
    return made


@dataclass(slots=True)
class Steps:
    """Times of pure decode steps: all sequences decode, and no prompt is computed.

    Attributes:
        rows: Number of sequences.
        seconds: Seconds between the ends of two consecutive pure decode steps.
    """

    rows: int
    seconds: list[float] = field(default_factory=list)
    _last: float | None = None

    def note(self, running: Pass) -> None:
        """Record the end of a step. The engine thread calls this method.

        Args:
            running: The forward pass of the step.
        """
        now = time.perf_counter()
        full = len(running.plan.decode) == self.rows and not running.plan.chunks
        if full and self._last is not None:
            self.seconds.append(now - self._last)
        self._last = now if full else None


class Workload:
    """An engine with a model, and requests for it.

    Args:
        loaded: The model.
        config: Settings of the engine.
        fsms: Automata of the guided requests.
        drafter: Draft model or EAGLE-3 head; None: no such drafter.

    Attributes:
        engine: The engine.
        steps: Times of the steps in the last `run`.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        config: EngineConfig,
        fsms: list[TokenFSM],
        drafter: LogitsDrafter | None = None,
    ) -> None:
        self._fsms = fsms
        self._tokens = loaded.head.token_limit
        self.engine = Engine(loaded, config, self._fetch, drafter)
        self.steps = Steps(0)
        loop: Any = self.engine.step_loop
        commit = loop._commit

        def timed(running: Pass, hidden_states: Any) -> None:
            commit(running, hidden_states)
            self.steps.note(running)

        loop._commit = timed

    async def _fetch(self, grammar: GrammarReference) -> TokenFSM:
        return self._fsms[grammar.specification["row"] % len(self._fsms)]

    def request(self, row: int, prompt_tokens: int, *, guided: bool, **sampling: Any) -> GenerationRequest:
        """Return a request with a random prompt.

        Args:
            row: Number of the request, from which its prompt, its seed and its automaton follow.
            prompt_tokens: Number of tokens of the prompt.
            guided: True: the output has a grammar.
            **sampling: Further fields of `SamplingParameters`.
        """
        prompt = np.random.default_rng(row).integers(3, self._tokens, prompt_tokens).tolist()
        return GenerationRequest.model_validate(
            {
                "request_id": f"row-{row}",
                "prompt": prompt,
                "grammar": {"key": "0" * 64, "specification": {"row": row}} if guided else None,
                "sampling": {"seed": row, **sampling},
            }
        )

    def requests(self, rows: int, prompt_tokens: int, tokens: int, *, guided: bool) -> list[GenerationRequest]:
        """Return several requests at temperature 1, which differ in prompt, seed and grammar.

        Args:
            rows: Number of requests.
            prompt_tokens: Number of tokens of each prompt.
            tokens: Maximum number of tokens of each output.
            guided: True: the outputs have grammars.
        """
        return [
            self.request(row, prompt_tokens, guided=guided, temperature=1.0, max_tokens=tokens) for row in range(rows)
        ]

    def run(self, requests: list[GenerationRequest]) -> list[list[int]]:
        """Generate the outputs of all requests concurrently. RuntimeError is raised if a request fails.

        Args:
            requests: The requests.

        Returns:
            Token IDs of each output.
        """
        self.steps = Steps(len(requests))
        return asyncio.run(self._all(requests))

    def wait_exported(self) -> None:
        """Wait until the device tables of all automata that were used so far have been computed."""
        device_step = self.engine.step_loop._device_step
        if device_step is not None:
            device_step.automata.wait()

    async def _all(self, requests: list[GenerationRequest]) -> list[list[int]]:
        return await asyncio.gather(*map(self._one, requests))

    async def _one(self, request: GenerationRequest) -> list[int]:
        made: list[int] = []
        async for output in self.engine.generate(request):
            if output.error is not None:
                raise RuntimeError(f"{request.request_id}: {output.error}")
            made += output.token_ids
        return made

    @contextmanager
    def copies_counted(self) -> Iterator[CopyCounter]:
        """Return a context manager that counts copies of the engine thread between host and device.

        Yields:
            The counter of the bytes that are copied inside the block.
        """
        loop: Any = self.engine.step_loop
        step, counter = StepLoop._step.__get__(loop), CopyCounter()

        def counted() -> None:
            with counter:
                step()

        with mock.patch.object(loop, "_step", counted):
            yield counter

    def close(self) -> None:
        """Stop the engine."""
        self.engine.close()
