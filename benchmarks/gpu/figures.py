"""What a decode step costs: unguided, guided by the host and by the device, with and without drafts."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.gpu.models import SHAPES, NamedVocabulary, as_tokenizer, random_llama
from benchmarks.gpu.workload import Workload, automata
from gpu_workers.config import EngineConfig
from gpu_workers.model.loader import LoadedModel, prepare
from gpu_workers.request import GenerationRequest, SamplingParameters
from gpu_workers.sampling.allowed_tokens import AllowedTokens, read_row
from gpu_workers.sampling.sampler import Draw, Sampler
from grammar_workers import TokenFSM

_NO_DRAFTS: dict[str, Any] = {"max_drafts": 0, "ngram": 0, "forced_text": False}
_WALK_TOKENS = 40


@dataclass(frozen=True, slots=True)
class Way:
    """One column of the table. `draws_on`: host or device; without drafts a step gives each row one token."""

    name: str
    guided: bool
    draws_on: str
    drafts: bool


WAYS = (
    Way("unguided, host", guided=False, draws_on="host", drafts=False),
    Way("guided, host", guided=True, draws_on="host", drafts=False),
    Way("unguided, host, drafts", guided=False, draws_on="host", drafts=True),
    Way("guided, host, drafts", guided=True, draws_on="host", drafts=True),
    Way("unguided, device", guided=False, draws_on="device", drafts=False),
    Way("guided, device", guided=True, draws_on="device", drafts=False),
    Way("unguided, device, drafts", guided=False, draws_on="device", drafts=True),
    Way("guided, device, drafts", guided=True, draws_on="device", drafts=True),
)


@dataclass(frozen=True, slots=True)
class Settings:
    """The model, batches and texts of a measurement, and its ways, of `WAYS`; `sample_s`: time for a part of a draw."""

    device: torch.device
    shape: str
    dtype: torch.dtype
    rows: list[int]
    tokens: int
    prompt: int
    sample_s: float
    ways: tuple[Way, ...] = WAYS

    @property
    def length(self) -> int:
        """Of a slot: prompt, output, and drafts beyond it."""
        return self.prompt + self.tokens + 32

    @property
    def traced_rows(self) -> int:
        """The number of rows next to eight."""
        return min(self.rows, key=lambda rows: abs(rows - 8))


@dataclass(frozen=True, slots=True)
class Step:
    """One cell: a way and a number of rows.

    `ms`: median of the `steps` in which all rows decoded; `tokens`: a row's in a forward pass; `on_device`: share of
    the draws that the device made; bytes copied in a step.
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
    """Parts of one host-drawn step in ms, all rows inside of free text: head, with a draw, with masks and a draw."""

    vocabulary: int
    rows: int
    head: float
    unmasked: float
    masked: float
    prepare: float


def measure(settings: Settings, named: NamedVocabulary) -> Iterator[Step | Draws]:
    """Cell after cell of one vocabulary."""
    model = random_llama(
        SHAPES[settings.shape], named.vocabulary.size, settings.length, settings.dtype, settings.device
    )
    fsms = automata(named.vocabulary)
    for rows in settings.rows:
        model.set_attn_implementation("sdpa")  # what the engine compares itself with
        loaded = prepare(model, as_tokenizer(named), named.vocabulary, config_of(settings, rows, WAYS[0]))
        # An engine that draws on the device captures its steps first: ways that can share one do.
        for _, ways in itertools.groupby(settings.ways, key=lambda way: (way.draws_on, way.drafts)):
            yield from _steps(settings, loaded, fsms, rows, list(ways))
        yield _draws(settings, loaded, fsms, rows)


def config_of(settings: Settings, rows: int, way: Way) -> EngineConfig:
    """The engine's settings for `way` with a slot for each row."""
    on_device = "cuda_graph" if settings.device.type == "cuda" else "eager"
    return EngineConfig(
        device=str(settings.device),
        slots=rows,
        max_length=settings.length,
        prefill_chunk=settings.prompt,
        step_tokens=max(2, rows) * max(16, settings.prompt),
        rejection_mass_interval=0,
        mask_patience_ms=50,
        device_step=on_device if way.draws_on == "device" else "off",
        **({} if way.drafts else _NO_DRAFTS),
    )


def _steps(settings: Settings, loaded: LoadedModel, fsms: list[TokenFSM], rows: int, ways: list[Way]) -> Iterator[Step]:
    """The cells of `ways`, which differ in their requests alone."""
    workload = Workload(loaded, config_of(settings, rows, ways[0]), fsms)
    try:
        for way in ways:
            yield _step(settings, workload, loaded.head.token_limit, rows, way)
    finally:
        workload.close()


def _step(settings: Settings, workload: Workload, vocabulary: int, rows: int, way: Way) -> Step:
    def requests(tokens: int) -> list[GenerationRequest]:
        return workload.requests(rows, settings.prompt, tokens, guided=way.guided)

    def counted() -> tuple[int, int, int]:
        """Forward passes, draws, and those of them that were the host's."""
        counts, engine = workload.engine.step_loop.sampler.counts, workload.engine.statistics
        return engine.steps, engine.sampled_tokens, counts.forced + counts.sparse + counts.dense

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


def _draws(settings: Settings, loaded: LoadedModel, fsms: list[TokenFSM], rows: int) -> Draws:
    """Times the sampler alone on hidden states as a model leaves them: random, of unit scale."""
    head, device = loaded.head, settings.device
    width = loaded.model.get_output_embeddings().weight.shape[1] if head.separable else head.token_limit  # type: ignore[union-attr,index]
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
    """The row that allows the most tokens, of the states that a random walk meets."""
    rng = np.random.default_rng(0)
    state, best = fsm.initial_state, fsm.initial_state
    for _ in range(_WALK_TOKENS):
        following = fsm.next_state(state, int(rng.choice(sorted(fsm.allowed_tokens(state)))))
        state = fsm.initial_state if following == fsm.end_state else following
        best = max(best, state, key=fsm.count_allowed)
    return read_row(fsm.allowed_mask(best), fsm.vocabulary.eos_token_ids, sparse_limit=0)


@torch.inference_mode()
def _ms(settings: Settings, run: Callable[[], Tensor | object]) -> float:
    """Milliseconds of one call, the device's work included: the median of many."""

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
