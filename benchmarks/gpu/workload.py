"""What is generated: records under automata that fit the device, on an engine whose steps are timed one by one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.gpu.copies import CopyCounter
from gpu_workers.config import EngineConfig
from gpu_workers.engine.engine import Engine
from gpu_workers.engine.step_loop import Pass, StepLoop
from gpu_workers.model.loader import LoadedModel
from gpu_workers.request import GenerationRequest, GrammarReference
from gpu_workers.speculative.logits_drafter import LogitsDrafter
from grammar_workers import TokenFSM, Vocabulary, compile_grammar

KINDS = (
    '"id": [0-9]{{1,6}}, "kind": "(alpha|beta|gamma)", "tag": "{tag}", "text": "[ !#-\\[\\]-~]{{20,60}}"',
    '"name": "[A-Z][a-z]{{2,12}}", "tag": "{tag}", "score": 0\\.[0-9]{{2}}, "note": "[ !#-\\[\\]-~]{{8,40}}"',
    '"tag": "{tag}", "path": "(/[a-z0-9]{{1,12}}){{1,4}}", "ok": (true|false)',
    '"year": (19|20)[0-9]{{2}}, "tag": "{tag}", "words": "[a-z]{{1,10}}( [a-z]{{1,10}}){{4,9}}"',
)
"""Regular expressions of four records: free text, a few choices, texts without a choice."""
_TAG = "[a-z]{2,10}"
_RARE = "\ue123"
"""Ends the list of records, in the place of a tag: a random model hardly ever takes it, and all rows stay in step."""


def automata(vocabulary: Vocabulary) -> list[TokenFSM]:
    """Lists of records without an end that a random model would find; finite, a few hundred states each."""
    made = []
    for kind in KINDS:
        record, last = (r"\{" + kind.format(tag=tag) + r"\}" for tag in (_TAG, _RARE))
        made.append(compile_grammar({"type": "regex", "pattern": f"({record}, )*{last}"}, vocabulary))
    return made


@dataclass(slots=True)
class Steps:
    """Times of the steps in which all rows decoded and nothing else happened, seconds from one to the next."""

    rows: int
    seconds: list[float] = field(default_factory=list)
    _last: float | None = None

    def note(self, running: Pass) -> None:
        """A step has ended; called by the engine thread."""
        now = time.perf_counter()
        full = len(running.plan.decode) == self.rows and not running.plan.chunks
        if full and self._last is not None:
            self.seconds.append(now - self._last)
        self._last = now if full else None


class Workload:
    """An engine on a model that is loaded, and requests to it that differ in prompt and seed alone."""

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
        """The request of one row; `sampling` as in `SamplingParameters`."""
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
        """One for each row, drawn at temperature 1."""
        return [
            self.request(row, prompt_tokens, guided=guided, temperature=1.0, max_tokens=tokens) for row in range(rows)
        ]

    def run(self, requests: list[GenerationRequest]) -> list[list[int]]:
        """The tokens of all of them, generated together. Raises RuntimeError when one fails."""
        self.steps = Steps(len(requests))
        return asyncio.run(self._all(requests))

    def wait_exported(self) -> None:
        """Until the automata seen so far can be on the device."""
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
        """Counts what the engine thread copies between host and device in the steps in here."""
        loop: Any = self.engine.step_loop
        step, counter = StepLoop._step.__get__(loop), CopyCounter()

        def counted() -> None:
            with counter:
                step()

        loop._step = counted
        try:
            yield counter
        finally:
            del loop._step

    def close(self) -> None:
        self.engine.close()
