"""Conditional sampling by sequential Monte Carlo: samples several outputs of one request and responds with one of them.

The target is the distribution of the model at the request's temperature, given that the output is valid and ends within
its token limit. Each sampled output is a *particle*: a separate generation under the mask. For each token of a
particle, the model gives some probability to all allowed tokens together. The weight of the particle is the product of
these probabilities, forced tokens and the end of the output included.

Particles advance at different speeds. Their weights are compared at equal numbers of tokens, so the response does not
depend on the speeds. If few particles have most of the weight, the particles are *resampled*: copies of particles with
a large weight replace particles with a small weight.
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
    """A particle: one of the outputs that conditional sampling generates in parallel for a request.

    Args:
        reports: Reports on the tokens that the particle already has: dicts from `TokenNames.describe`.
        ended: Finish reason of the output; None while the output goes on.

    Attributes:
        reports: Report (ID and log-probabilities, as plain data) of each token sampled so far. The last report may be
            for an end token, which is not a token of the output.
        ended: Finish reason of the output; None while the output goes on.
        task: Task that reads the outputs of the generation; None for the copy of a particle that had ended.
    """

    def __init__(self, reports: list[Report], ended: FinishReason | None = None) -> None:
        self.reports = reports
        self.ended = ended
        self.task: asyncio.Task[None] | None = None

    @property
    def tokens(self) -> list[Report]:
        """Reports (ID and log-probabilities, as plain data) of the output's tokens, in order, without an end token."""
        return [report for report in self.reports if not report["probe"]["only_end"]]

    def over(self, length: int) -> bool:
        """Return whether the output has ended and has at most `length` sampled tokens.

        Args:
            length: Number of sampled tokens, an end token included.
        """
        return self.ended is not None and len(self.reports) <= length

    def known(self, length: int) -> bool:
        """Return whether the sampled token at index `length` has arrived from the device, or the output has ended.

        Args:
            length: Index among the sampled tokens, from 0. An end token counts.
        """
        return self.ended is not None or len(self.reports) > length


class ParticleGroup:
    """The particles (outputs sampled in parallel) of one request with `conditional_sampling`, and their weights.

    Args:
        request: The request. It is copied, not changed.
        generate: Function that starts a generation in the engine and returns an iterator over its outputs.
        tasks: Task group in which the generations run.

    Attributes:
        particles: The particles, by index.
        length: Number of sampled tokens per particle that are included in the weights.
        sampled_tokens: Number of tokens of all particles up to `length`, without end tokens. Tokens of cancelled
            particles are included.
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
        """Generate all particles to their ends, and resample them when their weights differ too much.

        In a resampling, copies of particles with a large weight replace particles with a small weight. The particles
        are resampled when the effective sample size falls below `ess_threshold` times the number of particles. The
        effective sample size is (sum of the weights)² / (sum of the squared weights). If a generation fails, its
        RequestError is raised in a task of the task group, which cancels the other tasks and this call.
        """
        # The first particle starts alone. When its prompt is computed, the others copy its keys and values.
        self.particles.append(self._start(0, []))
        await self._until(lambda: self.particles[0].known(0))
        self.particles += [self._start(index, []) for index in range(1, self._settings.particles)]
        while True:
            await self._until(lambda: all(particle.known(self.length) for particle in self.particles))
            if self._over:
                return
            self._weigh()
            if falls_below(self._log_weights, self._settings.ess_threshold):
                await self._until(lambda: self._over or any(len(one.reports) > self.length for one in self.particles))
                if not self._over:
                    self._resample()

    def choose(self) -> tuple[Particle, dict[str, Any]]:
        """Select one particle (finished output) at random, with a probability proportional to its weight.

        A particle that was truncated at the token limit has weight 0, unless all particles were truncated.

        Returns:
            The particle, and a dict of estimates for the response: `valid_logprob` (natural logarithm of the mean
            weight, which estimates the probability of a valid output; None if the mean is 0), `effective_sample_size`,
            and `other_tokens` (number of tokens sampled for other particles).
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
        """Include the next sample of every particle that has one in its weight."""
        for index, particle in enumerate(self.particles):
            if not particle.over(self.length):
                probe = particle.reports[self.length]["probe"]
                self._log_weights[index] += probe["log_mass"]
                self.sampled_tokens += not probe["only_end"]
        self.length += 1

    def _resample(self) -> None:
        """Replace particles of small weight by copies of those of large weight. Afterwards all weights are equal."""
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
        """Return a particle that resumes after the tokens of `reports`, with random numbers of its own."""
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
    """Return the output of a request with `conditional_sampling`, from several generations (particles) of the engine.

    If the generation of a particle fails, its RequestError is raised in a task of `tasks`, which cancels this call.

    Args:
        request: The request.
        generate: Function that starts a generation in the engine and returns an iterator over its outputs.
        tasks: Task group in which the generations run.
        vocabulary: Vocabulary of the model.

    Returns:
        The whole output of the selected particle, with the estimates of `ParticleGroup.choose` in
        `conditional_sampling`. `reports` is empty unless the request has `logprobs` or `diagnostics`.
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
