"""A decode step's time by the host's phases and the device's kernels, and the places where the host waits."""

from __future__ import annotations

import collections
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks.gpu.figures import WAYS, Settings, Way, config_of
from benchmarks.gpu.models import SHAPES, NamedVocabulary, as_tokenizer, random_llama
from benchmarks.gpu.workload import Workload, automata
from gpu_workers.model.loader import prepare

_PHASES = ("_schedule", "_launch", "_overlap", "_commit", "_sample", "_read_pass")
"""Methods of `StepLoop`; `_read_pass` is a part of `_sample`."""
_KERNELS = 12


@dataclass(frozen=True, slots=True)
class Trace:
    """One way of running `rows` rows; all times in ms of a step.

    `host`: by phase; what is left of `wall` is the wait for the pass. `busy`: the device worked, `kernels`: on what,
    the longest first, and how many there were in all. `waits`: the host waited for the device, by place, times a step.
    What only CUDA tells is empty elsewhere.
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
    """Every way without drafts, and guided by the device with them."""
    model = random_llama(
        SHAPES[settings.shape], named.vocabulary.size, settings.length, settings.dtype, settings.device
    )
    fsms = automata(named.vocabulary)
    model.set_attn_implementation("sdpa")
    loaded = prepare(model, as_tokenizer(named), named.vocabulary, config_of(settings, rows, WAYS[0]))
    for way in WAYS:
        if way not in settings.ways or (way.drafts and way.name != "guided, device, drafts"):
            continue
        workload = Workload(loaded, config_of(settings, rows, way), fsms)
        try:
            yield _trace(settings, workload, way, named.vocabulary.size, rows)
        finally:
            workload.close()


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


@contextmanager
def _phases_timed(workload: Workload) -> Iterator[dict[str, float]]:
    """Seconds of the engine thread in each phase."""
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

    before = dict(loop.__dict__)
    for name in _PHASES:
        setattr(loop, name, timed(name))
    try:
        yield spent
    finally:
        for name in _PHASES:
            if name in before:
                setattr(loop, name, before[name])
            else:
                delattr(loop, name)


@contextmanager
def _waits_counted(workload: Workload) -> Iterator[collections.Counter[str]]:
    """Counts the waits of the engine thread for the device by place, as CUDA's debug mode reports them."""
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

    loop._step = watched
    try:
        yield found
    finally:
        del loop._step


def _profiled(run: Any) -> tuple[float, float, collections.Counter[str]]:
    """Of a step: ms in which the device works, how many kernels it runs, and ms by kernel."""
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
