"""`/v1/grammars` and API keys, over fake tiers."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from deployments.http.tenants import Tenants
from grammar_workers import GrammarOptions, grammar_key
from tests.deployments.applications import application, client_of
from tests.deployments.fakes import ARTIFACT, FINGERPRINT, FakeCompiler, FakeReplica, settled

pytestmark = pytest.mark.anyio

REGEX = {"type": "regex", "pattern": "[a-z]+"}
KEY = grammar_key(REGEX, FINGERPRINT, GrammarOptions())
DETAILS = {
    "notes": [],
    "unenforced": [],
    "owner": "a",
    "automaton_states": 7,
    "artifact_bytes": 90,
    "compile_seconds": 0.5,
    "first_mask_seconds": 0.001,
    "memory_bytes": 4096,
    "costs": [{"place": "/properties/a", "seconds": 0.4, "change": "name a `type`"}],
}


@pytest.fixture
async def guarded(compiler: FakeCompiler, replica: FakeReplica, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    entries = [f"- {{tenant: {name}, sha256: {hashlib.sha256(name.encode()).hexdigest()}}}" for name in "ab"]
    digest = hashlib.sha256(b"root").hexdigest()
    entries.append(f"- {{tenant: operations, sha256: {digest}, administrator: true}}")
    (tmp_path / "keys.yaml").write_text("keys:\n" + "\n".join(entries))
    async with client_of(
        application(compiler, replica, tenants=Tenants.from_file(str(tmp_path / "keys.yaml")))
    ) as http:
        yield http


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.mark.parametrize(
    "spelling",
    [{"specification": REGEX}, {"response_format": REGEX}, {"structured_outputs": {"regex": REGEX["pattern"]}}],
)
async def test_compiling_ahead(http: httpx.AsyncClient, compiler: FakeCompiler, spelling: dict[str, Any]) -> None:
    compiler.answers = [{"status": "ready", "source": "compiled", "seconds": 0.1, **DETAILS}]
    response = await http.post("/v1/grammars", json=spelling, headers={"x-turnstile-tenant": "team"})
    assert response.status_code == 200
    expected = {"key": KEY, "object": "grammar", "status": "ready", "source": "compiled", "seconds": 0.1, **DETAILS}
    assert response.json() == expected
    assert [(key, specification) for key, specification, _ in compiler.calls] == [(KEY, REGEX)]
    assert compiler.tenants == ["team"]


async def test_compiling_in_the_background(http: httpx.AsyncClient, compiler: FakeCompiler) -> None:
    compiler.release.clear()
    response = await http.post("/v1/grammars", json={"specification": REGEX, "wait": False})
    assert (response.status_code, response.json()["status"]) == (202, "queued")
    await asyncio.wait_for(compiler.started.wait(), 200)
    compiler.release.set()
    await settled()
    compiler.known = {"status": "ready", **DETAILS}
    again = await http.post("/v1/grammars", json={"specification": REGEX, "wait": False})
    assert (again.status_code, again.json()["status"]) == (200, "ready")
    assert len(compiler.calls) == 1


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({}, "exactly one"),
        ({"specification": REGEX, "response_format": REGEX}, "exactly one"),
        ({"response_format": {"type": "text"}}, "nothing to compile"),
        ({"structured_outputs": {"key": KEY}}, "nothing to compile"),
        ({"specification": REGEX, "weight": 1}, "weight"),
        ({"specification": {"type": "regex"}}, "pattern"),
    ],
)
async def test_bad_bodies(http: httpx.AsyncClient, body: dict[str, Any], named: str) -> None:
    response = await http.post("/v1/grammars", json=body)
    assert response.status_code == 400
    assert named in response.json()["error"]["message"]


async def test_status(http: httpx.AsyncClient, compiler: FakeCompiler) -> None:
    async def ask() -> httpx.Response:
        return await http.get(f"/v1/grammars/{KEY}")

    assert (await ask()).status_code == 404
    assert (await ask()).json()["error"]["code"] == "grammar_not_found"
    for state in ("queued", "compiling"):
        compiler.known = {"status": state}
        assert (await ask()).json() == {"key": KEY, "object": "grammar", "status": state}
    compiler.known = {"status": "ready", **DETAILS}
    assert (await ask()).json() == {"key": KEY, "object": "grammar", "status": "ready", **DETAILS}
    error = {"code": "unsupported_grammar", "message": "no", "pointer": "/a", "position": None}
    compiler.known = {"status": "refused", "error": error}
    refused = await ask()
    assert (refused.status_code, refused.json()["error"]["pointer"]) == (400, "/a")
    assert (await http.get("/v1/grammars/nokey")).status_code == 400


async def test_a_request_names_a_key(http: httpx.AsyncClient, compiler: FakeCompiler, replica: FakeReplica) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "structured_outputs": {"key": KEY}}
    response = await http.post("/v1/chat/completions", json=body)
    assert response.status_code == 200
    assert response.json()["grammar"]["key"] == KEY
    assert [(key, specification) for key, specification, _ in compiler.calls] == [(KEY, None)]
    assert replica.requests[0]["grammar"] == {
        "key": KEY,
        "specification": None,
        "tenant": "anonymous",
        "artifact": ARTIFACT,
    }
    compiler.answers = [{"status": "unknown"}]
    response = await http.post("/v1/chat/completions", json=body)
    assert (response.status_code, response.json()["error"]["code"]) == (404, "grammar_not_found")
    await settled()
    assert replica.running == 0


async def test_without_a_key_nothing_but_health_and_documentation(guarded: httpx.AsyncClient) -> None:
    chat = {"messages": [{"role": "user", "content": "hi"}]}
    for headers in ({}, bearer("wrong"), {"Authorization": "Basic YTpi"}):
        for method, path, body in [
            ("GET", "/v1/models", None),
            ("POST", "/v1/chat/completions", chat),
            ("POST", "/v1/completions", {"prompt": "a"}),
            ("POST", "/v1/grammars", {"specification": REGEX}),
            ("GET", f"/v1/grammars/{KEY}", None),
            ("DELETE", f"/v1/grammars/{KEY}", None),
        ]:
            response = await guarded.request(method, path, json=body, headers=headers)
            assert response.status_code == 401, path
            assert response.json()["error"]["code"] == "invalid_api_key"
            assert response.headers["www-authenticate"] == "Bearer"
    assert (await guarded.get("/health")).status_code == 200
    assert (await guarded.get("/docs")).status_code == 200
    assert (await guarded.get("/v1/models", headers=bearer("a"))).status_code == 200


async def test_only_the_owner_and_administrators_discard(guarded: httpx.AsyncClient, compiler: FakeCompiler) -> None:
    compiler.known = {"status": "ready", **DETAILS}
    path = f"/v1/grammars/{KEY}"
    denied = await guarded.delete(path, headers=bearer("b"))
    assert (denied.status_code, denied.json()["error"]["code"]) == (403, "not_owner")
    for key in ("a", "root"):
        assert (await guarded.delete(path, headers=bearer(key))).json() == {
            "key": KEY,
            "object": "grammar",
            "deleted": True,
        }
    compiler.known = {"status": "compiling"}
    assert (await guarded.delete(path, headers=bearer("a"))).status_code == 409
    compiler.known = {"status": "unknown"}
    assert (await guarded.delete(path, headers=bearer("a"))).status_code == 404


async def test_the_owner_is_told_to_itself_and_administrators(
    guarded: httpx.AsyncClient, compiler: FakeCompiler
) -> None:
    compiler.known = {"status": "ready", **DETAILS}
    compiler.answers = [{"source": "compiled", "seconds": 0.1, **compiler.known}]
    for key, owner in (("a", "a"), ("b", None), ("root", "a")):
        answers = [
            await guarded.get(f"/v1/grammars/{KEY}", headers=bearer(key)),
            *[
                await guarded.post("/v1/grammars", json={"specification": REGEX, "wait": wait}, headers=bearer(key))
                for wait in (True, False)
            ],
        ]
        assert [answer.json().get("owner") for answer in answers] == [owner] * 3
    assert {*compiler.asked} == {("a", False), ("b", False), ("operations", True)}


async def test_a_key_alone_is_no_right_to_a_grammar(guarded: httpx.AsyncClient, compiler: FakeCompiler) -> None:
    """The compiler is asked whose it is, unless it has told this router so, also where the router knows the grammar."""
    chat = {"messages": [{"role": "user", "content": "hi"}]}
    by_key = {**chat, "structured_outputs": {"key": KEY}}
    in_full = {**chat, "response_format": REGEX}
    assert (await guarded.post("/v1/chat/completions", json=in_full, headers=bearer("a"))).is_success
    ready, compiler.answers = compiler.answers, [{"status": "unknown"}]
    refused = await guarded.post("/v1/chat/completions", json=by_key, headers=bearer("b"))
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "grammar_not_found")
    assert compiler.only_own == [False, True]
    compiler.answers = ready
    compiler.release.clear()  # the refusal of one tenant is no news for another
    assert (await guarded.post("/v1/chat/completions", json=by_key, headers=bearer("a"))).is_success
    compiler.release.set()
    assert (await guarded.post("/v1/chat/completions", json=by_key, headers=bearer("root"))).is_success
    assert compiler.only_own == [False, True, False, False]


async def test_who_may_not_discard_does_not_make_a_grammar_new(
    guarded: httpx.AsyncClient, compiler: FakeCompiler
) -> None:
    chat = {"messages": [{"role": "user", "content": "hi"}], "response_format": REGEX}
    compiler.known = {"status": "ready", **DETAILS}
    assert (await guarded.post("/v1/chat/completions", json=chat, headers=bearer("a"))).is_success
    assert (await guarded.delete(f"/v1/grammars/{KEY}", headers=bearer("b"))).status_code == 403
    compiler.release.clear()
    assert (await guarded.post("/v1/chat/completions", json=chat, headers=bearer("a"))).is_success


async def test_the_tenant_header_is_checked_and_means_nothing_beside_keys(
    http: httpx.AsyncClient, guarded: httpx.AsyncClient, compiler: FakeCompiler
) -> None:
    bad = await http.get("/v1/models", headers={"x-turnstile-tenant": "a b"})
    assert (bad.status_code, bad.json()["error"]["param"]) == (400, "x-turnstile-tenant")
    headers = {**bearer("a"), "x-turnstile-tenant": "somebody"}
    await guarded.post("/v1/grammars", json={"specification": REGEX}, headers=headers)
    assert compiler.tenants == ["a"]


@pytest.mark.parametrize(
    "content", ["", "keys: []", "keys: [{tenant: a, sha256: abc}]", "keys: [{tenant: 'a b'}]", "[", "clefs: []"]
)
def test_key_files_are_checked(tmp_path: Path, content: str) -> None:
    (tmp_path / "keys").write_text(content)
    with pytest.raises(ValueError, match="API key file"):
        Tenants.from_file(str(tmp_path / "keys"))
    with pytest.raises(ValueError, match="API key file"):
        Tenants.from_file(str(tmp_path / "absent"))
