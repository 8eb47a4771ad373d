"""Fixtures of the front's tests. None of them starts Ray: the tiers are fakes behind handles of the same shape."""

from __future__ import annotations

import pytest

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


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries follow each other at once."""
    monkeypatch.setattr("deployments.generation.FIRST_PAUSE_S", 0.0)
