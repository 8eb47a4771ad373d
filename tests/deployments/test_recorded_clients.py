"""Requests as client packages send them, recorded by `python -m tests.compat --record`, replayed over fake tiers.

The fake replica gives a shortest output of the grammar that the router asks for, so an answer is valid only where the
router understood the whole request.
"""

from __future__ import annotations

import functools
import json
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from deployments.arguments import ThinkingArguments
from grammar_workers import TokenFSM, compile_grammar
from grammar_workers.errors import GrammarError
from grammar_workers.options import GrammarOptions
from grammar_workers.service.job import opened
from tests.deployments.applications import application, client_of
from tests.deployments.fakes import Event, FakeCompiler, FakeReplica
from tests.deployments.tool_calls import vocabulary

pytestmark = pytest.mark.anyio

FOLDER = Path(__file__).parents[1] / "compat" / "recorded"
PACKAGES = sorted(path.stem for path in FOLDER.glob("*.jsonl"))
CHAT, COMPLETIONS, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
MOST_BYTES = 300_000


@functools.cache
def compiled(specification: str) -> TokenFSM:
    inner, options = opened(json.loads(specification), GrammarOptions())
    return compile_grammar(inner, vocabulary(special=False), options=options)


class Compiler(FakeCompiler):
    """Refuses what the grammar engine refuses."""

    async def compile(self, key: str, specification: Any, *arguments: Any, options: dict[str, Any]) -> dict[str, Any]:
        try:
            compiled(json.dumps(specification))
        except GrammarError as error:
            return {"key": key, "status": "refused", "error": error.to_dict()}
        return await super().compile(key, specification, *arguments, options=options)


class Replica(FakeReplica):
    """Answers with a shortest output of the grammar, or with a text where that is empty or there is none."""

    async def generate(self, request: dict[str, Any], *, options: dict[str, Any]) -> AsyncGenerator[Event, None]:
        text = ""
        if (grammar := request.get("grammar")) is not None:
            fsm = compiled(json.dumps(grammar["specification"]))
            tokens = fsm.shortest_completion(fsm.initial_state)
            text = b"".join(fsm.vocabulary.token_bytes(token) or b"" for token in tokens).decode()
        yield {"text": text or "Look", "token_ids": [0], "finish_reason": None, "prompt_tokens": 3}
        yield {"text": "", "token_ids": [], "finish_reason": "stop", "prompt_tokens": 3}

    async def tokenize(self, *arguments: Any, options: dict[str, Any]) -> dict[str, Any]:
        return {"count": 1, "max_model_len": 2048, "tokens": [0]}


def recorded(package: str) -> Iterator[dict[str, Any]]:
    return map(json.loads, (FOLDER / f"{package}.jsonl").read_text().splitlines())


def events(text: str) -> list[dict[str, Any]]:
    data = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in data if line != "[DONE]"]


def of_chat(answer: str, *, streamed: bool) -> tuple[str, list[tuple[str, str]]]:
    """The text and the calls (name, arguments) of the first choice."""
    text, calls = "", []
    for chunk in events(answer) if streamed else [json.loads(answer)]:
        for choice in (one for one in chunk["choices"] if one["index"] == 0):
            message = choice["delta" if streamed else "message"]
            text += message.get("content") or ""
            for call in message.get("tool_calls") or ():
                function = call["function"]
                if "id" in call:
                    calls.append((function["name"], ""))
                calls[-1] = (calls[-1][0], calls[-1][1] + function["arguments"])
    return text, calls


def of_responses(answer: str, *, streamed: bool) -> tuple[str, list[tuple[str, str]]]:
    if streamed:
        last = events(answer)[-1]
        assert last["type"] in ("response.completed", "response.incomplete")
    items = (last["response"] if streamed else json.loads(answer))["output"]
    parts = [part for item in items if item["type"] == "message" for part in item["content"]]
    calls = [(item["name"], item["arguments"]) for item in items if item["type"] == "function_call"]
    return "".join(part["text"] for part in parts), calls


def of_messages(answer: str, *, streamed: bool) -> tuple[str, list[tuple[str, str]]]:
    if not streamed:
        blocks = json.loads(answer)["content"]
        calls = [(block["name"], json.dumps(block["input"])) for block in blocks if block["type"] == "tool_use"]
        return "".join(block["text"] for block in blocks if block["type"] == "text"), calls
    text, calls = "", []
    for event in events(answer):
        if event["type"] == "content_block_start" and event["content_block"]["type"] == "tool_use":
            calls.append((event["content_block"]["name"], ""))
        if event["type"] == "content_block_delta":
            text += event["delta"].get("text", "")
            if event["delta"]["type"] == "input_json_delta":
                calls[-1] = (calls[-1][0], calls[-1][1] + event["delta"]["partial_json"])
    assert event["type"] == "message_stop"
    return text, calls


READERS = {CHAT: of_chat, RESPONSES: of_responses, MESSAGES: of_messages}


def wanted(body: dict[str, Any]) -> Any:
    """The schema of the text, where the request has one."""
    for holder, name in (
        (body, "response_format"),
        (body.get("text"), "format"),
        (body.get("output_config"), "format"),
    ):
        if ((holder or {}).get(name) or {}).get("type") == "json_schema":
            form = holder[name]
            return form.get("json_schema", form)["schema"]
    return None


def offered(body: dict[str, Any]) -> dict[str, Any]:
    """The schema of the arguments of each tool."""
    tools = [tool.get("function", tool) for tool in body.get("tools") or ()]
    return {tool["name"]: tool.get("parameters", tool.get("input_schema")) for tool in tools}


@pytest.mark.parametrize("package", PACKAGES)
async def test_recorded_requests_are_answered(package: str) -> None:
    thinking = ThinkingArguments(start="<think>", end="</think>", by_default=False)
    app = application(Compiler(), Replica(), model="turnstile-tiny", thinking=thinking)
    async with client_of(app) as http:
        for request in recorded(package):
            path, body = request["path"], request["body"]
            response = await http.post(path, json=body)
            assert response.status_code == request["status"], (request["call"], body, response.text)
            if response.status_code != 200:
                assert response.json()["error"]["type"] == request["error"], request["call"]
            elif path in READERS:
                text, calls = READERS[path](response.text, streamed=bool(body.get("stream")))
                # A model that was asked to think says all that it says here in thoughts.
                assert text or calls or (body.get("thinking") and "Look" in response.text), (request, response.text)
                for name, arguments in calls:
                    jsonschema.validate(json.loads(arguments), offered(body)[name])
                if text and (schema := wanted(body)) is not None:
                    jsonschema.validate(json.loads(text), schema)


def test_what_is_recorded() -> None:
    """Packages of `make compat`; small enough for a repository."""
    sizes = {path.stem: path.stat().st_size for path in FOLDER.glob("*.jsonl")}
    assert sizes.keys() <= {path.stem.removeprefix("test_") for path in FOLDER.parent.glob("test_*.py")}
    assert sum(sizes.values()) <= MOST_BYTES, sizes
