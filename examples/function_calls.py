"""Functions of a program, called by a model: arguments always fit, so they are passed on without a check."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from typing import Any

from openai import OpenAI
from pydantic import Field, TypeAdapter, validate_call

API_KEY = os.environ.get("TURNSTILE_API_KEY", "none")
"""Sent to the server, which ignores it unless it has keys (`router.api_keys`)."""
PROMPT = "Extract the person: Alice Moore is 34 years old and lives in Paris."


@validate_call
def save_person(
    name: str = Field(max_length=40), age: int = Field(ge=0, le=150), city: str = Field(max_length=40)
) -> str:
    """Stores a person."""
    return f"stored {name} ({age}) of {city}"


FUNCTIONS: dict[str, Callable[..., str]] = {"save_person": save_person}


def tool(function: Callable[..., str]) -> dict[str, Any]:
    """OpenAI's description of a function: its name, its docstring, the JSON Schema of its arguments."""
    parameters = TypeAdapter(function).json_schema()
    name = function.__name__
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": function.__doc__,
            "parameters": {**parameters, "required": [*parameters["properties"]]},
        },
    }


def main() -> int:
    """Run the example, and return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prompt", nargs="?", default=PROMPT, help="what to do (default: %(default)s)")
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="the server (default %(default)s)")
    parser.add_argument("--model", default="turnstile-tiny", help="the model's name (default %(default)s)")
    options = parser.parse_args()
    client = OpenAI(base_url=f"{options.url}/v1", api_key=API_KEY)
    answer = client.chat.completions.create(
        model=options.model,
        messages=[{"role": "user", "content": options.prompt}],
        tools=[tool(function) for function in FUNCTIONS.values()],
        tool_choice="required",
        temperature=0,
        max_tokens=200,
    )
    for call in answer.choices[0].message.tool_calls or ():
        print(FUNCTIONS[call.function.name](**json.loads(call.function.arguments)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
