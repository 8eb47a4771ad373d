"""Runs cases one after the other, in this process or in several, and collects what was found."""

from __future__ import annotations

import collections
import dataclasses
import multiprocessing
import queue
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil

from grammar_workers import warm_up
from tests.grammar_workers.fuzz.cases import draw
from tests.grammar_workers.fuzz.check import Counts, Failure, check_seed
from tests.grammar_workers.fuzz.shrink import shrunk, signature
from tests.grammar_workers.fuzz.vocabularies import every_byte

_STUCK_CPU_SECONDS = 120
"""After so much a case is in a compiled loop that nothing ends."""
_REPORTED_CASES = 100
"""After so many a process tells its counts, which are lost with it."""
_MOST_BYTES = 4 << 30
_SHRINKING = 0.3
"""The share of the time that making failures smaller may take: one hole may break laws in every other case."""


@dataclasses.dataclass
class Report:
    """Counts, and the failures: of those that are likely the same, the smallest."""

    counts: Counts = dataclasses.field(default_factory=collections.Counter)
    failures: dict[str, Failure] = dataclasses.field(default_factory=dict)

    def add(self, failure: Failure) -> bool:
        """Whether it is of a new kind."""
        self.counts["FAILURES"] += 1
        key = signature(failure)
        known = self.failures.get(key)
        if known is None or _size(failure) < _size(known):
            self.failures[key] = failure
        return known is None


def _size(failure: Failure) -> int:
    return len(repr((failure.case.specification, failure.case.options, failure.witness)))


Show = Callable[[Failure], None]


def ignore(_: Failure) -> None:
    pass


class Fuzzer:
    """The cases `first`, `first + step`, ... of a seed."""

    def __init__(self, seed: str, first: int = 0, step: int = 1) -> None:
        warm_up(every_byte().vocabulary())
        self.counts: Counts = collections.Counter()
        self.number = first
        """The case that comes next."""
        self._step = step
        self._seed = seed
        self._shrinking = 0.0
        self._begin = time.process_time()

    def failures(self, seconds: float, most: int | None = None) -> Iterator[Failure]:
        """What is found within so many seconds, or `most` cases, made smaller."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and (most is None or self.counts["cases"] < most):
            self.counts["cases"] += 1
            found = check_seed(f"{self._seed}/{self.number}", self.counts)
            self.number += self._step
            yield from map(self._smaller, found)

    def _smaller(self, failure: Failure) -> Failure:
        begin = time.process_time()
        if self._shrinking > 10 + _SHRINKING * (begin - self._begin):
            return failure
        failure = shrunk(failure)
        self._shrinking += time.process_time() - begin
        return failure


def run_here(seed: str, seconds: float, most: int | None = None, *, first: int = 0, show: Show = ignore) -> Report:
    """In this process. `show` is told of every failure of a new kind."""
    report = Report()
    fuzzer = Fuzzer(seed, first)
    for failure in fuzzer.failures(seconds, most):
        if report.add(failure):
            show(failure)
    report.counts += fuzzer.counts
    return report


# -- several processes ---------------------------------------------------------------------------------------------


def run_apart(seed: str, seconds: float, processes: int, *, show: Show = ignore) -> Report:
    """In processes of their own: one that hangs or takes too much memory is ended, and its case is a failure."""
    context = multiprocessing.get_context("spawn")
    found = context.Queue()
    deadline = time.monotonic() + seconds
    report = Report()
    workers = [_Worker(context, found, seed, part, part, processes, deadline) for part in range(processes)]
    left = processes
    while left:
        try:
            message = found.get(timeout=1)
        except queue.Empty:
            for number, worker in enumerate(workers):
                if reason := worker.trouble():
                    failure = worker.end(reason)
                    if report.add(failure):
                        show(failure)
                    workers[number] = worker.successor()
            continue
        if isinstance(message, Failure):
            if report.add(message):
                show(message)
        elif message is None:
            left -= 1
        else:
            report.counts += message
    for worker in workers:
        worker.process.join()
    return report


class _Worker:
    """A process, and which case it is at."""

    def __init__(self, context: Any, found: Any, seed: str, part: int, first: int, step: int, deadline: float) -> None:
        self._arguments = (context, found, seed, part)
        self._step = step
        self._deadline = deadline
        self._seed = seed
        self._at = context.Value("q", first)
        self._since = (first, 0.0)
        seconds = max(deadline - time.monotonic(), 0)
        self.process = context.Process(target=_work, args=(found, self._at, seed, first, step, seconds), daemon=True)
        self.process.start()

    def trouble(self) -> str | None:
        if not self.process.is_alive():
            return f"the process died with {self.process.exitcode}" if self.process.exitcode else None
        process = psutil.Process(self.process.pid)
        number, used = self._at.value, process.cpu_times().user
        if number != self._since[0]:
            self._since = (number, used)
        if process.memory_info().rss > _MOST_BYTES:
            return f"more than {_MOST_BYTES >> 30} GiB of memory"
        return "never ends" if used - self._since[1] > _STUCK_CPU_SECONDS else None

    def end(self, reason: str) -> Failure:
        self.process.kill()
        seed = f"{self._seed}/{self._at.value}"
        return Failure("compiles", draw(random.Random(seed)).case, None, reason, seed)

    def successor(self) -> _Worker:
        context, found, seed, part = self._arguments
        return _Worker(context, found, seed, part, self._at.value + self._step, self._step, self._deadline)


def _work(found: Any, at: Any, seed: str, first: int, step: int, seconds: float) -> None:
    """Puts failures and counts, and None at the end."""
    fuzzer = Fuzzer(seed, first, step)
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        for failure in fuzzer.failures(left, fuzzer.counts["cases"] + 1):
            found.put(failure)
        at.value = fuzzer.number
        if fuzzer.counts["cases"] >= _REPORTED_CASES:
            found.put(fuzzer.counts.copy())
            fuzzer.counts.clear()
    found.put(fuzzer.counts)
    found.put(None)
