"""instructor, in the modes that tell the server what the answer must match."""

from __future__ import annotations

from typing import Any

import instructor
import openai
import pytest

from tests.compat.conftest import MODEL, PROMPT, Person

MESSAGES: Any = [{"role": "user", "content": PROMPT}]


def client(url: str, mode: str) -> Any:
    return instructor.from_openai(openai.OpenAI(base_url=url, api_key="none"), mode=instructor.Mode[mode])


@pytest.mark.parametrize("mode", ["TOOLS", "TOOLS_STRICT", "JSON_SCHEMA", "RESPONSES_TOOLS"])
def test_a_model_comes_out_at_the_first_attempt(url: str, mode: str) -> None:
    person = client(url, mode).chat.completions.create(
        model=MODEL, response_model=Person, messages=MESSAGES, max_retries=0
    )
    assert isinstance(person, Person)


@pytest.mark.parametrize("mode", ["TOOLS", "JSON_SCHEMA"])
def test_partial_models_are_streamed(url: str, mode: str) -> None:
    partial = client(url, mode).chat.completions.create_partial(
        model=MODEL, response_model=Person, messages=MESSAGES, max_retries=0
    )
    *_, last = partial
    assert Person.model_validate(last.model_dump()).age == last.age
