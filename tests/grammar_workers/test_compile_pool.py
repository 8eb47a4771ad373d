"""The pool against compilers that hang, swell, crash and lie, and with the real one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from grammar_workers.errors import LimitExceededError, UnsatisfiableError
from grammar_workers.service.fair_queue import QueueFullError
from grammar_workers.service.pool import AbandonedError, CompileFailedError, CompilePool, ResourceLimitError
from grammar_workers.service.worker_handle import WorkerStartError
from tests.grammar_workers import compile_jobs
from tests.grammar_workers.compile_jobs import server_pid, worker_pids

TARGET = "tests.grammar_workers.compile_jobs:load"
GUARD_S = 200
"""Seconds after which a test fails. It is long, because a busy machine may not run a process of low priority."""
PROGRAM = """
import sys
from grammar_workers.service.pool import CompilePool
from tests.grammar_workers.compile_jobs import server_pid, worker_pids
pool = CompilePool("tests.grammar_workers.compile_jobs:load", {}, cpu_s=600)
pool.wait_ready()
if sys.argv[1] == "busy":
    pool.submit("0" * 64, {"do": "spin"})
print(server_pid(pool), *worker_pids(pool), flush=True)
sys.stdin.readline()
"""
LOADING = """
from grammar_workers.service.pool import CompilePool
CompilePool("tests.grammar_workers.compile_jobs:load", {"failure": "hang"}).wait_ready()
"""


@contextmanager
def running(arguments: dict[str, Any] | None = None, **settings: Any) -> Iterator[CompilePool]:
    pool = CompilePool(TARGET, arguments or {}, **{"cpu_s": 600, "timeout_s": 600, **settings})
    try:
        pool.wait_ready()
        yield pool
    finally:
        pool.close()


@pytest.fixture(scope="module")
def pool() -> Iterator[CompilePool]:
    """Two processes with generous limits."""
    with running(processes=2) as pool:
        yield pool


@pytest.fixture(autouse=True)
def slices_of_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short ones, and no others: on a busy machine the quickest job may take a second."""
    monkeypatch.setattr("grammar_workers.service.pool.SLICE_S", 0.05)
    monkeypatch.setattr("grammar_workers.service.pool.LONGEST_SLICE_S", 1e9)


def submit(pool: CompilePool, action: str, **details: Any) -> Future[bytes]:
    return pool.submit(secrets.token_hex(32), {"do": action, **details})


def run(pool: CompilePool, action: str, **details: Any) -> bytes:
    return submit(pool, action, **details).result(timeout=GUARD_S)


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + GUARD_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # gone before, or between opening and reading
        return False


def kill(*pids: int | None) -> None:
    for pid in pids:
        assert pid is not None
        with contextlib.suppress(ProcessLookupError):  # the pool has ended it itself
            os.kill(pid, signal.SIGKILL)
    eventually(lambda: not any(pid is not None and alive(pid) for pid in pids))


def test_answers(pool: CompilePool) -> None:
    assert pool.wait_ready() == compile_jobs.FINGERPRINT
    key = "ab" * 32
    assert pool.submit(key, {"do": "nothing"}).result(GUARD_S) == compile_jobs.behave(key, {"do": "nothing"})
    results = [submit(pool, "nothing") for _ in range(50)]
    assert all(result.result(GUARD_S) for result in results)


def test_a_refusal_arrives_whole(pool: CompilePool) -> None:
    with pytest.raises(UnsatisfiableError) as caught:
        run(pool, "refuse")
    assert caught.value.to_dict() == {
        "code": "unsatisfiable_grammar",
        "message": "nothing matches",
        "pointer": "#/a",
        "position": 3,
    }


def test_a_bug_of_the_compiler_is_ours_and_ends_nothing(pool: CompilePool) -> None:
    before = set(worker_pids(pool))
    with pytest.raises(CompileFailedError, match="KeyError: 'a bug'"):
        run(pool, "break")
    assert run(pool, "nothing")
    assert set(worker_pids(pool)) == before


