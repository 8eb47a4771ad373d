"""Traces of decode steps: time per phase of the host and per kernel of the device, and waits of the host."""

from __future__ import annotations

import collections
import contextlib
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch

from benchmarks.gpu.figures import WAYS, Settings, Way, config_of
from benchmarks.gpu.models import NamedVocabulary, loaded
from benchmarks.gpu.workload import Workload, automata

# Methods of `StepLoop` that are timed; the time of `_read_pass` is also in `_sample`.
_PHASES = ("_schedule", "_launch", "_overlap", "_commit", "_sample", "_read_pass")
_KERNELS = 12


@dataclass(frozen=True, slots=True)
class Trace:
    """Trace of decode steps. All times are in ms per step. Without CUDA, the last four fields are 0 or empty.

    Attributes:
        vocabulary: Number of tokens in the vocabulary.
        rows: Number of sequences in the batch.
        way: Name of the way to run steps.
        wall: Wall time.
        host: Time of each phase of the host. The rest of `wall` is the wait for the forward pass.
        busy: Time in which the device worked.
        launches: Number of kernels per step.
        kernels: Time of each kernel, the longest first.
        waits: For each source location, the number of times per step that the host waited there for the device.
    """

    vocabulary: int
    rows: int
    way: str
    wall: float
    host: dict[str, float]
    busy: float = 0.0
    launches: float = 0.0
    kernels: dict[str, float] = field(default_factory=dict)
    waits: dict[str, float] = field(default_factory=dict)


def traces(settings: Settings, named: NamedVocabulary, rows: int) -> Iterator[Trace]:
    """Trace decode steps without drafts, and guided steps with drafts that the device samples.

    Args:
        settings: Model and lengths.
        named: Vocabulary of the model.
        rows: Number of sequences.

    Yields:
        One trace per way to run steps.
    """
    ready = loaded(settings.model(named), named, config_of(settings, rows, WAYS[0]))
    fsms = automata(named.vocabulary)
    for way in settings.ways:
        if way.drafts and way.name != "guided, device, drafts":
            continue
        with contextlib.closing(Workload(ready, config_of(settings, rows, way), fsms)) as workload:
            yield _trace(settings, workload, way, named.vocabulary.size, rows)


def _trace(settings: Settings, workload: Workload, way: Way, vocabulary: int, rows: int) -> Trace:
    def run() -> int:
        before = workload.engine.statistics.steps
        workload.run(workload.requests(rows, settings.prompt, settings.tokens, guided=way.guided))
        return workload.engine.statistics.steps - before

    run()  # mask rows, tables of automata
    workload.wait_exported()
    run()
    with _phases_timed(workload) as host:
        started = time.perf_counter()
        steps = run()
        wall = time.perf_counter() - started
    told = {name.removeprefix("_"): 1000 * seconds / steps for name, seconds in host.items()}
    if settings.device.type != "cuda":
        return Trace(vocabulary, rows, way.name, 1000 * wall / steps, told)
    with _waits_counted(workload) as waits:
        steps = run()
    counted = {place: times / steps for place, times in waits.items()}
    busy, launches, kernels = _profiled(run)
    longest = dict(kernels.most_common(_KERNELS))
    return Trace(vocabulary, rows, way.name, 1000 * wall / steps, told, busy, launches, longest, counted)


@contextlib.contextmanager
def _phases_timed(workload: Workload) -> Iterator[dict[str, float]]:
    """Yield the seconds of the engine thread in each phase."""
    loop: Any = workload.engine.step_loop
    spent = dict.fromkeys(_PHASES, 0.0)

    def timed(name: str) -> Any:
        method = getattr(loop, name)

        def run(*arguments: Any) -> Any:
            began = time.perf_counter()
            try:
                return method(*arguments)
            finally:
                spent[name] += time.perf_counter() - began

        return run

    with mock.patch.multiple(loop, **{name: timed(name) for name in _PHASES}):
        yield spent


@contextlib.contextmanager
def _waits_counted(workload: Workload) -> Iterator[collections.Counter[str]]:
    """Count by source location how often the engine thread waits for the device, as CUDA's debug mode reports it."""
    loop: Any = workload.engine.step_loop
    step, found = type(loop)._step.__get__(loop), collections.Counter[str]()

    def watched() -> None:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                step()
            finally:
                torch.cuda.set_sync_debug_mode("default")
        found.update(
            f"{one.filename.rsplit('/', 1)[-1]}:{one.lineno}" for one in told if "synchron" in str(one.message)
        )

    with mock.patch.object(loop, "_step", watched):
        yield found


def _profiled(run: Any) -> tuple[float, float, collections.Counter[str]]:
    """Return per step: ms in which the device works, number of kernels, and ms by kernel."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        steps = run()
    kernels = collections.Counter[str]()
    spans = []
    for event in profiler.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            kernels[event.name[:80]] += event.time_range.elapsed_us() / 1000 / steps
            spans.append((event.time_range.start, event.time_range.end))
    busy, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        busy += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return busy / 1000 / steps, len(spans) / steps, kernels
