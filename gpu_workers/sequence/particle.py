"""Particles: outputs of one request, drawn side by side and weighed, of which one is the answer.

    all at t tokens --> one token more each --> all at t + 1: weights, maybe copies --> ... --> all ended: one is drawn

The target is the model at the request's temperature, given that the output is valid and ends within its limit. A
particle is drawn under the mask, token by token, and its weight is the product of what the masks left of the model's
probability: at tokens without a choice, too, and at the end. So nothing is skipped or drafted here.

The particles of a group hold slots together or not at all, also those that have ended: a copy of another may go on in
their place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as PySequence
from dataclasses import replace
from typing import Any

import numpy as np

from gpu_workers.guided.masks import Constraint
from gpu_workers.output import FinishReason, GenerationOutput, OutputStream, Text
from gpu_workers.request import GenerationRequest
from gpu_workers.sampling.allowed_tokens import AllowedTokens
from gpu_workers.sampling.logprobs import TokenReport
from gpu_workers.sampling.particle_weights import (
    draw_particle,
    effective_sample_size,
    falls_below,
    log_mean_weight,
    resample,
)
from gpu_workers.sampling.randomness import Stream, uniforms
from gpu_workers.sampling.sampler import Draw
from gpu_workers.sequence.sequence import Description, Sequence, State
from grammar_workers import Vocabulary


class ParticleOutput:
    """What one particle would have streamed. The request's stream gets that of the particle that ends it."""

    def __init__(self, group: ParticleGroup) -> None:
        self.held: list[tuple[int, str, Description]] = []
        self._group = group

    def push(self, token_id: int, text: Text, report: Description = None) -> None:
        # Decoded at once: the decoder goes on in copies of the particle, too.
        self.held.append((token_id, text if isinstance(text, str) else text(), report))

    def end(self, ending: GenerationOutput, text: Text = "") -> None:
        stream = self._group.stream
        for token_id, piece, report in self.held if ending.finish_reason in ("stop", "length") else ():
            stream.push(token_id, piece, report)
        ending.conditional_sampling = self._group.estimate
        stream.end(ending, text)


class Particle(Sequence):
    """One output of several; it waits behind each token until all of them have theirs.

    `ended` says why it did; to the engine only the group ends. `ending`: nothing but the end may follow, and its
    probability is all that is missing.
    """

    def __init__(
        self,
        group: ParticleGroup,
        index: int,
        request: GenerationRequest,
        prompt_token_ids: list[int],
        vocabulary: Vocabulary,
        max_length: int,
    ) -> None:
        self.group = group
        self.index = index
        self.output = ParticleOutput(group)
        self.ended: FinishReason | None = None
        self.ending = False
        self._prompt = prompt_token_ids
        self._room = max_length
        super().__init__(request, prompt_token_ids, vocabulary, max_length, self.output)

    @property
    def companions(self) -> PySequence[Sequence]:
        return self.group.members

    @property
    def waits(self) -> bool:
        """Whether it is where all the others have to come."""
        return self.ended is not None or (self.state is State.RUNNING and self.output_length > self.group.length)

    @property
    def runnable(self) -> bool:
        return super().runnable and not self.waits

    @property
    def draft_room(self) -> int:
        return 0

    def append_forced(self) -> int:
        return 0

    def constrain(self, constraint: Constraint) -> float:
        self.group.origin = constraint.copy()
        return super().constrain(constraint)

    def append(self, token_id: int, report: TokenReport | None = None) -> None:
        if self.ending:
            self._result.clear()
            self._finish("stop")
        else:
            super().append(token_id, report)
            self.group.drawn_tokens += 1

    def weigh(self, log_mass: float) -> None:
        """The mask of the token about to be appended left this much of the model's probability."""
        self.group.log_weights[self.index] += log_mass

    def another(self, index: int) -> Particle:
        """A particle of the same group, at the beginning of its output."""
        particle = Particle(self.group, index, self.request, self._prompt, self._vocabulary, self._room)
        particle.constrain(self.group.origin)
        return particle

    def become(self, other: Particle) -> None:
        """Goes on as a copy of `other`, with random numbers of its own. What is in the slot is not touched."""
        self.token_ids = list(other.token_ids)
        self.state, self.ended, self.ending = other.state, other.ended, other.ending
        self.constraint = None if other.constraint is None else other.constraint.copy()
        self.output.held = list(other.output.held)
        self._text = other._text.copy()

    def _draw(self, allowed: AllowedTokens | None) -> Draw:
        return replace(super()._draw(allowed), attempt=self.index)

    def _complete(self, allowed: AllowedTokens) -> None:
        if allowed.count == 0:
            self._finish("stop")
        else:
            self.state = State.RUNNING
            self.ending = True

    def _finish(self, reason: FinishReason) -> None:
        self.state = State.FINISHED
        self.ended = reason


class ParticleGroup:
    """The particles of one request, and their weights. Engine thread only, once the first has entered.

    `length`: how many tokens those that go on may have before they take part in a step. `estimate`: what is told
    beside the answer, when it is there.
    """

    def __init__(
        self,
        request: GenerationRequest,
        prompt_token_ids: list[int],
        vocabulary: Vocabulary,
        max_length: int,
        stream: OutputStream,
    ) -> None:
        assert request.sampling.conditional_sampling is not None
        self.stream = stream
        self.settings = request.sampling.conditional_sampling
        self.length = 0
        self.drawn_tokens = 0
        self.log_weights = np.zeros(self.settings.particles)
        self.estimate: dict[str, Any] | None = None
        self.origin: Constraint  # where all outputs begin, once the grammar is there
        self.members = [Particle(self, 0, request, prompt_token_ids, vocabulary, max_length)]
        """The first alone until the prompt is computed and the grammar there."""
        self._seed = request.sampling.seed

    @property
    def ready(self) -> bool:
        """Whether all particles have drawn the same number of tokens, or ended before."""
        return all(particle.waits for particle in self.members)

    @property
    def over(self) -> bool:
        return all(particle.ended is not None for particle in self.members)

    def fork(self) -> list[Particle]:
        """The other particles, at the beginning; the first has drawn its first token."""
        others = [self.members[0].another(index) for index in range(1, self.settings.particles)]
        self.members += others
        return others

    def advance(self) -> list[tuple[Particle, Particle]]:
        """All are ready: lets them go on. Where few carry all the weight, (particle, copy of whom it must become)."""
        self.length += 1
        if self.over or not falls_below(self.log_weights, self.settings.resample_below):
            return []
        ancestors = resample(self.log_weights, self._uniform(Stream.RESAMPLE))
        self.log_weights[:] = log_mean_weight(self.log_weights)
        pairs = [(self.members[i], self.members[ancestor]) for i, ancestor in enumerate(ancestors.tolist())]
        return [(particle, ancestor) for particle, ancestor in pairs if particle is not ancestor]

    def answer(self) -> Particle:
        """One particle by its weight; all are over. One that the limit cut has none, unless it cut them all."""
        cut = np.array([particle.ended == "length" for particle in self.members])
        log_weights = np.where(cut, -np.inf, self.log_weights)
        log_mean = log_mean_weight(log_weights)
        chosen = draw_particle(self.log_weights if cut.all() else log_weights, self._uniform(Stream.SELECT))
        answer = self.members[chosen]
        self.estimate = {
            "valid_logprob": None if math.isinf(log_mean) else log_mean,
            "effective_sample_size": effective_sample_size(log_weights),
            "other_tokens": self.drawn_tokens - answer.output_length,
        }
        return answer

    def _uniform(self, stream: Stream) -> float:
        return float(uniforms([self._seed], [0], [self.length], stream)[0])