def test_a_specification_nested_beyond_the_stack_is_refused(pool: CompilePool) -> None:
    with pytest.raises(LimitExceededError, match="nested too deeply"):
        run(pool, "recurse")


def test_a_process_that_forks_has_one_thread(pool: CompilePool) -> None:
    """A fork beside other threads could inherit a lock that nobody releases (Python warns of it from 3.12 on)."""
    assert psutil.Process(server_pid(pool)).num_threads() == 1


def test_lowest_priority_own_session_no_gpu(pool: CompilePool) -> None:
    assert run(pool, "nice").decode() == f"19 {os.SCHED_IDLE}"
    parent, session, devices = run(pool, "environment").decode().split()
    assert int(parent) == server_pid(pool)
    assert int(session) in worker_pids(pool)
    assert devices == "''"


def test_a_pool_that_is_not_idle_stays_in_the_callers_session() -> None:
    with running(idle=False) as pool:
        nice = min(os.nice(0) + 3, 19)
        assert run(pool, "nice").decode() == f"{nice} {os.SCHED_OTHER}"
        _, session, _ = run(pool, "environment").decode().split()
        assert int(session) == os.getsid(0)
        for pid in (server_pid(pool), *worker_pids(pool)):  # a Ctrl-C does not reach them
            assert os.getpgid(pid) == server_pid(pool)


def test_asyncio(pool: CompilePool) -> None:
    async def compile_some() -> list[bytes]:
        jobs = [pool.submit(f"{number:064x}", {"do": "nothing"}) for number in range(10)]
        return await asyncio.gather(*map(asyncio.wrap_future, jobs))

    assert len(asyncio.run(compile_some())) == 10


def test_a_killed_process_costs_its_job_a_second_run(pool: CompilePool, tmp_path: Path) -> None:
    before = set(worker_pids(pool))
    assert run(pool, "die once", trace=str(tmp_path / "trace"))
    eventually(lambda: len(before & set(worker_pids(pool))) == 2)


def test_idle_processes_that_were_killed_are_replaced(pool: CompilePool) -> None:
    killed = worker_pids(pool)
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    # No job is refused for having met dead or dying processes only.
    assert all(result.result(GUARD_S) for result in [submit(pool, "nothing") for _ in range(8)])
    eventually(lambda: len(worker_pids(pool)) == 3 and not set(killed) & set(worker_pids(pool)))


