"""instructor, in the modes that tell the server what the response must match."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import instructor
import openai
import pytest
from instructor.v2.core.errors import InstructorRetryException

from tests.compat.conftest import KEY, MODEL, PROMPT, Person

PACKAGE = "instructor"
APIS = ["TOOLS", "TOOLS_STRICT", "JSON_SCHEMA", "RESPONSES_TOOLS"]
ASK: Any = {"model": MODEL, "messages": [{"role": "user", "content": PROMPT}], "max_retries": 0, "temperature": 0}


def completions(url: str, mode: str) -> Any:
    client = openai.OpenAI(base_url=url, api_key=KEY, max_retries=0)
    return instructor.from_openai(client, mode=instructor.Mode[mode]).chat.completions


def test_object(url: str, api: str) -> None:
    assert isinstance(completions(url, api).create(response_model=Person, **ASK), Person)


def test_streamed_object(url: str, api: str) -> None:
    if api == "RESPONSES_TOOLS":
        pytest.skip("instructor reads partial objects from streams of chat completions alone")
    *_, last = completions(url, api).create_partial(response_model=Person, **ASK)
    assert Person.model_validate(last.model_dump()).age == last.age


def test_parallel_calls(url: str) -> None:
    """Its own mode for several objects, each a call, which it lets the model choose."""
    with contextlib.suppress(InstructorRetryException):  # where the toy model writes text
        people = completions(url, "PARALLEL_TOOLS").create(response_model=Iterable[Person], **ASK)
        assert all(isinstance(person, Person) for person in people)


def test_error_results(url: str) -> None:
    """Where validation fails it sends the call back with the error as its result."""
    tries: list[Any] = []

    class Refused(Person):
        """A person that is refused once."""

        def model_post_init(self, context: Any) -> None:
            tries.append(self)
            if len(tries) == 1:
                raise ValueError("the age is wrong")

    fields: Any = {**ASK, "max_retries": 2}
    assert isinstance(completions(url, "TOOLS").create(response_model=Refused, **fields), Refused)
    assert len(tries) == 2
