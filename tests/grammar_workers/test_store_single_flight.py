"""Exactly one compiles, everybody gets the artifact, and a vanished holder stops nobody."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from grammar_workers.artifacts.store import GrammarStore, open_store
from grammar_workers.artifacts.store import locks as locks_module
from grammar_workers.artifacts.store.locks import FileLock, LockUnavailableError, ProcessLock, RedisLock
from grammar_workers.artifacts.store.redis_client import RedisClient
from tests.grammar_workers.flights import single_flight
from tests.grammar_workers.test_store import new_artifact, new_key
from tests.redis_server import RedisServer

pytestmark = pytest.mark.usefixtures("patient_redis")

COMPILE_ONCE = """
import sys
from grammar_workers.artifacts import artifact
from grammar_workers.artifacts.store import open_store
from tests.grammar_workers.flights import single_flight
url, key = sys.argv[1:]
store = open_store(url)
sys.stdin.readline()
with single_flight(store, key):
    if store.get(key) is None:
        print("compiled", flush=True)
        store.put(key, artifact.pack(b"payload", key=key, fingerprint="f"))
assert store.get(key) is not None
"""
HOLD_FOR_EVER = """
import sys, time
from grammar_workers.artifacts.store import open_store
from tests.grammar_workers.flights import single_flight
url, key = sys.argv[1:]
with single_flight(open_store(url), key) as leads:
    assert leads
    print("holding", flush=True)
    time.sleep(600)
"""


def start(program: str, url: str, key: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, url, key], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


@pytest.fixture(params=["file", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "redis":
        return f"{request.getfixturevalue('redis_url')}?file={tmp_path}"
    return f"file://{tmp_path}"


def hurry_renewals(monkeypatch: pytest.MonkeyPatch, monotonic: Callable[[], float] = time.monotonic) -> None:
    """Holders renew their Redis locks all the time, long before a lease ends. `monotonic`: the clock of who waits."""
    sleep = time.sleep
    monkeypatch.setattr(locks_module, "time", SimpleNamespace(sleep=lambda _: sleep(0.01), monotonic=monotonic))


def wait_for_renewals(server: RedisServer, keys: list[str]) -> None:
    """Returns when the holder has renewed all these locks from now on."""
    redis = server.client()
    shortened = int(locks_module.LEASE_S * 500)
    for key in keys:
        assert redis.pexpire(f"{locks_module._PREFIX}{key}", shortened)
    deadline = time.monotonic() + 200
    while not all(redis.pttl(f"{locks_module._PREFIX}{key}") > shortened for key in keys):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def compile_in_threads(stores: list[GrammarStore], key: str) -> int:
    compilations: list[bytes] = []
    ready = threading.Barrier(len(stores))

    def work(store: GrammarStore) -> None:
        ready.wait()
        with single_flight(store, key):
            if store.get(key) is None:
                compilations.append(data := new_artifact(key))
                time.sleep(0.1)
                store.put(key, data)
        assert store.get(key) == compilations[0]

    threads = [threading.Thread(target=work, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(compilations)


def test_sixteen_stores_compile_once(url: str) -> None:
    assert compile_in_threads([open_store(url) for _ in range(16)], new_key()) == 1


def test_sixteen_nodes_compile_once(redis_url: str, tmp_path: Path) -> None:
    stores = [open_store(f"{redis_url}?file={tmp_path / str(node)}") for node in range(16)]
    assert compile_in_threads(stores, new_key()) == 1


def test_sixteen_threads_of_one_process_compile_once() -> None:
    assert compile_in_threads([open_store("memory://")] * 16, new_key()) == 1


def test_processes_compile_once(url: str) -> None:
    key = new_key()
    processes = [start(COMPILE_ONCE, url, key) for _ in range(6)]
    outputs = [process.communicate("go\n", timeout=200)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * 6
    assert sum(output.count("compiled") for output in outputs) == 1


def test_a_killed_holder_is_taken_over(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    key = new_key()
    holder = start(HOLD_FOR_EVER, url, key)
    assert holder.stdout and holder.stdout.readline() == "holding\n"
    store = open_store(url)
    assert not store.flight(key, timeout_s=60).settled()
    holder.kill()
    holder.communicate()
    with single_flight(store, key, timeout_s=60) as leads:
        assert leads


def test_waiters_give_up_at_their_deadline(url: str) -> None:
    key, store = new_key(), open_store(url)
    with single_flight(store, key) as leads, single_flight(open_store(url), key, timeout_s=0.2) as other_leads:
        assert leads
        assert not other_leads


def test_waiters_leave_when_the_artifact_arrives(url: str) -> None:
    key, store = new_key(), open_store(url)
    waiting = open_store(url).flight(key, timeout_s=60)
    with single_flight(store, key):
        assert not waiting.settled()
        store.put(key, new_artifact(key))
        assert waiting.settled()
        assert not waiting.leads


def test_a_long_compile_keeps_its_redis_lock(redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    hurry_renewals(monkeypatch)
    before = threading.enumerate()
    keys = [new_key() for _ in range(21)]
    key = keys[0]
    lock, other = RedisLock(RedisClient(redis_server.url)), RedisLock(RedisClient(redis_server.url))
    release, *more = map(lock.try_acquire, keys)
    assert release and all(more)
    for _ in range(3):
        wait_for_renewals(redis_server, keys)
        assert other.try_acquire(key) is None
    assert [thread.name for thread in threading.enumerate() if thread not in before].count("renew-locks") == 1
    release()
    taken = other.try_acquire(key)
    assert taken
    release()  # late: the lock is somebody else's now
    assert lock.try_acquire(key) is None
    for let_go in (taken, *more):
        let_go()


def test_redis_dying_under_the_holder_leaves_the_node_lock(redis_server: RedisServer, tmp_path: Path) -> None:
    url = f"{redis_server.url}?file={tmp_path}"
    key, store, other = new_key(), open_store(url), open_store(url)
    with single_flight(store, key) as leads:
        assert leads
        redis_server.stop()
        # Uncoordinated with the holder now, but again only one at a time on this node.
        with single_flight(other, key, timeout_s=60) as other_leads:
            assert other_leads
            assert not open_store(f"file://{tmp_path}").flight(key, timeout_s=60).settled()
            other.put(key, data := new_artifact(key))
        assert store.get(key) == data


@pytest.mark.parametrize("kind", ["process", "file"])
def test_locks_exclude_per_key_and_can_be_taken_again(kind: str, tmp_path: Path) -> None:
    lock = ProcessLock() if kind == "process" else FileLock(tmp_path)
    for _ in range(3):
        first, second = lock.try_acquire("a"), lock.try_acquire("b")
        assert first and second
        assert lock.try_acquire("a") is None
        first()
        second()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["link", "link to nothing", "pipe", "folder"])
def test_a_lock_file_that_is_none_makes_nothing_and_holds_nobody(kind: str, tmp_path: Path) -> None:
    locks, target = tmp_path / "locks", tmp_path / "elsewhere"
    locks.mkdir()
    path = locks / "a.lock"
    if kind == "link":
        target.write_text("kept")
    if kind.startswith("link"):
        path.symlink_to(target)
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    with pytest.raises(LockUnavailableError):
        FileLock(locks).try_acquire("a")
    assert target.exists() == (kind == "link")
