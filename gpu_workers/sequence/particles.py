"""Conditional sampling: outputs of one request, sampled side by side and weighed, of which one is the answer.

The target is the model at the request's temperature, given that the output is valid and ends within its limit. Each
*particle* is a generation of its own, sampled under the mask. Its weight is the product of what the masks left of the
model's probability, at forced tokens and at the end, too.

Particles run ahead freely. Weights are compared after every token as if all particles took it at the same time: where
few particles carry all the weight, light ones are cancelled, and copies of heavy ones resume in their place. So the
answer does not depend on how fast each of them runs.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

import numpy as np

from gpu_workers.output import FinishReason, Generate, GenerationOutput
from gpu_workers.request import GenerationRequest
from gpu_workers.sampling.particle_weights import (
    draw_particle,
    effective_sample_size,
    falls_below,
    log_mean_weight,
    resample,
)
from gpu_workers.sampling.randomness import Stream, uniforms
from gpu_workers.sequence.output_text import OutputText
from grammar_workers import Vocabulary

Report = dict[str, Any]


class Particle:
    """One output, as far as it has been sampled.

    Attributes:
        reports: The report of each sampled token, its `probe` included. The last one may be an end that is no token of
            the output.
        ended: Why the output ended; None while it goes on.
        task: Reads the generation.
    """

    def __init__(self, reports: list[Report], ended: FinishReason | None = None) -> None:
        self.reports = reports
        self.ended = ended
        self.task: asyncio.Task[None] | None = None

    @property
    def tokens(self) -> list[Report]:
        """The reports of the output's own tokens."""
        return [report for report in self.reports if not report["probe"]["only_end"]]

    def over(self, length: int) -> bool:
        """Return whether nothing follows the first `length` samples."""
        return self.ended is not None and len(self.reports) <= length

    def known(self, length: int) -> bool:
        """Return whether it is known what follows the first `length` samples: another one, or nothing."""
        return self.ended is not None or len(self.reports) > length


class ParticleGroup:
    """The particles of one request and their weights.

    Attributes:
        length: Number of samples that the weights count.
        sampled_tokens: Tokens of all particles up to `length`, those of cancelled particles included.
    """

    def __init__(self, request: GenerationRequest, generate: Generate, tasks: asyncio.TaskGroup) -> None:
        assert request.sampling.conditional_sampling is not None
        self.particles: list[Particle] = []
        self.length = 0
        self.sampled_tokens = 0
        self._settings = request.sampling.conditional_sampling
        self._log_weights = np.zeros(self._settings.particles)
        probing = request.sampling.model_copy(update={"conditional_sampling": None, "probe": True})
        self._request = request.model_copy(update={"sampling": probing})
        self._generate = generate
        self._tasks = tasks
        self._news = asyncio.Event()

    async def run(self) -> None:
        """Sample all particles to their ends."""
        # The first one alone, until its prompt is computed: the others copy its keys and values.
        self.particles.append(self._start(0, []))
        await self._until(lambda: self.particles[0].known(0))
        self.particles += [self._start(index, []) for index in range(1, self._settings.particles)]
        while True:
            await self._until(lambda: all(particle.known(self.length) for particle in self.particles))
            if self._over:
                return
            self._weigh()
            if falls_below(self._log_weights, self._settings.resample_below):
                await self._until(lambda: self._over or any(len(one.reports) > self.length for one in self.particles))
                if not self._over:
                    self._resample()

    def choose(self) -> tuple[Particle, dict[str, Any]]:
        """Return one particle by its weight, and the estimates to report with it.

        A particle that the limit cut has no weight, unless the limit cut them all.
        """
        cut = np.array([particle.ended == "length" for particle in self.particles])
        log_weights = np.where(cut, -np.inf, self._log_weights)
        log_mean = log_mean_weight(log_weights)
        chosen = draw_particle(self._log_weights if cut.all() else log_weights, self._uniform(Stream.SELECT))
        answer = self.particles[chosen]
        return answer, {
            "valid_logprob": None if math.isinf(log_mean) else log_mean,
            "effective_sample_size": effective_sample_size(log_weights),
            "other_tokens": self.sampled_tokens - len(answer.tokens),
        }

    @property
    def _over(self) -> bool:
        return all(particle.over(self.length) for particle in self.particles)

    def _weigh(self) -> None:
        """Count the next sample of every particle that has one."""
        for index, particle in enumerate(self.particles):
            if not particle.over(self.length):
                probe = particle.reports[self.length]["probe"]
                self._log_weights[index] += probe["log_mass"]
                self.sampled_tokens += not probe["only_end"]
        self.length += 1

    def _resample(self) -> None:
        """Replace light particles by copies of heavy ones; all weights are equal afterwards."""
        ancestors = resample(self._log_weights, self._uniform(Stream.RESAMPLE))
        self._log_weights[:] = log_mean_weight(self._log_weights)
        for index, ancestor in enumerate(ancestors.tolist()):
            if index != ancestor:
                self._replace(index, self.particles[ancestor])

    def _replace(self, index: int, ancestor: Particle) -> None:
        if (task := self.particles[index].task) is not None:
            task.cancel()
        if ancestor.over(self.length):
            self.particles[index] = Particle(ancestor.reports, ancestor.ended)
        else:
            self.particles[index] = self._start(index, ancestor.reports[: self.length])

    def _start(self, index: int, reports: list[Report]) -> Particle:
        """Return a particle that goes on behind the tokens of `reports`, with random numbers of its own."""
        particle = Particle(reports)
        changes = {"choice_index": index, "emitted_token_ids": [report["token_id"] for report in reports]}
        outputs = self._generate(self._request.model_copy(update=changes))
        particle.task = self._tasks.create_task(self._follow(particle, outputs))
        return particle

    async def _follow(self, particle: Particle, outputs: AsyncGenerator[GenerationOutput, None]) -> None:
        async with aclosing(outputs):
            async for output in outputs:
                particle.reports += output.reports
                particle.ended = output.finish_reason
                self._news.set()

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._news.clear()
            await self._news.wait()

    def _uniform(self, stream: Stream) -> float:
        return float(uniforms([self._request.sampling.seed], [0], [self.length], stream)[0])


async def sample_conditionally(
    request: GenerationRequest, generate: Generate, tasks: asyncio.TaskGroup, vocabulary: Vocabulary
) -> GenerationOutput:
    """Return the answer of a request with `conditional_sampling`. `generate` is the engine's.

    Raises:
        RequestError: In a task: the generation of a particle failed.
    """
    group = ParticleGroup(request, generate, tasks)
    await group.run()
    answer, estimate = group.choose()
    text = OutputText(request, vocabulary)
    pieces = [
        text.append(report["token_id"], position, complete_before=report["probe"]["complete"])
        for position, report in enumerate(answer.tokens)
    ]
    written = "".join(piece if isinstance(piece, str) else piece() for piece in pieces) + text.rest()
    reports = [{name: told for name, told in report.items() if name != "probe"} for report in answer.tokens]
    return GenerationOutput(
        text=written,
        token_ids=[report["token_id"] for report in reports],
        reports=reports if request.sampling.reports else [],
        finish_reason=answer.ended,
        conditional_sampling=estimate,
        stop_string=text.stop_string,
    )
