"""Beam search under the mask of a grammar. It returns the output of `transformers.generate(num_beams=...)`.

The score of a beam (partial output) is the sum of the model's log-probabilities *before* the mask, as in transformers.
In each round, the engine generates one more token for every beam. Each beam is a separate request that resumes with the
tokens of the beam. The engine batches and masks these requests, and reuses their common prefixes from its cache.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from gpu_workers.model.text import TextStream
from gpu_workers.output import Generate, GenerationOutput
from gpu_workers.request import BeamSearch, GenerationRequest, SamplingParameters
from grammar_workers import Vocabulary


@dataclass(frozen=True, slots=True)
class Beam:
    """A partial or finished output in a beam search.

    Attributes:
        score: Sum of the natural log-probabilities of the tokens. For a finished output, this sum divided by length **
            `length_penalty`.
        token_ids: Output tokens.
    """

    score: float
    token_ids: tuple[int, ...]

    def order(self) -> tuple[float, tuple[int, ...]]:
        """Return a sort key for beams (partial outputs): highest score first, equal scores by ascending token IDs."""
        return -self.score, self.token_ids


class Beams:
    """State of a beam search: the partial and the finished outputs. It does not run the model.

    In each round, the caller passes the best next tokens of each partial output to `extend`, until `over` is true.

    Args:
        settings: Settings of the request.
        end_token_ids: End tokens of the model.
        max_tokens: Maximum number of output tokens.

    Attributes:
        running: Partial outputs that go on, best first.
        finished: The best finished outputs, best first; at most `num_beams`.
        over: True if the search has ended.
        continuations: Number of next tokens per partial output that `extend` needs.
    """

    def __init__(self, settings: BeamSearch, end_token_ids: Sequence[int], max_tokens: int) -> None:
        self.running = [Beam(0.0, ())]
        self.finished: list[Beam] = []
        self.over = False
        self._settings = settings
        self._end_token_ids = frozenset(end_token_ids)
        self._max_tokens = max_tokens
        # With so many, `num_beams` beams go on even if every end token of every beam is among the best.
        self.continuations = max(2, 1 + len(self._end_token_ids)) * settings.num_beams

    def extend(self, continuations: Iterable[tuple[Beam, int, float]]) -> None:
        """Run one round: extend the partial outputs by one token, and keep the best.

        Args:
            continuations: Tuples (partial output, next token, natural log-probability of the token before the mask).
                Each output in `running` needs its best `self.continuations` next tokens, or all that the mask allows.
        """
        many = self._settings.num_beams
        candidates = [Beam(beam.score + logprob, (*beam.token_ids, token)) for beam, token, logprob in continuations]
        best = heapq.nsmallest(self.continuations, candidates, key=Beam.order)
        length = len(self.running[0].token_ids) + 1
        ended = [beam for beam in best[:many] if self._ends(beam)]
        if not (self._settings.early_stopping and self._full):
            self.finished += [Beam(self._penalised(beam.score, length), beam.token_ids) for beam in ended]
            self.finished = sorted(self.finished, key=Beam.order)[:many]
        self.running = [beam for beam in best if not self._ends(beam)][:many]
        self.over = not self.running or (self._full and self._cannot_improve(length))

    @property
    def _full(self) -> bool:
        return len(self.finished) == self._settings.num_beams

    def _cannot_improve(self, length: int) -> bool:
        """Return whether no running beam, with its present length, has a higher score than the worst finished beam."""
        if self._settings.early_stopping:
            return True
        return self._penalised(self.running[0].score, length) <= self.finished[-1].score

    def _penalised(self, score: float, length: int) -> float:
        return float(score / length**self._settings.length_penalty)

    def _ends(self, beam: Beam) -> bool:
        return beam.token_ids[-1] in self._end_token_ids or len(beam.token_ids) >= self._max_tokens


async def beam_search(
    request: GenerationRequest, generate: Generate, tasks: asyncio.TaskGroup, vocabulary: Vocabulary, max_tokens: int
) -> GenerationOutput:
    """Run the beam search of a request, and return the best output.

    If one of the generations fails, its RequestError is raised in a task of `tasks`, which cancels this call.

    Args:
        request: The request.
        generate: Function that starts a generation in the engine and returns an iterator over its outputs.
        tasks: Task group in which the generations run.
        vocabulary: Vocabulary of the model.
        max_tokens: Maximum number of output tokens.

    Returns:
        The whole output. Its finish reason is `length` if it was truncated at `max_tokens`, otherwise `stop`.
    """
    assert request.sampling.beam_search is not None
    beams = Beams(request.sampling.beam_search, vocabulary.eos_token_ids, max_tokens)
    while not beams.over:
        probes = [tasks.create_task(_probe(request, beam, generate, beams.continuations)) for beam in beams.running]
        found = await asyncio.gather(*probes)
        beams.extend(one for continuations in found for one in continuations)
    token_ids = list(beams.finished[0].token_ids)
    complete = token_ids[-1] in vocabulary.eos_token_ids
    text = TextStream()
    pieces = [text.append(vocabulary.token_bytes(token_id)) for token_id in token_ids]
    return GenerationOutput(
        text="".join(pieces) + text.finish(), token_ids=token_ids, finish_reason="stop" if complete else "length"
    )


async def _probe(
    request: GenerationRequest, beam: Beam, generate: Generate, many: int
) -> list[tuple[Beam, int, float]]:
    """Return the best `many` continuations of a beam, with their log-probabilities before the mask."""
    limit = len(beam.token_ids) + 1
    changes = {
        "sampling": SamplingParameters(max_tokens=limit, temperature=0, logprobs=many, raw_logprobs=True, probe=True),
        "emitted_token_ids": list(beam.token_ids),
    }
    reports: list[dict[str, Any]] = []
    async with aclosing(generate(request.model_copy(update=changes))) as outputs:
        async for output in outputs:
            reports += output.reports
    return [(beam, choice["token_id"], choice["raw_logprob"]) for choice in reports[0]["top"]]
