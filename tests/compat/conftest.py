"""A running server for the client libraries: the one that TURNSTILE_URL names, or one of the session's own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Literal

import pydantic
import pytest

from tests.integration.server import Server

PROMPT = "Extract the person: Alice Moore is 34 years old and lives in Paris."
MODEL = "turnstile-tiny"


class Person(pydantic.BaseModel):
    """A person."""

    name: str = pydantic.Field(max_length=20)
    age: int = pydantic.Field(ge=0, le=150)
    mood: Literal["calm", "angry"] | None
    cities: list[Literal["Paris", "Rome"]] = pydantic.Field(max_length=2)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where the OpenAI-compatible paths begin."""
    if (running := os.environ.get("TURNSTILE_URL")) is not None:
        yield f"{running}/v1"
        return
    thinking = {"start": "<think>", "end": "</think>", "by_default": False}
    with Server({"store": f"file://{tmp_path_factory.mktemp('grammars')}", "thinking": thinking}) as server:
        yield f"{server.url}/v1"
