"""Fixtures that tests of several packages share."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Generator, Iterator

import pytest

from grammar_workers.artifacts.store import circuit_breaker, locks, redis_client, store
from grammar_workers.tracing import tracing
from tests.redis_server import RedisServer
from tests.trace_collector import Collector

with contextlib.suppress(ModuleNotFoundError):  # vLLM's environment has none
    import hypothesis

    # A busy machine is no failure, and the same code has the same examples (others: `--hypothesis-profile default`).
    hypothesis.settings.register_profile(
        "certain", deadline=None, derandomize=True, suppress_health_check=[hypothesis.HealthCheck.too_slow]
    )
    hypothesis.settings.load_profile("certain")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exclude modules and collected tests, which are millions of objects, from garbage collection.

    Full collections are rare afterwards: tests leave many objects behind, and few of them are garbage.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()
        young, middle, _ = gc.get_threshold()
        gc.set_threshold(young, middle, 100)


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """URL of a Redis that lasts for the whole session; shared, so use keys nobody else uses and do not stop it."""
    if url := os.environ.get("REDIS_URL"):
        yield url
        return
    with RedisServer() as server:
        yield server.url


@pytest.fixture
def redis_server() -> Iterator[RedisServer]:
    """A private Redis that the test may stop, pause, restart and fill."""
    with RedisServer() as server:
        yield server


@pytest.fixture
def patient_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    """A real Redis is never late, however busy the machine is: no timeout, lease or slow response ends a test."""
    for name in ("SOCKET_TIMEOUT_S", "CONNECT_TIMEOUT_S", "DEADLINE_S", "SLOW_S"):
        monkeypatch.setattr(redis_client, name, 60.0)
    monkeypatch.setattr(store, "MIN_PATIENCE_S", 60.0)
    monkeypatch.setattr(locks, "LEASE_S", 60.0)
    monkeypatch.setattr(circuit_breaker, "RETRY_AFTER_S", 600.0)


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """Gets the spans that this process makes from now on."""
    with Collector() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
        tracing.cache_clear()
        yield collector
    tracing.cache_clear()
