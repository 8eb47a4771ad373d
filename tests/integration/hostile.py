"""Hostile bodies beside a steady stream: what it notices of them, and what the router keeps of them.

    python -m tests.integration.hostile [--requests 170] [--at-a-time 1 8] [--url http://127.0.0.1:8000]

Sends every body of `tests/hostile/many_errors.py` as large as a body may be, and more that are made from valid ones,
and looks at each answer. Prints the largest gap of the stream, alone and beside each kind, and how far the memory of
the router grew (the peak that the kernel counts; only for a server that is started here). Exit status 1 when an answer
is not as it should be, a gap is longer than 1 s, or the memory grows by more than 300 MB.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from deployments.arguments import RouterArguments
from tests.hostile.answers import fault
from tests.hostile.many_errors import MANY_ERRORS, MANY_PARTS
from tests.hostile.mutations import hostile_bodies
from tests.hostile.steady_stream import SteadyStream
from tests.integration.server import Server

LARGEST = RouterArguments().max_body_bytes
MOST_GAP_S = 1.0
MOST_MEMORY_MB = 300
ALONE_S = 10.0


@dataclass(frozen=True)
class Attack:
    """One body; `make` returns its text and its value, None where nobody can tell what that is."""

    name: str
    path: str
    make: Callable[[], tuple[bytes, Any]]


@dataclass
class Finding:
    """What was noticed while an attack went on."""

    name: str
    status: int
    seconds: float
    gap_s: float
    cpu_s: float
    """Of the routers."""
    memory_mb: float
    fault: str | None


def crafted() -> list[Attack]:
    """Those of many errors and many parts."""

    def attack(name: str, path: str, body: Callable[[int], bytes]) -> Attack:
        return Attack(name, path, lambda: (text := body(LARGEST), _value(text)))

    return [
        *(attack(f"errors: {name}", *one) for name, one in MANY_ERRORS.items()),
        *(attack(f"parts: {name}", *one) for name, one in MANY_PARTS.items()),
    ]


def generated(many: int, seed: int) -> Iterator[Attack]:
    """Those made from valid bodies."""
    for number, (path, text, value) in enumerate(
        itertools.islice(hostile_bodies(random.Random(seed), large=True), many)
    ):
        yield Attack(f"generated {number} (seed {seed})", path, lambda text=text, value=value: (text, value))  # type: ignore[misc]


def _value(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


class Field:
    """A server, the stream and the router's memory."""

    def __init__(self, url: str, stream: SteadyStream, routers: Sequence[psutil.Process]) -> None:
        self._url = url
        self._stream = stream
        self._routers = routers
        self._before = {router.pid: router.memory_info().rss for router in routers}
        for router in routers:
            Path(f"/proc/{router.pid}/clear_refs").write_text("5")  # the peak begins here

    def alone(self) -> float:
        """The largest gap of the stream when nothing else goes on."""
        self._stream.gaps()
        time.sleep(ALONE_S)
        return max((gap.seconds for gap in self._stream.gaps()), default=0.0)

    def attack(self, attacks: Sequence[Attack]) -> list[Finding]:
        """Send these at the same time."""
        made = [(one, *one.make()) for one in attacks]
        self._stream.gaps()
        before = self._cpu_s()
        with ThreadPoolExecutor(len(made)) as threads:
            answers = list(threads.map(lambda one: self._send(one[0].path, one[1]), made))
        time.sleep(0.1)  # chunks that were held up come now
        cpu_s = self._cpu_s() - before
        gap = max((gap.seconds for gap in self._stream.gaps()), default=0.0)
        memory = self.memory_mb()
        return [
            Finding(one.name, answer.status_code, seconds, gap, cpu_s, memory, fault(answer, value))
            for (one, _, value), (answer, seconds) in zip(made, answers, strict=True)
        ]

    def _cpu_s(self) -> float:
        return sum(sum(router.cpu_times()[:2]) for router in self._routers)

    def memory_mb(self) -> float:
        """How far the memory of a router has been above what it was."""
        return max((_peak(router.pid) - self._before[router.pid] for router in self._routers), default=0) / 1e6

    def _send(self, path: str, text: bytes) -> tuple[httpx.Response, float]:
        began = time.monotonic()
        headers = {"content-type": "application/json"}
        response = httpx.post(f"{self._url}{path}", content=text, headers=headers, timeout=120, trust_env=False)
        return response, time.monotonic() - began


def _peak(pid: int) -> int:
    """Bytes (VmHWM)."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))) * 1024


@contextlib.contextmanager
def field_of(url: str, routers: Sequence[psutil.Process]) -> Iterator[Field]:
    with SteadyStream(url) as stream:
        yield Field(url, stream, routers)


def _groups(attacks: Sequence[Attack], size: int) -> Iterator[Sequence[Attack]]:
    for start in range(0, len(attacks), size):
        yield attacks[start : start + size]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=170, help="generated ones (default %(default)s)")
    parser.add_argument("--at-a-time", type=int, nargs="+", default=[1, 8], help="requests (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of what is generated (default %(default)s)")
    parser.add_argument("--url", help="a running server (default: start one)")
    parser.add_argument("--all", action="store_true", help="tell what was found of every body")
    arguments = parser.parse_args()
    wrong = False
    with contextlib.ExitStack() as stack:
        routers: list[psutil.Process] = []
        if (url := arguments.url) is None:
            server = stack.enter_context(Server({"store": "memory://"}))
            url, routers = server.url, server.replicas("Router")
        field = stack.enter_context(field_of(url, routers))
        print(f"largest gap alone: {field.alone():.3f} s", flush=True)
        attacks = [*crafted(), *generated(arguments.requests, arguments.seed)]
        for size in arguments.at_a_time:
            findings = [finding for group in _groups(attacks, size) for finding in field.attack(group)]
            worst = max(findings, key=lambda finding: finding.gap_s)
            slowest = max(findings, key=lambda finding: finding.seconds)
            for finding in findings:
                if arguments.all or finding.fault is not None:
                    print(finding)
            print(
                f"{len(findings)} hostile bodies, {size} at a time: largest gap {worst.gap_s:.3f} s ({worst.name}), "
                f"slowest answer {slowest.seconds:.2f} s ({slowest.name}), "
                f"the router's memory grew by at most {field.memory_mb():.0f} MB",
                flush=True,
            )
            wrong |= worst.gap_s > MOST_GAP_S or any(finding.fault is not None for finding in findings)
        wrong |= field.memory_mb() > MOST_MEMORY_MB
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
