"""Fixtures of the front's tests. None of them starts Ray: the tiers are fakes behind handles of the same shape."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from tests.deployments.applications import application, client_of
from tests.deployments.fakes import FakeCompiler, FakeReplica


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def compiler() -> FakeCompiler:
    return FakeCompiler()


@pytest.fixture
def replica() -> FakeReplica:
    return FakeReplica()


@pytest.fixture
async def http(compiler: FakeCompiler, replica: FakeReplica) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an application that serves the model `tiny` to anybody."""
    async with client_of(application(compiler, replica)) as client:
        yield client


@pytest.fixture(autouse=True)
def long_head_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compilations are over before their generations begin, however busy the machine is."""
    monkeypatch.setattr("deployments.routing.tiers.HEAD_START_S", 30.0)


@pytest.fixture(autouse=True)
def long_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn ends when its test ends it, and who was active stays so."""
    for name in ("LONGEST_TURN_S", "ACTIVE_S"):
        monkeypatch.setattr(f"deployments.routing.grammar_admission.{name}", 1e6)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries follow each other at once."""
    monkeypatch.setattr("deployments.routing.retries.FIRST_PAUSE_S", 0.0)
