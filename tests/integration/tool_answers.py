"""Are answers that a running server gives with tools valid? Tools beside a constraint of the text, and custom tools.

    python -m tests.integration.tool_answers --url http://127.0.0.1:8000 [--beside 1000] [--custom 500]

The server is one of ours, with either engine (`replica.engine.kind`). Every request is drawn at temperature 1 with a
seed of its own; every second one is streamed. `--beside`: functions with `tool_choice: auto` beside a JSON Schema, a
list, a regular expression or a choice, through `/v1/chat/completions` and `/v1/responses`. An answer is calls whose
arguments `jsonschema` accepts, or a text that matches the constraint, and never both. A third of the requests raises
the logits of the tokens that a call begins with, so that a model which seldom calls does. `--custom`: custom tools of
`/v1/responses` under Lark grammars and regular expressions, judged by `lark` and `re`. Exit status 1 when an answer is
invalid or mixed, when a request fails, or when no calls or no texts came.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import json
import random
import re
import sys
from collections.abc import Callable
from typing import Any

import httpx
import jsonschema
import lark
from tqdm import tqdm

NAMES = ("Alice Moore", "Tom Baker", "Grace Lee", "Omar Khan")
CITIES = ("Paris", "Oslo", "Lima", "Bonn")
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "city": {"enum": [*CITIES, "<call:save_person>"]},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
PEOPLE = {"type": "array", "items": {"type": "string", "maxLength": 12}, "minItems": 1, "maxItems": 3}
REGEX = r"(<call|\{|[A-Z])[a-z ]{2,12}[.!]"
CHOICES = ("<call:look_up>", "yes", "{}", "no")
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "days": {"type": "integer", "maximum": 99}},
    "required": ["city"],
    "additionalProperties": False,
}
FUNCTIONS = {"save_person": PERSON, "look_up": CITY}
CONSTRAINTS: dict[str, tuple[dict[str, Any], Callable[[str], Any]]] = {
    "object": ({"json": PERSON}, lambda text: jsonschema.validate(json.loads(text), PERSON)),
    "list": ({"json": PEOPLE}, lambda text: jsonschema.validate(json.loads(text), PEOPLE)),
    "regex": ({"regex": REGEX}, lambda text: _found(re.fullmatch(REGEX, text))),
    "choice": ({"choice": list(CHOICES)}, lambda text: _found(text in CHOICES)),
}
SUM = """
start: term (("+" | "-") term)~0..3
term: NUMBER | "(" NUMBER "*" NUMBER ")"
NUMBER: /[0-9]{1,3}/
"""
NESTED = """
start: block
block: "{" (WORD | block)~0..2 "}"
WORD: /[a-z]{1,4}/ | "</call>"
"""
CUSTOM: dict[str, tuple[str, str, Callable[[str], Any]]] = {
    "lark": ("lark", SUM, lark.Lark(SUM).parse),
    "recursive lark": ("lark", NESTED, lark.Lark(NESTED).parse),
    "regex": ("regex", REGEX, lambda text: _found(re.fullmatch(REGEX, text))),
}
LIKELIER = 6.0
"""Added to the logits of tokens that begin a call."""
Answer = tuple[str, list[tuple[str, str]], bool]
"""Text, calls by name with arguments or input, and whether a limit cut it."""


def _found(matched: object) -> None:
    if not matched:
        raise ValueError("does not match")


def events(client: httpx.Client, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Those of a stream, or the whole answer as the only one."""
    response = client.post(path, json=body)
    if response.is_error:
        raise RuntimeError(response.text)
    if not body["stream"]:
        return [response.json()]
    lines = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def of_chat(found: list[dict[str, Any]], *, streamed: bool) -> Answer:
    """A chat completion."""
    content, reason = "", None
    calls: dict[int, tuple[str, str]] = {}
    for choice in (choice for one in found for choice in one["choices"]):
        told = choice["delta"] if streamed else choice["message"]
        content += told.get("content") or ""
        reason = choice["finish_reason"] or reason
        for place, call in enumerate(told.get("tool_calls") or ()):
            function, index = call["function"], call.get("index", place)
            name, arguments = calls.get(index, ("", ""))
            calls[index] = (name + function.get("name", ""), arguments + function.get("arguments", ""))
    return content, list(calls.values()), reason == "length"


def of_response(found: list[dict[str, Any]], *, streamed: bool) -> Answer:
    """An answer of `/v1/responses`. Raises ValueError where the pieces of a stream are not its last event's."""
    last = found[-1]["response"] if streamed else found[-1]
    calls = [(item["name"], item.get("arguments", item.get("input"))) for item in last["output"] if "call_id" in item]
    parts = [part for item in last["output"] if item["type"] == "message" for part in item["content"]]
    text = "".join(part["text"] for part in parts)
    if streamed:
        pieces = "".join(one["delta"] for one in found if one["type"].endswith(".delta"))
        if sorted(pieces) != sorted(text + "".join(given for _, given in calls)):
            raise ValueError("the pieces of the stream are something else")
    return text, calls, last["status"] == "incomplete"


