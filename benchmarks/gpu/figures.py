"""Times of decode steps: unguided, guided by the host and by the device, with and without drafts.

A *way* is a combination of guided or not, sampling on host or device, and drafts or none: a column of the table.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from benchmarks.gpu.models import SHAPES, NamedVocabulary, loaded, random_llama
from benchmarks.gpu.workload import Workload, automata
from gpu_workers.config import EngineConfig
from gpu_workers.model.loader import LoadedModel
from gpu_workers.request import GenerationRequest, SamplingParameters
from gpu_workers.sampling.allowed_tokens import AllowedTokens, read_row
from gpu_workers.sampling.sampler import Draw, Sampler
from grammar_workers import TokenFSM

_NO_DRAFTS: dict[str, Any] = {"num_speculative_tokens": 0, "prompt_lookup_max": 0, "forced_text": False}
_WALK_TOKENS = 40


@dataclass(frozen=True, slots=True)
class Way:
    """A way to run decode steps: one column of the table.

    Attributes:
        name: Heading of the column.
        guided: True if requests have a grammar.
        draws_on: "host" or "device": the place where tokens are sampled.
        drafts: True if tokens are drafted. Without drafts, a step adds one token to each sequence.
    """

    name: str
    guided: bool
    draws_on: str
    drafts: bool


WAYS = tuple(
    Way(f"{'guided' if guided else 'unguided'}, {draws_on}{', drafts' if drafts else ''}", guided, draws_on, drafts)
    for draws_on, drafts, guided in itertools.product(("host", "device"), (False, True), (False, True))
)


@dataclass(frozen=True, slots=True)
class Settings:
    """Model, batch sizes and lengths of a measurement.

    Attributes:
        device: Device of the model.
        shape: Size of the model, a key of `SHAPES`.
        dtype: Type of the weights.
        rows: Batch sizes, in sequences.
        tokens: Length of an output, in tokens.
        prompt: Length of a prompt, in tokens.
        sample_s: Time to spend on the measurement of each part of the sampler, in seconds.
        ways: Ways to run steps that are measured.
    """

    device: torch.device
    shape: str
    dtype: torch.dtype
    rows: list[int]
    tokens: int
    prompt: int
    sample_s: float
    ways: tuple[Way, ...] = WAYS

    def model(self, named: NamedVocabulary) -> PreTrainedModel:
        """Return a model of the size `shape` with random weights.

        Args:
            named: Vocabulary of the model.
        """
        return random_llama(SHAPES[self.shape], named.vocabulary.size, self.length, self.dtype, self.device)

    @property
    def length(self) -> int:
        """Length of a KV cache slot, in tokens: prompt, output, and 32 tokens for drafts after the output."""
        return self.prompt + self.tokens + 32

    @property
    def traced_rows(self) -> int:
        """The batch size of traces: the one of `rows` that is nearest to 8."""
        return min(self.rows, key=lambda rows: abs(rows - 8))


@dataclass(frozen=True, slots=True)
class Step:
    """Measurement of decode steps for one vocabulary, batch size and way to run steps: one cell of the table.

    Attributes:
        vocabulary: Number of tokens in the vocabulary.
        rows: Number of sequences in the batch.
        way: Name of the way to run steps.
        ms: Median time, in ms, of the steps in which all sequences decoded.
        steps: Number of steps from which the median is taken.
        tokens: Number of output tokens of a sequence per forward pass.
        on_device: Share of the tokens that the device has sampled, from 0 to 1.
        bytes_up: Bytes copied from host to device per step.
        bytes_down: Bytes copied from device to host per step.
    """

    vocabulary: int
    rows: int
    way: str
    ms: float
    steps: int
    tokens: float
    on_device: float
    bytes_up: float
    bytes_down: float


@dataclass(frozen=True, slots=True)
class Draws:
    """Times, in ms, of the parts of a step that the host samples. All sequences are in a state with a large mask.

    Attributes:
        vocabulary: Number of tokens in the vocabulary.
        rows: Number of sequences in the batch.
        head: Time of the output head alone.
        unmasked: Time of the head and of sampling without masks.
        masked: Time of the head and of sampling with masks.
        prepare: Time to prepare the masks.
    """

    vocabulary: int
    rows: int
    head: float
    unmasked: float
    masked: float
    prepare: float


def measure(settings: Settings, named: NamedVocabulary) -> Iterator[Step | Draws]:
    """Measure decode steps for one vocabulary.

    Args:
        settings: Model, batch sizes and lengths.
        named: The vocabulary.

    Yields:
        For each batch size, one `Step` per way to run steps, then one `Draws`.
    """
    model = settings.model(named)
    fsms = automata(named.vocabulary)
    for rows in settings.rows:
        ready = loaded(model, named, config_of(settings, rows, WAYS[0]))
        # An engine that draws on the device captures its steps first: ways that can share one do.
        for _, group in itertools.groupby(settings.ways, key=lambda way: (way.draws_on, way.drafts)):
            ways = list(group)
            with contextlib.closing(Workload(ready, config_of(settings, rows, ways[0]), fsms)) as workload:
                for way in ways:
                    yield _step(settings, workload, ready.head.token_limit, rows, way)
        yield _draws(settings, ready, fsms, rows)


def config_of(settings: Settings, rows: int, way: Way) -> EngineConfig:
    """Return the settings of the engine for one measurement.

    Args:
        settings: Model and lengths.
        rows: Number of sequences, each of which gets a slot of the KV cache.
        way: Way to run steps.
    """
    on_device = "cuda_graph" if settings.device.type == "cuda" else "eager"
    return EngineConfig(
        device=str(settings.device),
        max_num_seqs=rows,
        max_model_len=settings.length,
        long_prefill_token_threshold=settings.prompt,
        max_num_batched_tokens=max(2, rows) * max(16, settings.prompt),
        rejection_mass_interval=0,
        mask_timeout_ms=50,
        device_step=on_device if way.draws_on == "device" else "off",
        **({} if way.drafts else _NO_DRAFTS),
    )


def _step(settings: Settings, workload: Workload, vocabulary: int, rows: int, way: Way) -> Step:
    def requests(tokens: int) -> list[GenerationRequest]:
        return workload.requests(rows, settings.prompt, tokens, guided=way.guided)

    def counted() -> tuple[int, int, int]:
        """Forward passes, draws, and those of them that were the host's."""
        counts, engine = workload.engine.step_loop.sampler.counts, workload.engine.statistics
        return engine.steps, engine.sampled_tokens, counts["forced"] + counts["sparse"] + counts["dense"]

    workload.run(requests(settings.tokens))  # mask rows, tables of automata
    workload.wait_exported()
    before = counted()
    made = sum(map(len, workload.run(requests(settings.tokens))))
    passes, draws, on_host = (after - earlier for after, earlier in zip(counted(), before, strict=True))
    times, before = workload.steps.seconds, counted()
    with workload.copies_counted() as copied:
        workload.run(requests(max(8, settings.tokens // 4)))
    steps = counted()[0] - before[0]
    return Step(
        vocabulary,
        rows,
        way.name,
        1000 * statistics.median(times),
        len(times),
        made / (rows * passes),
        1 - on_host / draws,
        copied.up / steps,
        copied.down / steps,
    )


def _draws(settings: Settings, ready: LoadedModel, fsms: list[TokenFSM], rows: int) -> Draws:
    """Time the sampler alone on random hidden states of unit scale, as a model returns them."""
    head, device = ready.head, settings.device
    width = ready.model.get_output_embeddings().weight.shape[1] if head.separable else head.token_limit  # type: ignore[union-attr,index]
    hidden_states = torch.randn(rows, int(width), dtype=settings.dtype, device=device)
    sampler = Sampler(head, device)
    free = [_free_text(fsm) for fsm in fsms]

    def draws(allowed: list[AllowedTokens | None]) -> list[Draw]:
        return [Draw(SamplingParameters(seed=row), 0, 1, allowed=allowed[row % len(allowed)]) for row in range(rows)]

    masked, unmasked = draws([*free]), draws([None])
    prepared, plain = sampler.prepare(masked), sampler.prepare(unmasked)
    return Draws(
        head.token_limit,
        rows,
        _ms(settings, lambda: head.logits(hidden_states)),
        _ms(settings, lambda: sampler.draw(hidden_states, plain).token_ids()),
        _ms(settings, lambda: sampler.draw(hidden_states, prepared).token_ids()),
        _ms(settings, lambda: sampler.prepare(masked)),
    )


def _free_text(fsm: TokenFSM) -> AllowedTokens:
    """Return the mask with the most allowed tokens among the states of a random run."""
    rng = np.random.default_rng(0)
    state, best = fsm.initial_state, fsm.initial_state
    for _ in range(_WALK_TOKENS):
        following = fsm.next_state(state, int(rng.choice(sorted(fsm.allowed_tokens(state)))))
        state = fsm.initial_state if following == fsm.end_state else following
        best = max(best, state, key=fsm.count_allowed)
    return read_row(fsm.allowed_mask(best), fsm.vocabulary.eos_token_ids, sparse_limit=0)


@torch.inference_mode()
def _ms(settings: Settings, run: Callable[[], Tensor | object]) -> float:
    """Return the median time of one call in ms, including the device's work."""

    def once() -> float:
        started = time.perf_counter()
        run()
        if settings.device.type == "cuda":
            torch.cuda.synchronize(settings.device)
        return time.perf_counter() - started

    once()
    times: list[float] = []
    until = time.monotonic() + settings.sample_s
    while len(times) < 3 or (len(times) < 200 and time.monotonic() < until):
        times.append(once())
    return 1000 * statistics.median(times)
