"""Records from free text: a pydantic model is the schema, and every answer is an instance of it."""

from __future__ import annotations

import argparse
import os
import sys

from openai import OpenAI
from pydantic import BaseModel, Field

API_KEY = os.environ.get("TURNSTILE_API_KEY", "none")
"""Sent to the server, which ignores it unless it has keys (`router.api_keys`)."""
TEXTS = (
    "Alice Moore is 34 years old and lives in Paris.",
    "Zorblax Quimby, aged 118, lives in Mooncity.",
    "In Oslo lives Grace Lee, who is 52 years old.",
)


class Person(BaseModel):
    """What is asked for. Bounds keep a model from running on, and are enforced like everything else."""

    name: str = Field(max_length=40)
    age: int = Field(ge=0, le=150)
    city: str = Field(max_length=40)


def extract(client: OpenAI, model: str, text: str) -> Person:
    """The person that a text is about. Raises RuntimeError where a limit cut the answer."""
    answer = client.chat.completions.parse(
        model=model,
        messages=[{"role": "user", "content": f"Extract the person as JSON with name, age, city: {text}"}],
        response_format=Person,
        temperature=0,
        max_tokens=200,
    )
    (choice,) = answer.choices
    if choice.message.parsed is None:
        raise RuntimeError(f"no whole answer: {choice.finish_reason}")
    return choice.message.parsed


def main() -> int:
    """Run the example, and return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("texts", nargs="*", default=TEXTS, help="what to read (default: three sentences)")
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="the server (default %(default)s)")
    parser.add_argument("--model", default="turnstile-tiny", help="the model's name (default %(default)s)")
    options = parser.parse_args()
    client = OpenAI(base_url=f"{options.url}/v1", api_key=API_KEY)
    for text in options.texts:
        print(extract(client, options.model, text).model_dump_json())
    return 0


if __name__ == "__main__":
    sys.exit(main())
