"""Redis as an accelerator: dead, hung, full, restarted, lying; the store stays right and quick."""

from __future__ import annotations

import re
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import redis
import trustme

from grammar_workers.artifacts.store import GrammarStore, circuit_breaker, open_store, redis_client
from grammar_workers.artifacts.store.redis_tier import PREFIX
from tests.grammar_workers.flights import single_flight
from tests.grammar_workers.test_store import FINGERPRINT, new_artifact, new_key, rubbish
from tests.redis_relay import RedisRelay
from tests.redis_server import RedisServer

pytestmark = pytest.mark.usefixtures("patient_redis")


def store_at(url: str, folder: Path) -> GrammarStore:
    return open_store(f"{url}?file={folder}", FINGERPRINT)


def works_without_redis(store: GrammarStore) -> None:
    key = new_key()
    with single_flight(store, key) as leads:
        assert leads
        assert store.get(key) is None
        store.put(key, data := new_artifact(key))
    assert store.get(key) == data


@contextmanager
def listener(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server that does `answer` with every connection; yields its URL."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        connections: list[socket.socket] = []

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                connections.append(connection)
                answer(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"redis://127.0.0.1:{server.getsockname()[1]}/0"
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
        for connection in connections:
            connection.close()


def test_dead(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody else can listen there
        store = store_at(f"redis://127.0.0.1:{taken.getsockname()[1]}/0", tmp_path)
        works_without_redis(store)
        assert store.stats()["redis"]["errors"]
        works_without_redis(store)
        assert store.stats()["redis"]["breaker"] == "open"


def test_a_server_that_accepts_and_never_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_client, "DEADLINE_S", 0.1)
    with listener(lambda connection: None) as url:
        store = store_at(url, tmp_path)
        for _ in range(20):
            works_without_redis(store)
        # The breaker let only the first few calls wait for their timeout.
        assert store.stats()["redis"]["errors"] == 3
        assert store.stats()["redis"]["breaker"] == "open"


@pytest.mark.parametrize(
    "reply",
    [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"*999999999\r\n", b"$-5\r\n", b"\x00" * 100, b":x\r\n"],
    ids=["HTTP", "endless array", "negative length", "zeros", "no number"],
)
def test_a_server_that_speaks_something_else(reply: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_client, "DEADLINE_S", 0.1)
    with listener(lambda connection: connection.sendall(reply)) as url:
        store = store_at(url, tmp_path)
        for _ in range(3):
            works_without_redis(store)
        assert store.stats()["redis"]["errors"]


def test_slow(redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with RedisRelay(redis_server.port) as relay:
        store, key = store_at(relay.url, tmp_path / "a"), new_key()
        store.put(key, data := new_artifact(key))
        relay.delay_s = 0.15
        monkeypatch.setattr(redis_client, "SLOW_S", 0.1)
        other_node = store_at(relay.url, tmp_path / "b")
        assert other_node.get(key) == data, "slow, but right"
        for _ in range(3):
            works_without_redis(other_node)
        # Three answers in a row were enough; the others did not have to wait.
        assert other_node.stats()["redis"]["slow"] == 3
        assert other_node.stats()["redis"]["breaker"] == "open"


def test_failover(tmp_path: Path) -> None:
    """What a Kubernetes Service does: old connections stay with the old primary, new ones reach the new one."""
    with RedisServer() as old, RedisServer() as new, RedisRelay(old.port) as relay:
        store, before, after = store_at(relay.url, tmp_path / "a"), new_key(), new_key()
        new.client().replicaof("127.0.0.1", str(old.port))
        store.put(before, new_artifact(before))
        while not new.client().exists(PREFIX + before):
            time.sleep(0.05)
        new.client().replicaof("NO", "ONE")
        old.client().replicaof("127.0.0.1", str(new.port))
        relay.target = new.port
        works_without_redis(store)
        store.put(after, data := new_artifact(after))
        assert new.client().get(PREFIX + after) == data
        assert store.stats()["redis"]["refused"] == 1
        other_node = store_at(relay.url, tmp_path / "b")
        assert other_node.get(before) is not None


def test_tls(redis_server: RedisServer, tmp_path: Path) -> None:
    authority, tls = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    authority.cert_pem.write_to_path(str(tmp_path / "authority.pem"))
    with RedisRelay(redis_server.port, tls=tls) as relay:
        url = f"{relay.url}?ssl_ca_certs={tmp_path}/authority.pem&file={tmp_path}"
        key, store = new_key(), open_store(url, FINGERPRINT)
        with single_flight(store, key) as leads:
            assert leads
            store.put(key, data := new_artifact(key))
        assert redis_server.client().get(PREFIX + key) == data
        distrusting = store_at(relay.url, tmp_path)
        works_without_redis(distrusting)
        assert distrusting.stats()["redis"]["errors"]


def test_an_acl_user_with_the_documented_rights(redis_server: RedisServer, tmp_path: Path) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "kubernetes.md").read_text()
    (rule,) = re.findall(r"user turnstile (.*)", guide)
    redis_server.client().execute_command("ACL", "SETUSER", "turnstile", *rule.replace("PASSWORD", "right").split())
    redis_server.client().execute_command("ACL", "SETUSER", "default", "off")
    key, store = new_key(), store_at(redis_server.url.replace("//", "//turnstile:right@"), tmp_path / "a")
    with single_flight(store, key) as leads:
        assert leads
        store.put(key, data := new_artifact(key))
    other_node = store_at(redis_server.url.replace("//", "//turnstile:right@"), tmp_path / "b")
    assert other_node.get(key) == data
    other_node.discard(key)
    for used in (store, other_node):
        assert not {"refused", "errors"} & set(used.stats()["redis"])


def test_what_is_slow_depends_on_what_an_answer_saves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grammar_workers.artifacts.store.store.MIN_PATIENCE_S", 0.02)
    with RedisServer() as server:
        store = store_at(server.url, tmp_path)
        client = store._redis_client
        assert client is not None
        for seconds, patience in ((100.0, redis_client.SOCKET_TIMEOUT_S), (0.0, 0.02)):
            for _ in range(100):
                store.found_elsewhere(seconds)
            assert client.patience_s == pytest.approx(patience)
        client.patience_s = 60
        works_without_redis(store)
        assert "slow" not in store.stats()["redis"]
        client.patience_s = 0
        works_without_redis(store)
        assert store.stats()["redis"]["slow"] == 3
        assert store.stats()["redis"]["breaker"] == "open"


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ((), "maxmemory"),
        (("--maxmemory", "64mb", "--maxmemory-policy", "noeviction"), "allkeys-lru"),
        (("--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru"), None),
    ],
)
def test_a_server_without_bounds_is_reported_once(
    options: tuple[str, ...], advice: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with RedisServer(*options) as server:
        store = store_at(server.url, tmp_path)
        for _ in range(3):
            store.put(key := new_key(), new_artifact(key))
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == (0 if advice is None else 1)
    assert advice is None or advice in warnings[0]


def test_full(tmp_path: Path) -> None:
    with RedisServer("--maxmemory", "2mb", "--maxmemory-policy", "noeviction") as server:
        store = store_at(server.url, tmp_path)
        kept = []
        for _ in range(30):
            key = new_key()
            with single_flight(store, key):
                store.put(key, new_artifact(key, size=100_000))
            kept.append(key)
        assert store.stats()["redis"]["refused"]
        assert store.stats()["redis"]["breaker"] == "closed"
        assert all(open_store(f"file://{tmp_path}").get(key) for key in kept)
        other_node = store_at(server.url, tmp_path / "other")
        assert other_node.get(kept[0]) is not None


def test_the_password_of_a_kubernetes_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with RedisServer() as server:
        server.client().config_set("requirepass", "right")
        with_password = server.url.replace("//", "//:right@")
        for name, variable, url in (("a", "right", server.url), ("b", "wrong", with_password)):
            monkeypatch.setenv("TURNSTILE_REDIS_PASSWORD", variable)
            store, key = store_at(url, tmp_path / name), new_key()
            store.put(key, new_artifact(key))
            assert redis.Redis.from_url(with_password).exists(PREFIX + key)


def test_wrong_password(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with RedisServer() as server:
        server.client().config_set("requirepass", "right")
        for number, url in enumerate((server.url.replace("//", "//:wrong@"), server.url)):
            caplog.clear()
            store = store_at(url, tmp_path / str(number))
            works_without_redis(store)
            assert store.stats()["redis"]["unauthorized"]
            assert "Check TURNSTILE_REDIS_PASSWORD" in caplog.text
        key = new_key()
        right = server.url.replace("//", "//:right@")
        store_at(right, tmp_path / "a").put(key, data := new_artifact(key))
        assert store_at(right, tmp_path / "b").get(key) == data


def test_stopped_in_the_middle_and_restarted_empty(redis_server: RedisServer, tmp_path: Path) -> None:
    store = store_at(redis_server.url, tmp_path / "a")
    before, during, after = new_key(), new_key(), new_key()
    store.put(before, new_artifact(before))
    with single_flight(store, during) as leads:
        assert leads
        redis_server.stop()
        store.put(during, new_artifact(during))
    assert store.get(during) is not None
    redis_server.start()
    # A fresh store stands for this one after its breaker's delay.
    store = store_at(redis_server.url, tmp_path / "a")
    assert store.get(before) is not None
    store.put(after, new_artifact(after))
    other_node = store_at(redis_server.url, tmp_path / "b")
    assert other_node.get(before) is None
    assert other_node.get(after) is not None


def test_paused_and_resumed(redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, other_node = (store_at(redis_server.url, tmp_path / name) for name in "ab")
    late, key = new_key(), new_key()
    store.put(late, new_artifact(late))
    store.put(key, data := new_artifact(key))
    redis_server.pause()
    try:
        with monkeypatch.context() as patch:
            patch.setattr(redis_client, "DEADLINE_S", 0.1)
            assert other_node.get(late) is None
    finally:
        redis_server.resume()
    # The late answer to that question is not taken for the answer to this one.
    assert other_node.get(key) == data
    assert other_node.stats()["redis"]["breaker"] == "closed"


@pytest.mark.parametrize("kind", [kind for kind in rubbish(new_key(), Path("unused")) if kind != "empty"])
def test_rubbish_is_missing_counted_and_dropped(kind: str, redis_url: str, tmp_path: Path) -> None:
    store, key = store_at(redis_url, tmp_path), new_key()
    client = redis.Redis.from_url(redis_url)
    client.set(PREFIX + key, rubbish(key, tmp_path / "trace")[kind])
    assert store.get(key) is None
    assert store.stats()["redis"]["corrupt"] == 1
    assert client.get(PREFIX + key) is None
    assert not (tmp_path / "trace").exists()
    store.put(key, data := new_artifact(key))
    assert store_at(redis_url, tmp_path / "other").get(key) == data


def test_a_value_of_another_type_is_missing(redis_url: str, tmp_path: Path) -> None:
    store, key = store_at(redis_url, tmp_path), new_key()
    client = redis.Redis.from_url(redis_url)
    client.rpush(PREFIX + key, "a", "b")
    assert store.get(key) is None
    store.put(key, data := new_artifact(key))
    assert client.get(PREFIX + key) == data


def test_entries_expire(redis_url: str, tmp_path: Path) -> None:
    store, key = store_at(redis_url, tmp_path), new_key()
    store.put(key, new_artifact(key))
    assert 0 < redis.Redis.from_url(redis_url).ttl(PREFIX + key) <= 7 * 24 * 3600


def test_circuit_breaker(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(circuit_breaker, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(circuit_breaker, "FAILURES_TO_OPEN", 2)
    monkeypatch.setattr(circuit_breaker, "RETRY_AFTER_S", 5.0)
    breaker = circuit_breaker.CircuitBreaker()
    breaker.failed()
    breaker.succeeded()
    breaker.failed()
    assert breaker.allows()
    breaker.failed()
    assert breaker.state == "open"
    assert not breaker.allows()
    now = 5.0
    assert [breaker.allows() for _ in range(3)] == [True, False, False]
    breaker.failed()
    assert breaker.state == "open"
    assert not breaker.allows()
    now = 10.0
    assert breaker.allows()
    assert breaker.state == "half_open"
    now = 15.0
    assert breaker.allows(), "a probe whose caller never reported back must not close the door for ever"
    breaker.succeeded()
    assert breaker.state == "closed"
    assert [breaker.allows() for _ in range(3)] == [True] * 3


def test_a_key_with_no_artifact_costs_no_memory(redis_url: str, tmp_path: Path) -> None:
    store = store_at(redis_url, tmp_path)
    for _ in range(50):
        assert store.get(secrets.token_hex(32)) is None
    assert store.stats()["process"]["entries"] == 0
