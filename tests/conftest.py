"""Fixtures that tests of several packages share."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import pytest

from grammar_workers.tracing import tracing
from tests.redis_server import RedisServer
from tests.trace_collector import Collector

with contextlib.suppress(ModuleNotFoundError):  # vLLM's environment has none
    import hypothesis

    # A busy machine is no failure.
    hypothesis.settings.register_profile("without deadline", deadline=None)
    hypothesis.settings.load_profile("without deadline")


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
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """Gets the spans that this process makes from now on."""
    with Collector() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
        tracing.cache_clear()
        yield collector
    tracing.cache_clear()