def test_a_job_that_kills_its_process_again_is_refused(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with running() as pool:
        poison = submit(pool, "die", log=str(log))
        neighbour = submit(pool, "nothing")
        with pytest.raises(ResourceLimitError, match="ended its process 2 times"):
            poison.result(GUARD_S)
        assert neighbour.result(GUARD_S)
    pids = log.read_text().split()
    # A death before the pool has heard of the job's begin is not counted.
    assert len(pids) == len(set(pids)) >= 2


@pytest.mark.parametrize("action", ["spin", "stop"])
def test_the_deadline_kills_and_the_neighbours_go_on(action: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with running(processes=2) as pool:
        hanging = submit(pool, action, log=str(log))
        eventually(log.exists)
        assert run(pool, "nothing")
        assert not hanging.done()
        pool.timeout_s = 1.5
        with pytest.raises(ResourceLimitError, match=r"longer than the limit of 1\.5 s") as caught:
            hanging.result(GUARD_S)
        assert caught.value.code == "grammar_limit_exceeded"
        pool.timeout_s = 600
        (pid,) = map(int, log.read_text().split())
        eventually(lambda: not alive(pid))
        eventually(lambda: len(worker_pids(pool)) == 3)
        assert run(pool, "nothing")


def test_the_clock_of_a_process_ends_what_no_budget_counted() -> None:
    with running(cpu_s=0.5) as pool:
        before = set(worker_pids(pool))
        with pytest.raises(ResourceLimitError, match=r"more CPU than the limit of 0\.5 s"):
            run(pool, "spin")
        assert run(pool, "sleep", seconds=0.6)
        eventually(lambda: len(worker_pids(pool)) == 2 and len(before & set(worker_pids(pool))) == 1)


def test_the_memory_limit() -> None:
    with running(memory_limit_mb=1024) as pool:
        before = set(worker_pids(pool))
        assert run(pool, "allocate", bytes=100 << 20)
        with pytest.raises(ResourceLimitError, match="more memory than the limit of 1024 MiB"):
            run(pool, "allocate", bytes=2 << 30)
        assert run(pool, "nothing")
        eventually(lambda: len(worker_pids(pool)) == 2 and len(before & set(worker_pids(pool))) == 1)


def test_the_queue_is_bounded_and_forgets_cancelled_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grammar_workers.service.pool.SLICE_S", 1e9)
    gate, log = tmp_path / "gate", tmp_path / "log"
    with running(queue_size=2) as pool:
        running_job = submit(pool, "wait", until=str(gate), log=str(log))
        eventually(log.exists)
        first, second = submit(pool, "nothing"), submit(pool, "nothing", log=str(log))
        with pytest.raises(QueueFullError):
            submit(pool, "nothing")
        assert pool.queued == 2
        assert not running_job.cancel()
        assert second.cancel()
        third = submit(pool, "nothing")
        gate.touch()
        wait([running_job, first, third], timeout=GUARD_S)
        assert first.result() and third.result()
        assert len(log.read_text().split()) == 1, "the cancelled job ran"


def test_processes_that_cannot_load_say_why() -> None:
    with pytest.raises(WorkerStartError, match="OSError: no such model"):
        CompilePool(TARGET, {"failure": "no such model"}, processes=2).wait_ready()
    with pytest.raises(WorkerStartError, match="ended before it was ready"):
        CompilePool(TARGET, {"failure": "exit"}).wait_ready()
    with pytest.raises(WorkerStartError, match="not loaded within"):
        CompilePool(TARGET, {"failure": "hang"}, start_timeout_s=0).wait_ready()
    with pytest.raises(WorkerStartError, match="has started threads"):
        CompilePool(TARGET, {"failure": "threads"}).wait_ready()


def test_a_pool_that_cannot_restart_is_unhealthy_and_leaves_nobody_waiting(tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    starts.mkdir()
    with running({"starts": str(starts)}) as pool:
        pool.check_health()
        (starts / "moved").mkdir()
        starts.rename(tmp_path / "away")
        kill(server_pid(pool), *worker_pids(pool))
        with pytest.raises(CompileFailedError, match="could not load the compiler"):
            run(pool, "nothing")
        with pytest.raises(WorkerStartError):
            pool.check_health()
        (tmp_path / "away").rename(starts)
        eventually(lambda: healthy(pool))
        assert run(pool, "nothing")


def healthy(pool: CompilePool) -> bool:
    try:
        pool.check_health()
    except WorkerStartError:
        return False
    return True


def test_a_slow_job_holds_nobody_up(tmp_path: Path) -> None:
    gate, log = tmp_path / "gate", tmp_path / "log"
    with running() as pool:
        slow = submit(pool, "spin", until=str(gate), log=str(log))
        eventually(log.exists)
        assert all(run(pool, "nothing") for _ in range(20))
        assert not slow.done()
        gate.touch()
        assert slow.result(GUARD_S)
    assert len(log.read_text().split()) == 1, "it was run again though there was room for it"


def test_a_job_that_does_nothing_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grammar_workers.service.pool.LONGEST_SLICE_S", 0.1)
    with running() as pool:
        stopped = submit(pool, "stop")
        assert run(pool, "nothing")
        assert not stopped.done()


@pytest.mark.parametrize("processes", [1, 2])
def test_many_slow_jobs_hold_nobody_up_and_all_end(processes: int, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with running(processes=processes) as pool:
        slow = [submit(pool, "spin", until=str(gate)) for _ in range(4)]
        seen = set(worker_pids(pool))
        for _ in range(6):
            assert pool.submit(secrets.token_hex(32), {"do": "nothing"}, "other").result(GUARD_S)
            assert len(compile_jobs.forked(pool)) <= processes + 1
            seen |= set(worker_pids(pool))
        assert not any(job.done() for job in slow)
        assert len(seen) > processes + 1, "nobody made room"
        eventually(lambda: pool.queued + processes == pool.backlog == 4)
        gate.touch()
        assert all(job.result(GUARD_S) for job in slow)
        assert pool.backlog == 0


def test_tenants_take_turns_in_the_slow_lane_too(tmp_path: Path) -> None:
    gates = [tmp_path / f"gate {number}" for number in range(5)]
    log = tmp_path / "log"
    with running() as pool:

        def slow(number: int, tenant: str) -> Future[bytes]:
            job = {"do": "spin", "until": str(gates[number]), "log": str(log)}
            future = pool.submit(secrets.token_hex(32), job, tenant)
            eventually(lambda: log.exists() and len(log.read_text().split()) == number + 1)
            return future

        jobs = [slow(number, "one") for number in range(4)]
        jobs.append(slow(4, "two"))
        assert run(pool, "nothing")
        assert pool.queued == 4
        gates[0].touch()
        jobs[0].result(GUARD_S)
        gates[1].touch()
        jobs[1].result(GUARD_S)
        # Two of the first tenant's wait still, and have waited for longer.
        gates[4].touch()
        assert jobs[4].result(GUARD_S) and not jobs[2].done() and not jobs[3].done()


def test_a_slow_job_that_nobody_wants_makes_room_for_others(tmp_path: Path) -> None:
    gate, log = tmp_path / "gate", tmp_path / "log"
    wanted = [True, True]
    with running() as pool:

        def slow(number: int) -> Future[bytes]:
            job = {"do": "spin", "until": str(gate), "log": str(log)}
            future = pool.submit(secrets.token_hex(32), job, "", lambda: wanted[number])
            eventually(lambda: log.exists() and len(log.read_text().split()) == number + 1)
            return future

        first, second = slow(0), slow(1)
        assert run(pool, "nothing")
        assert pool.queued == 1
        wanted[0] = False
        with pytest.raises(AbandonedError):
            first.result(GUARD_S)
        # Nobody waits for the place of the second, which begins again: somebody may ask for it again.
        eventually(lambda: len(log.read_text().split()) == 3)
        wanted[1] = False
        time.sleep(0.3)  # for somebody to look
        gate.touch()
        assert second.result(GUARD_S)


def test_a_full_slow_lane_refuses(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with running(tenant_queue_size=1) as pool:
        slow = []
        for _ in range(3):
            slow.append(submit(pool, "spin", until=str(gate)))
            eventually(lambda: not len(pool._lanes._quick))
        last = pool.submit(secrets.token_hex(32), {"do": "nothing"}, "other")
        assert last.result(GUARD_S)
        with pytest.raises(QueueFullError):
            slow[2].result(GUARD_S)
        gate.touch()
        assert slow[0].result(GUARD_S) and slow[1].result(GUARD_S)


def test_a_replacement_is_forked_not_loaded(tmp_path: Path) -> None:
    with running({"starts": str(tmp_path)}) as pool:
        for _ in range(3):
            pool.timeout_s = 0.1
            with pytest.raises(ResourceLimitError):
                run(pool, "spin")
            pool.timeout_s = 600
            kill(*worker_pids(pool))
            assert run(pool, "nothing")
        assert len(list(tmp_path.iterdir())) == 1


def test_a_killed_fork_server_is_replaced_and_its_processes_go_on(tmp_path: Path) -> None:
    gate, log = tmp_path / "gate", tmp_path / "log"
    with running() as pool:
        busy = submit(pool, "wait", until=str(gate), log=str(log))
        eventually(log.exists)
        server, workers = server_pid(pool), worker_pids(pool)
        kill(server)
        assert run(pool, "nothing")
        eventually(lambda: server_pid(pool) not in (server, None))
        assert worker_pids(pool) == workers
        gate.touch()
        assert busy.result(GUARD_S)
        kill(server_pid(pool), *workers)
        assert run(pool, "nothing")
        eventually(lambda: not set(worker_pids(pool)) & set(workers))


def test_a_fork_server_that_hangs_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    with running() as pool:
        server = server_pid(pool)
        assert server is not None
        os.kill(server, signal.SIGSTOP)
        killed = worker_pids(pool)
        kill(killed[0])
        assert run(pool, "nothing"), "the other process works"
        # It dies while it is asked for a process.
        time.sleep(1.5)
        kill(server)
        eventually(lambda: len(worker_pids(pool)) == 2 and killed[0] not in worker_pids(pool))
        # And once more, but for itself. The next server may take its time.
        server = server_pid(pool)
        assert server is not None
        os.kill(server, signal.SIGSTOP)
        with monkeypatch.context() as patch:
            patch.setattr("grammar_workers.service.worker_handle._FORK_TIMEOUT_S", 0.1)
            kill(*worker_pids(pool))
            eventually(lambda: server_pid(pool) not in (server, None))
        assert run(pool, "nothing")
        assert server_pid(pool) != server


def test_a_fork_server_that_is_killed_while_it_loads_says_so() -> None:
    pool = CompilePool(TARGET, {"failure": "hang"})
    eventually(lambda: server_pid(pool) is not None)
    server = psutil.Process(server_pid(pool))
    eventually(lambda: bool(server.children()))
    (child,) = server.children()
    server.kill()
    with pytest.raises(WorkerStartError, match="ended before it was ready"):
        pool.wait_ready()
    eventually(lambda: not alive(child.pid))


def test_no_descriptors_are_left_over() -> None:
    def descriptors(pid: int | None) -> int:
        return len(os.listdir(f"/proc/{pid}/fd"))

    with running() as pool:
        before = {pid: descriptors(pid) for pid in (os.getpid(), server_pid(pool))}
        for _ in range(5):
            killed = set(worker_pids(pool))
            kill(*killed)
            assert run(pool, "nothing")
            eventually(lambda killed=killed: not killed & set(worker_pids(pool)) and len(pool._ready) == 2)
        # Threads of other tests may have a file open for a moment.
        eventually(lambda: all(descriptors(pid) <= before[pid] for pid in before))


def test_closing_kills_and_settles_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grammar_workers.service.pool.SLICE_S", 1e9)  # nobody makes room
    log = tmp_path / "log"
    with running() as pool:
        busy = submit(pool, "spin", log=str(log))
        eventually(log.exists)
        queued = submit(pool, "nothing")
        pids = worker_pids(pool)
    for result in (busy, queued):
        with pytest.raises((CompileFailedError, CancelledError)):
            result.result(0)
    assert not any(map(alive, pids))
    with pytest.raises(CompileFailedError):
        submit(pool, "nothing")


def test_a_fork_server_that_hangs_while_it_loads_dies_with_its_parent() -> None:
    parent = subprocess.Popen([sys.executable, "-c", LOADING])
    program = psutil.Process(parent.pid)
    eventually(lambda: len(program.children(recursive=True)) == 2)
    pids = [process.pid for process in program.children(recursive=True)]
    parent.kill()
    parent.wait()
    eventually(lambda: not any(map(alive, pids)))


@pytest.mark.parametrize("state", ["idle", "busy"])
def test_workers_die_with_their_parent(state: str) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, state], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout
    pids = list(map(int, parent.stdout.readline().split()))
    assert len(pids) == 3 and all(map(alive, pids))
    parent.kill()
    parent.communicate()
    eventually(lambda: not any(map(alive, pids)))
