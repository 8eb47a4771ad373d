"""A Redis that hangs or lies in any way: calls end, memory stays, and the store goes on without it."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import redis

from grammar_workers.artifacts.store import locks as locks_module
from grammar_workers.artifacts.store.locks import LockUnavailableError, RedisLock
from grammar_workers.artifacts.store.redis_client import RedisClient, RedisUnavailableError
from grammar_workers.artifacts.store.single_flight import POLL_S
from grammar_workers.artifacts.store.store import StoredArtifact
from tests.grammar_workers.flights import single_flight
from tests.grammar_workers.test_store import new_artifact, new_key
from tests.grammar_workers.test_store_redis import store_at, works_without_redis
from tests.grammar_workers.test_store_single_flight import hurry_renewals, wait_for_renewals
from tests.lying_redis import WAYS, LyingRedis
from tests.redis_server import RedisServer

MIB = 1 << 20


class Memory:
    """The largest that this process has been while the block ran."""

    def __enter__(self) -> Memory:
        self._process = psutil.Process()
        self.before = self.most = self._process.memory_info().rss
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        return self

    def _look(self) -> None:
        while not self._over.wait(0.005):
            self.most = max(self.most, self._process.memory_info().rss)

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    @property
    def grown(self) -> int:
        return self.most - self.before


@pytest.mark.parametrize("way", WAYS)
def test_a_store_works_beside_any_liar(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks_module, "LEASE_S", 0.5)
    with LyingRedis(way) as liar, Memory() as memory:
        store = store_at(liar.url, tmp_path)
        for _ in range(4):
            works_without_redis(store)
    assert memory.grown < 150 * MIB


@pytest.mark.parametrize("way", ["drip", "endless reply", "endless line", "endless list", "silence"])
def test_one_call_has_one_deadline(way: str) -> None:
    """Without one it would never end."""
    with LyingRedis(way) as liar:
        client = RedisClient(liar.url)
        with pytest.raises(RedisUnavailableError):
            client.call(lambda redis: redis.get("x"), most_bytes=1 << 40)
        assert client.counters.snapshot() == {"errors": 1}


@pytest.mark.usefixtures("patient_redis")
def test_a_reply_has_a_largest_size(redis_url: str) -> None:
    client = RedisClient(redis_url)
    redis.Redis.from_url(redis_url).set("large", b"x" * 100_000)
    assert client.call(lambda redis: redis.getrange("large", 0, 1000)) == b"x" * 1001
    with pytest.raises(RedisUnavailableError):
        client.call(lambda redis: redis.get("large"))
    assert client.call(lambda redis: redis.get("large"), most_bytes=200_000) == b"x" * 100_000


def test_a_slow_refusal_counts_as_slow() -> None:
    with LyingRedis("dripped error") as liar:
        client = RedisClient(liar.url)
        for _ in range(3):
            with pytest.raises(RedisUnavailableError):
                client.call(lambda redis: redis.get("x"))
        assert client.breaker.state == "open"


@pytest.mark.usefixtures("patient_redis")
def test_threads_that_do_not_come_back_open_the_breaker(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that no server resolves has no deadline in any library."""
    monkeypatch.setattr("grammar_workers.artifacts.store.redis_client.DEADLINE_S", 0.05)
    resolved = threading.Event()

    def resolve(*_: object) -> list[object]:
        resolved.wait()
        raise socket.gaierror("no such name")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    client = RedisClient("redis://nowhere.invalid:6379/0")

    def ask() -> None:
        with pytest.raises(RedisUnavailableError):
            client.call(lambda redis: redis.get("x"))

    with ThreadPoolExecutor() as threads:
        away = [threads.submit(ask) for _ in range(3)]
        while len(client._under_way) < 3:
            time.sleep(0.01)
        time.sleep(0.2)
        ask()
        assert client.breaker.state == "open"
        resolved.set()
        for one in away:
            one.result()


def test_what_is_in_memory_needs_no_thread(tmp_path: Path) -> None:
    """All threads for the store wait for a Redis that says nothing: a grammar in memory is found at once."""
    from grammar_workers.service.service import _STORE_THREADS, CompileService

    async def scenario() -> None:
        with LyingRedis("silence") as liar:
            store, key = store_at(liar.url, tmp_path), new_key()
            service = CompileService(None, store, None)  # type: ignore[arg-type]
            store._tiers[0].put(key, data := new_artifact(key))
            over = threading.Event()
            waiting = [asyncio.create_task(service._in_thread(over.wait)) for _ in range(2 * _STORE_THREADS)]
            await asyncio.sleep(0)
            try:
                async with asyncio.timeout(200):
                    for specification in (None, {"type": "json_object"}):
                        found = await service.artifact(key, specification, "a")
                        assert found is not None and (found.data, found.source) == (data, "process")
                    state = await service.state(key)
                    assert isinstance(state, StoredArtifact) and (state.data, state.source) == (data, "process")
            finally:
                over.set()
                await asyncio.gather(*waiting)

    asyncio.run(scenario())


@pytest.mark.usefixtures("patient_redis")
@pytest.mark.parametrize("ends", [None, 3600])
def test_a_lock_that_nobody_renews_is_passed(
    ends: int | None, redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks_module, "LEASE_S", 0.5)
    key = new_key()
    redis_server.client().set(f"{locks_module._PREFIX}{key}", "somebody", ex=ends)
    flight = store_at(redis_server.url, tmp_path).flight(key, timeout_s=60)
    assert not flight.settled()
    while not flight.settled():
        time.sleep(POLL_S)
    assert flight.leads
    # Of this node only one passes it.
    assert not store_at(redis_server.url, tmp_path).flight(key, timeout_s=60).settled()
    flight.release()
    assert redis_server.client().get(f"{locks_module._PREFIX}{key}") == b"somebody"


@pytest.mark.usefixtures("patient_redis")
def test_a_living_holder_is_never_passed(redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    hurry_renewals(monkeypatch, lambda: now)
    holder, other, key = RedisLock(RedisClient(redis_server.url)), RedisLock(RedisClient(redis_server.url)), new_key()
    release = holder.try_acquire(key)
    assert release
    for _ in range(60):  # three leases
        wait_for_renewals(redis_server, [key])
        assert other.try_acquire(key) is None
        now += locks_module.LEASE_S / 20
    release()


def test_a_null_where_there_is_no_lock_is_passed_at_once() -> None:
    with LyingRedis("null locks") as liar, pytest.raises(LockUnavailableError):
        RedisLock(RedisClient(liar.url)).try_acquire(new_key())


@pytest.mark.usefixtures("patient_redis")
def test_a_lock_whose_answer_was_lost_is_ones_own(redis_server: RedisServer) -> None:
    lock, key = RedisLock(RedisClient(redis_server.url)), new_key()
    redis_server.client().set(f"{locks_module._PREFIX}{key}", lock._token, px=60_000)
    release = lock.try_acquire(key)
    assert release is not None
    assert lock.try_acquire(key) is None
    release()
    assert not redis_server.client().exists(f"{locks_module._PREFIX}{key}")


def test_a_liar_keeps_single_flight_on_the_node(tmp_path: Path) -> None:
    with LyingRedis("null locks") as liar:
        key = new_key()
        with single_flight(store_at(liar.url, tmp_path), key) as leads:
            assert leads
            assert not store_at(liar.url, tmp_path).flight(key, timeout_s=60).settled()
