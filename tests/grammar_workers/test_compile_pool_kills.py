"""Whatever is killed, and whenever: every job ends, rightly, and nothing is left over."""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import signal
import threading
import time
from concurrent.futures import Future

import pytest

from grammar_workers.service.pool import AbandonedError, CompileFailedError, CompilePool, ResourceLimitError
from tests.grammar_workers.compile_jobs import behave, forked, server_pid, worker_pids

SECONDS = 60
PROCESSES = 2


@pytest.mark.long
@pytest.mark.timeout(600)
def test_kills_at_any_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLICE_S", "LONGEST_SLICE_S"):
        monkeypatch.setattr(f"grammar_workers.service.pool.{name}", 0.02)
    monkeypatch.setattr("grammar_workers.service.worker_handle._FORK_TIMEOUT_S", 5.0)
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    pool = CompilePool(
        "tests.grammar_workers.compile_jobs:load", {}, processes=PROCESSES, timeout_s=600, start_timeout_s=60
    )
    pool.wait_ready()
    before = len(os.listdir("/proc/self/fd"))
    over = threading.Event()
    # On a slow machine jobs end less often, and so do processes: most jobs are done all the same.
    ended = threading.Semaphore(0)
    killer = threading.Thread(target=_kill, args=(pool, random.Random(seed + 1), over, ended))
    killer.start()
    jobs: list[tuple[bytes, Future[bytes]]] = []
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        key = secrets.token_hex(32)
        action = {"do": "sleep", "seconds": draw.choice([0, 0, 0.01, 0.1, 0.5])}
        wanted = draw.random() < 0.9
        tenant = draw.choice("abc")
        jobs.append((behave(key, {"do": "nothing"}, tenant), pool.submit(key, action, tenant, lambda w=wanted: w)))
        jobs[-1][1].add_done_callback(lambda _: ended.release())
        if draw.random() < 0.05:
            jobs[-1][1].cancel()
        time.sleep(draw.choice([0, 0.1, 0.2]))
    over.set()
    killer.join()
    outcomes = {"done": 0, "killed twice": 0, "unwanted": 0, "nobody there": 0}
    for expected, job in jobs:
        try:
            assert job.cancelled() or job.result(300) == expected
            outcomes["done"] += 1
        except ResourceLimitError as error:
            assert "ended its process" in error.message
            outcomes["killed twice"] += 1
        except AbandonedError:
            outcomes["unwanted"] += 1
        except CompileFailedError as error:
            assert "ready" in str(error) or "not loaded" in str(error)
            outcomes["nobody there"] += 1
    print(outcomes)
    assert outcomes["done"] > len(jobs) / 2
    assert pool.backlog == 0
    deadline = time.monotonic() + 200
    while len(pool._ready) < PROCESSES + 1 or len(os.listdir("/proc/self/fd")) > before:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    # Some of the pool's may be children of a server that has been killed since.
    assert forked(pool) <= set(worker_pids(pool)) and len(worker_pids(pool)) == PROCESSES + 1
    pool.close()


def _kill(pool: CompilePool, draw: random.Random, over: threading.Event, ended: threading.Semaphore) -> None:
    """Compile processes, one for each four jobs that end, and the fork server, which is stopped instead at times."""
    credit = 0
    while not over.wait(draw.choice([0, 0.1, 0.5, 1.0])):
        credit += ended.acquire(timeout=0.1)
        while ended.acquire(blocking=False):
            credit += 1
        if credit < 4:
            continue
        credit -= 4
        server, workers = server_pid(pool), worker_pids(pool)
        with contextlib.suppress(ProcessLookupError):
            if server is not None and draw.random() < 0.05:
                os.kill(server, draw.choice([signal.SIGKILL, signal.SIGSTOP]))
            elif workers:
                os.kill(draw.choice(workers), signal.SIGKILL)
