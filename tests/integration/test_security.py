"""The security table of docs/security.md against a running server, case by case, while other streams go on."""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
from typing import Any

import httpx
import psutil
import pytest

from deployments.shipped import REPOSITORY
from tests.integration.server import Server, still_runs
from tests.integration.traffic import PERSON, PROMPT, complete, stream, structured

pytestmark = pytest.mark.anyio


def constrained(**response_format: Any) -> dict[str, Any]:
    return {"messages": PROMPT, "max_tokens": 16, "response_format": response_format}


def schema(value: Any) -> dict[str, Any]:
    return constrained(type="json_schema", schema=value)


def chat(**fields: Any) -> dict[str, Any]:
    return {"messages": PROMPT, "max_tokens": 4, **fields}


def nested(depth: int) -> dict[str, Any]:
    inner: dict[str, Any] = {"type": "null"}
    for _ in range(depth):
        inner = {"type": "array", "items": inner}
    return inner


TOOL = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": 1}}}},
}
LARGE_ENUM = {"enum": [f"value-{number:05}" for number in range(5000)]}
MANY_KEYS = {f"key{number}": number for number in range(100_000)}
IMAGE = [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]

CASES: dict[str, tuple[dict[str, Any], set[int]]] = {
    "a regex that backtracks": (constrained(type="regex", pattern="(a+)+b"), {200}),
    "a regex whose states explode": (constrained(type="regex", pattern="(a|b)*a(a|b){40}"), {400}),
    "nested repetitions": (constrained(type="regex", pattern="((a{1,200}){1,200}){1,200}"), {200, 400}),
    "NUL in a pattern": (schema({"type": "string", "pattern": "a\0("}), {400}),
    "deeply nested schema": (schema(nested(300)), {400}),
    "deeply nested regex": (constrained(type="regex", pattern="(" * 5000 + "a" + ")" * 5000), {400}),
    "a huge enum": (schema(LARGE_ENUM), {200, 400}),
    "a schema that only refers to itself": (schema({"$ref": "#"}), {200, 400}),
    "an endless grammar": (constrained(type="grammar", grammar="root ::= root"), {400}),
    "a left-recursive grammar": (constrained(type="grammar", grammar='root ::= root "a" | "a"'), {200, 400}),
    "a malformed grammar": (constrained(type="grammar", grammar='root ::= "a'), {400}),
    "a malformed schema": (schema({"type": "strin"}), {400}),
    "a malformed tool": (chat(tools=[TOOL]), {400}),
    "a remote reference": (schema({"$ref": "http://127.0.0.1:1/x.json"}), {400}),
    "a file reference": (schema({"$ref": "file:///etc/passwd"}), {400}),
    "a local file as an image": (chat(messages=[{"role": "user", "content": IMAGE}]), {400}),
    "a chat template of one's own": (chat(chat_template="{{ 1 }}"), {400}),
    "many choices": (chat(n=1_000_000), {400}),
    "many log-probabilities": (chat(logprobs=True, top_logprobs=100_000), {400}),
    "many stop strings": (chat(stop=["x"] * 100_000), {400}),
    "a bias on tokens that do not exist": (chat(logit_bias={"99999999": 1}), {400}),
    "stop tokens that do not exist": (chat(stop_token_ids=[-5]), {400}),
    "a prompt of unknown tokens": ({"prompt": [10**9], "max_tokens": 1}, {400}),
    "a prompt longer than the context": (chat(messages=[{"role": "user", "content": "x " * 5000}]), {400}),
    "a prompt above the limit": (chat(messages=[{"role": "user", "content": "x" * (2 << 20)}]), {400}),
    "a body above the limit": (chat(user="x" * (5 << 20)), {413}),
    "a seed outside of 64 bits": (chat(seed=1 << 70), {400}),
    "a body of many errors": (chat(messages=[{}] * 1_000_000), {400}),
    "a body of many unknown keys": (chat(**MANY_KEYS), {400}),
}


ALONE: list[tuple[str, str]] = []
"""What the other streams say when nobody disturbs them."""


@pytest.mark.parametrize("name", CASES)
async def test_a_case(http: httpx.AsyncClient, name: str) -> None:
    """The status, the health of the server, and two streams that go on as they do alone."""
    body, statuses = CASES[name]
    others = [structured(PERSON, temperature=1, seed=seed, max_tokens=60) for seed in range(2)]
    if not ALONE:
        ALONE.extend(await asyncio.gather(*(complete(http, other) for other in others)))
    path = "/v1/completions" if "prompt" in body else "/v1/chat/completions"
    *together, answer = await asyncio.gather(*(stream(http, other) for other in others), http.post(path, json=body))
    assert answer.status_code in statuses, f"{answer.status_code}: {answer.text[:500]}"
    assert together == ALONE
    if answer.status_code != 200:
        detail = answer.json()["error"]
        assert len(detail["message"]) < 2000 and "Traceback" not in detail["message"]
    assert (await http.get("/health")).status_code == 200


async def test_ids_of_others_reach_nothing(http: httpx.AsyncClient) -> None:
    """Two requests of one id run side by side: what a client calls its request is no handle on anybody's."""
    body = structured(PERSON, temperature=1, seed=1)
    headers = {"x-request-id": "victim"}
    answers = await asyncio.gather(*(http.post("/v1/chat/completions", json=body, headers=headers) for _ in range(2)))
    assert [answer.status_code for answer in answers] == [200, 200]
    assert (await http.delete("/v1/chat/completions/victim")).status_code == 404


async def test_a_flood_of_new_schemas_leaves_the_server_well(http: httpx.AsyncClient) -> None:
    bodies = [constrained(type="regex", pattern=f"{secrets.token_hex(4)}[a-z]{{1,9}}") for _ in range(30)]
    answers = await asyncio.gather(*(http.post("/v1/chat/completions", json=body) for body in bodies))
    assert {answer.status_code for answer in answers} <= {200, 429}
    assert (await http.get("/health")).status_code == 200


async def test_other_origins_are_not_let_in(http: httpx.AsyncClient) -> None:
    headers = {"origin": "https://elsewhere.example", "access-control-request-method": "POST"}
    for answer in (await http.get("/v1/models", headers=headers), await http.options("/v1/models", headers=headers)):
        assert not any(name.startswith("access-control") for name in answer.headers)


def test_metrics_are_on_this_machine_alone(server: Server) -> None:
    """As is what Ray's own processes listen on; replicas call each other by ports of Serve's."""
    started = psutil.Process(server.process.pid).children(recursive=True)
    listening = []
    for process in started:
        with contextlib.suppress(psutil.NoSuchProcess):  # it ends now
            if still_runs(process) and "ServeReplica" not in process.name():
                found = process.net_connections("inet")
                listening += [connection.laddr for connection in found if connection.status == psutil.CONN_LISTEN]
    assert set(server.metrics_ports) <= {address.port for address in listening}
    assert {address.ip.removeprefix("::ffff:") for address in listening} == {"127.0.0.1"}


def test_the_table_has_every_case() -> None:
    table = (REPOSITORY / "docs" / "security.md").read_text()
    rows = re.findall(r"^\| ([^|]+?) \| .+ \| ([0-9 or]+) \|$", table, re.MULTILINE)
    assert {name: {int(status) for status in statuses.split(" or ")} for name, statuses in rows} == {
        name: statuses for name, (_, statuses) in CASES.items()
    }
