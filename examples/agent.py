"""An agent whose every step is an action that exists: it looks people up until it says where somebody lives.

The number of steps is bounded, too: the last one may only be the answer, by `tool_choice`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

from openai import OpenAI

API_KEY = os.environ.get("TURNSTILE_API_KEY", "none")
"""Sent to the server, which ignores it unless it has keys (`router.api_keys`)."""
PEOPLE = {"Alice Moore": "Paris", "Grace Lee": "Oslo"}
"""What the agent can look up."""
PROMPT = "Where does Alice Moore live?"


def action(name: str, description: str, /, **properties: dict[str, Any]) -> dict[str, Any]:
    """A tool whose arguments are all required."""
    parameters = {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


ACTIONS = [
    action("look_up", "Finds out where a person lives.", name={"enum": [*PEOPLE]}),
    action("answer", "Says the city that was asked for.", city={"enum": [*PEOPLE.values()]}),
]


def run(client: OpenAI, model: str, prompt: str, steps: int) -> str:
    """The city that the agent answers with, after at most `steps` model calls."""
    messages: list[Any] = [{"role": "user", "content": prompt}]
    for step in range(steps):
        last = step == steps - 1
        message = (
            client.chat.completions.create(
                model=model,
                messages=messages,
                tools=ACTIONS,
                tool_choice={"type": "function", "function": {"name": "answer"}} if last else "required",
                parallel_tool_calls=False,
                temperature=0,
                max_tokens=100,
            )
            .choices[0]
            .message
        )
        (call,) = message.tool_calls
        arguments = json.loads(call.function.arguments)
        print(f"{call.function.name}({', '.join(f'{name}={value!r}' for name, value in arguments.items())})")
        if call.function.name == "answer":
            return arguments["city"]
        result = PEOPLE[arguments["name"]]
        messages += [message, {"role": "tool", "tool_call_id": call.id, "content": result}]
    raise AssertionError("the last step is an answer")


def main() -> int:
    """Run the example, and return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prompt", nargs="?", default=PROMPT, help="the question (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=4, help="the most model calls (default %(default)s)")
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="the server (default %(default)s)")
    parser.add_argument("--model", default="turnstile-tiny", help="the model's name (default %(default)s)")
    options = parser.parse_args()
    if options.steps < 1:
        parser.error("--steps: at least 1")
    print(run(OpenAI(base_url=f"{options.url}/v1", api_key=API_KEY), options.model, options.prompt, options.steps))
    return 0


if __name__ == "__main__":
    sys.exit(main())
