"""What the tests of client packages share. `python -m tests.compat` runs them, each in an environment with its package.

The name of a test is the call that it makes (`tests/compat/table.py` lists them), `APIS` of its module the HTTP APIs
that it makes them over, `PACKAGE` the distribution.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pydantic
import pytest

PROMPT = "Extract the person: Alice Moore is 34 years old and lives in Paris."
MODEL = "turnstile-tiny"
KEY = "none"
CITY: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
FUNCTION = {"name": "look_up", "description": "Looks a city up.", "parameters": CITY}
THINKING: dict[str, Any] = {
    "thinking": True,
    "finish_within_budget": True,
    "structured_outputs": {"choice": ["yes", "no"]},
}
"""Fields of a request that is answered with thoughts. They end within its limit."""


class Person(pydantic.BaseModel):
    """A person."""

    name: str = pydantic.Field(max_length=20)
    age: int = pydantic.Field(ge=0, le=150)
    mood: Literal["calm", "angry"] | None
    cities: list[Literal["Paris", "Rome"]] = pydantic.Field(max_length=2)


SCHEMA = Person.model_json_schema()
FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}


def judged(content: Any, calls: list[tuple[str, Any]]) -> None:
    """Raises where a response is neither valid calls nor a valid text."""
    for name, arguments in calls:
        given = json.loads(arguments) if isinstance(arguments, str) else arguments
        assert name == "look_up" and given["city"] in ("Paris", "Rome")
    assert bool(content) != bool(calls)
    if content:
        Person.model_validate_json(content)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    """Base URL of the OpenAI-compatible paths."""
    package = request.module.__name__.rpartition(".test_")[2]
    return f"{os.environ['TURNSTILE_RELAY']}/{package}/{_call(request.node)}/v1"


@pytest.fixture
def root(url: str) -> str:
    """Base URL for clients of Anthropic, which add `/v1` themselves."""
    return url.removesuffix("/v1")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "api" in metafunc.fixturenames:
        metafunc.parametrize("api", metafunc.module.APIS)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Function, call: pytest.CallInfo[None]) -> Iterator[None]:
    report: Any = yield
    module: Any = item.module
    if hasattr(module, "PACKAGE") and (report.when == "call" or report.failed) and not report.skipped:
        version = getattr(module, "VERSION", None) or importlib.metadata.version(module.PACKAGE)
        api, call_name = _parameters(item).get("api", module.APIS[0]), _call(item)
        names = {"package": module.PACKAGE, "version": version, "api": api, "call": call_name}
        result = {**names, "passed": report.passed}
        with Path(os.environ["TURNSTILE_RESULTS"]).open("a") as results:
            results.write(json.dumps(result) + "\n")
    return report


def _call(item: Any) -> str:
    """The parameter of that name, or what the test is called."""
    name: str = _parameters(item).get("call") or item.originalname.removeprefix("test_")
    return name


def _parameters(item: Any) -> dict[str, Any]:
    return item.callspec.params if hasattr(item, "callspec") else {}