def beside(client: httpx.Client, rng: random.Random, number: int, begins: list[int]) -> str:
    """The outcome of one request with functions beside a constraint."""
    name = rng.choice(list(CONSTRAINTS))
    constraint, judge = CONSTRAINTS[name]
    said = f"{rng.choice(NAMES)} is {rng.randrange(99)} years old and lives in {rng.choice(CITIES)}."
    prompt = rng.choice(("Extract the person as JSON: {}", "Save this person: {}", "{}")).format(said)
    functions = [{"name": one, "parameters": schema} for one, schema in FUNCTIONS.items()]
    streamed = number % 2 == 0
    common = {"structured_outputs": constraint, "temperature": 1.0, "seed": number, "stream": streamed}
    if number % 3 == 0:
        tools = [{"type": "function", **one} for one in functions]
        body = {**common, "input": prompt, "tools": tools, "max_output_tokens": 160}
        text, calls, cut = of_response(events(client, "/v1/responses", body), streamed=streamed)
    else:
        biased = {str(token): LIKELIER for token in begins} if number % 3 == 1 else None
        body = {
            **common,
            "messages": [{"role": "user", "content": prompt}],
            "tools": [{"type": "function", "function": one} for one in functions],
            "max_tokens": 160,
            "finish_within_budget": rng.random() < 0.5,
            "logit_bias": biased,
        }
        text, calls, cut = of_chat(events(client, "/v1/chat/completions", body), streamed=streamed)
    if text and calls:
        return f"mixed: {text!r} {calls}"
    if cut:
        return "cut"
    try:
        for function, arguments in calls:
            jsonschema.validate(json.loads(arguments), FUNCTIONS[function])
        if not calls:
            judge(text)
    except (KeyError, ValueError, jsonschema.ValidationError):
        return f"invalid: {name} {text!r} {calls}"
    return "several calls" if len(calls) > 1 else "one call" if calls else "text"


def custom(client: httpx.Client, rng: random.Random, number: int, begins: list[int]) -> str:
    """The outcome of one request with a custom tool that must be called."""
    name = list(CUSTOM)[number // 2 % len(CUSTOM)]
    syntax, definition, judge = CUSTOM[name]
    body = {
        "input": f"Compute {rng.randrange(99)} and {rng.randrange(99)} for {rng.choice(NAMES)}.",
        "tools": [
            {
                "type": "custom",
                "name": "run",
                "format": {"type": "grammar", "syntax": syntax, "definition": definition},
            }
        ],
        "tool_choice": "required",
        "temperature": 1.0,
        "seed": number,
        "stream": number % 2 == 0,
        "max_output_tokens": 300,
    }
    text, calls, cut = of_response(events(client, "/v1/responses", body), streamed=bool(body["stream"]))
    if cut:
        return f"cut {name}"
    try:
        ((function, given),) = calls
        judge(given)
        _found(function == "run" and not text)
    except (ValueError, lark.exceptions.LarkError):
        return f"invalid: {name} {text!r} {calls}"
    return f"{name}, {'streamed' if body['stream'] else 'whole'}"


def tried(url: str, kind: Callable[..., str], many: int, clients: int) -> collections.Counter[str]:
    """Count the outcomes of many requests to a server, from several clients at a time."""
    with (
        httpx.Client(base_url=url, timeout=300, trust_env=False) as client,
        concurrent.futures.ThreadPoolExecutor(clients) as pool,
    ):
        prompt = {"prompt": "<call:", "add_special_tokens": False}
        begins = client.post("/tokenize", json=prompt).json()["tokens"][:1]

        def one(number: int) -> str:
            try:
                return kind(client, random.Random(f"{kind.__name__} {number}"), number, begins)
            except (httpx.HTTPError, RuntimeError) as error:
                return f"failed: {error!r:.300}"

        outcomes = pool.map(one, range(many))
        return collections.Counter(tqdm(outcomes, desc=kind.__name__, total=many, disable=None))


def is_fault(outcome: str) -> bool:
    """Return whether an outcome should never come."""
    return outcome.startswith(("invalid: ", "mixed: ", "failed: "))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True, help="of a running server")
    parser.add_argument("--beside", type=int, default=1000, help="requests with functions beside a constraint")
    parser.add_argument("--custom", type=int, default=500, help="requests with a custom tool")
    parser.add_argument("--clients", type=int, default=8, help="requests at a time")
    arguments = parser.parse_args()
    wrong = False
    for kind, many in ((beside, arguments.beside), (custom, arguments.custom)):
        found = tried(arguments.url, kind, many, arguments.clients)
        for outcome, times in sorted(found.items()):
            print(f"{kind.__name__}: {times:5} {outcome}", flush=True)
        lacking = kind is beside and many > 0 and not {"text", "one call"} <= found.keys()
        wrong = wrong or lacking or any(map(is_fault, found))
    return wrong


if __name__ == "__main__":
    sys.exit(main())
