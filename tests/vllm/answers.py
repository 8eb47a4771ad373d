"""Questions with schemas, and what engines answer at temperature 0: the same, however an engine is spread out."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import json
from typing import Any

import jsonschema
import openai

_TEXTS = (
    "Extract the person as JSON: Alice Smith is 34 years old and lives in Paris. Email: alice.smith@example.com.",
    "Zorblax Quimby, aged 118, lives in Mooncity, and his email is zorblax@example.org. Return JSON.",
    "Extract the person as JSON: Grace Lee, 41, of Oslo can be reached at grace.lee@example.net. She likes the sea.",
)
_FIELDS: dict[str, Any] = {
    "name": {"type": "string", "minLength": 2, "maxLength": 24},
    "age": {"type": "integer", "minimum": 0, "maximum": 150},
    "city": {"type": "string", "pattern": "^[A-Z][a-z]{1,15}$"},
    "email": {"type": "string", "format": "email", "maxLength": 40},
}
_MORE: tuple[dict[str, Any], ...] = (
    {},
    {"kind": {"enum": ["person", "robot"]}},
    {"score": {"type": "number", "minimum": 0, "exclusiveMaximum": 10, "multipleOf": 0.5}},
    {"tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 1, "maxItems": 3}},
    {"adult": {"type": "boolean"}, "born": {"anyOf": [{"type": "null"}, {"type": "integer", "minimum": 1800}]}},
    {
        "phone": {"type": "string", "pattern": "^[0-9]{3}-[0-9]{4}$"},
        "ids": {"type": "array", "maxItems": 2, "items": {"type": "integer"}},
    },
    {"home": {"type": "object", "properties": {"floor": {"type": "integer", "maximum": 30}}, "required": ["floor"]}},
    {"note": {"type": "string", "maxLength": 12, "not": {"enum": ["", "none"]}}},
)


@dataclasses.dataclass(frozen=True)
class Question:
    """A text, and the schema of what is to be known of it."""

    text: str
    schema: dict[str, Any]


def _schema(more: dict[str, Any], fields: tuple[str, ...]) -> dict[str, Any]:
    properties = {**{name: _FIELDS[name] for name in fields}, **more}
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


QUESTIONS = [
    Question(text, _schema(more, fields))
    for more in _MORE
    for text, fields in zip(_TEXTS, (("name", "age", "city", "email"), ("name", "city"), ("age", "email")), strict=True)
]
"""24 of them, whose prompts have 50 to 120 tokens."""


@dataclasses.dataclass(frozen=True)
class Answer:
    text: str
    finish_reason: str
    cached_tokens: int
    """Of the prompt: those that the engine did not compute; 0 where the server does not say."""


def ask(client: openai.OpenAI, model: str, question: Question) -> Answer:
    """The answer, judged by `jsonschema` if it has ended."""
    answer = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": question.text}],
        temperature=0,
        max_tokens=200,
        response_format={"type": "json_schema", "json_schema": {"name": "it", "schema": question.schema}},
    )
    (choice,) = answer.choices
    text = choice.message.content or ""
    if choice.finish_reason == "stop":
        jsonschema.validate(json.loads(text), question.schema)
    details = answer.usage.prompt_tokens_details if answer.usage else None
    return Answer(text, choice.finish_reason, (details and details.cached_tokens) or 0)


def answers(url: str, model: str, questions: list[Question] = QUESTIONS, *, at_a_time: int = 4) -> list[Answer]:
    """Of a server, in order."""
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=300)
    with concurrent.futures.ThreadPoolExecutor(at_a_time) as clients:
        return list(clients.map(lambda question: ask(client, model, question), questions))


def texts(given: list[Answer]) -> list[tuple[str, str]]:
    """What has to be the same."""
    return [(answer.text, answer.finish_reason) for answer in given]
