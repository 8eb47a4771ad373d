"""The page `/`: what the tiers report, for those who may see it, without a request to anybody else."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from typing import Any

import httpx
import pytest
from py_mini_racer import MiniRacer

from deployments.http.tenants import ApiKey, Tenants
from deployments.status.reports import RecentReports, Reports
from deployments.status.seen_grammars import MOST_REFUSALS, MOST_REMEMBERED, MOST_TITLE, Seen, SeenGrammars, described
from grammar_workers.service.ledger import MOST_REMEMBERED as MOST_COUNTED
from grammar_workers.service.ledger import SHOWN, GrammarLedger
from grammar_workers.specification import ChoiceSpecification
from tests.deployments.applications import application, client_of
from tests.deployments.fakes import FakeCompiler, FakeReplica

KEY = "ab" * 32
VOID = {"meta", "link", "br", "input"}


def ready(key: str, seconds: float, source: str = "compiled") -> dict[str, Any]:
    sizes = {"automaton_states": 1234, "artifact_bytes": 4096}
    return {"key": key, "status": "ready", "compile_seconds": seconds, "source": source, **sizes}


def answer_of(seconds: float) -> dict[str, Any]:
    """What a compiler answers, without the key."""
    return {name: value for name, value in ready(KEY, seconds).items() if name != "key"} | {"notes": []}


def compiler_report(hits: int, *grammars: dict[str, Any]) -> dict[str, Any]:
    ledger = GrammarLedger()
    for grammar in grammars:
        ledger.answered(grammar)
    store = {"process": {"hits": hits, "misses": 1, "entries": 2}, "redis": {"hits": 0, "misses": 0, "breaker": "open"}}
    found = {"slowest": ledger.slowest(), "most_used": ledger.most_used()}
    return {"waiting": 3, "running": 1, "compiled": 7, "store": store, **found}


REPLICA = {
    "running": 2,
    "waiting": 5,
    "ended": {"stop": 1000, "error": 4},
    "tokens": 123456,
    "store": {"automata": {"hits": 30, "misses": 10}, "process": {"hits": 1, "misses": 0}},
}


class Text(HTMLParser):
    """Texts of a page that is well formed, and where it refers to."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.references: list[str] = []
        self._open: list[str] = []
        self.feed(page)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self._open.append(tag)
        self.references += [value or "" for name, value in attrs if name in ("href", "src", "action", "srcset")]

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts += [data.strip()] if data.strip() else []


@pytest.mark.anyio
async def test_the_page_shows_what_the_replicas_report(
    http: httpx.AsyncClient, compiler: FakeCompiler, replica: FakeReplica
) -> None:
    compiler.reports = [
        compiler_report(5, ready(KEY, 0.25), ready(KEY, 0.25, "process")),
        RuntimeError("died meanwhile"),
        compiler_report(4, ready("cd" * 32, 1.5)),
    ]
    replica.reports = [REPLICA, REPLICA]
    answer = await http.get("/")
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/html")
    page = Text(answer.text)
    texts = " | ".join(page.texts)
    assert "Turnstile: tiny" in texts and "Both tiers answer." in texts
    assert "Grammar compilers | 2 | 2 | 6 | 14 grammars compiled or refused" in texts
    assert "Model replicas | 2 | 4 | 10 | 2,008 generations ended, 8 with an error; 246,912 tokens" in texts
    assert "loaded | 60 | 20 | 75.0%" in texts and "as stored | 11 | 2 | 84.6%" in texts and "not asked" in texts
    slow = texts.index(f"{'cd' * 6} | 1 | 1.500 s | 1,234 | 4.0 KiB")
    assert slow < texts.index(f"{KEY[:12]} | 2 | 0.250 s | 1,234 | 4.0 KiB") < texts.index("Most used grammars")
    assert texts.rindex(f"{KEY[:12]} | 2") < texts.rindex(f"{'cd' * 6} | 1")


@pytest.mark.anyio
async def test_the_page_refers_to_this_server_alone(http: httpx.AsyncClient) -> None:
    answer = await http.get("/")
    page = Text(answer.text)
    assert all(re.match(r"/[a-z]|data:,$", reference) for reference in page.references)
    assert "url(" not in answer.text and "@import" not in answer.text and "<script" not in answer.text
    assert "api-key" not in answer.text
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    for reference in page.references:
        if reference.startswith("/") and reference != "/v1/models":
            assert (await http.get(reference)).status_code == 200, reference


@pytest.mark.anyio
async def test_a_tier_that_does_not_answer_is_named(
    http: httpx.AsyncClient, compiler: FakeCompiler, replica: FakeReplica
) -> None:
    replica.reports = TimeoutError()
    texts = " | ".join(Text((await http.get("/")).text).texts)
    assert "A tier does not answer" in texts
    assert "Grammar compilers | none" in texts and "Model replicas | no answer" in texts


def tenants(**administrators: bool) -> Tenants:
    """Each name is a tenant and its key."""
    return Tenants(
        [
            ApiKey(tenant=name, sha256=hashlib.sha256(name.encode()).hexdigest(), administrator=administrator)
            for name, administrator in administrators.items()
        ]
    )


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.mark.anyio
async def test_figures_are_for_those_with_a_key(compiler: FakeCompiler, replica: FakeReplica) -> None:
    compiler.reports, replica.reports = [compiler_report(1, ready(KEY, 0.1))], [REPLICA]
    async with client_of(application(compiler, replica, tenants=tenants(operations=True))) as http:
        for headers in ({}, bearer("wrong")):
            page = await http.get("/", headers=headers)
            assert page.status_code == 200 and "API key" in page.text
            assert KEY[:12] not in page.text and "Tiers" not in page.text
            assert "/v1/models" not in page.text
        assert KEY[:12] in (await http.get("/", headers=bearer("operations"))).text


@pytest.mark.anyio
async def test_a_server_with_keys_has_a_field_for_one(compiler: FakeCompiler, replica: FakeReplica) -> None:
    async with client_of(application(compiler, replica, tenants=tenants(tests=False))) as http:
        answer = await http.get("/")
    (script,) = re.findall("<script>(.*?)</script>", answer.text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in answer.headers["content-security-policy"]
    assert 'type="password"' in answer.text and "localStorage" not in script
    MiniRacer().eval(f"new Function({json.dumps(script)})")


SCHEMAS: list[dict[str, Any]] = [
    {"type": "json_schema", "schema": {"type": "object", "title": "Person", "properties": {"age": {}}}},
    {"type": "json_schema", "schema": {"type": "object", "properties": {"street": {}, "town": {}}}},
    {"type": "regex", "pattern": "[a-z]+ <b>"},
    {"type": "choice", "choices": ["red", "green"]},
    {"type": "positions", "allowed": [["a", "b"], [1, 2]]},
    {"type": "banned_words", "words": ["blue"], "case_sensitive": True},
]
TITLES = ["Person", "street, town", "[a-z]+ &lt;b&gt;", "red, green", "[&#39;a&#39;, &#39;b&#39;], [1, 2]", "blue"]


@pytest.mark.anyio
@pytest.mark.parametrize(("specification", "title"), list(zip(SCHEMAS, TITLES, strict=True)))
async def test_a_grammar_is_described_to_its_tenant_alone(
    compiler: FakeCompiler, replica: FakeReplica, specification: dict[str, Any], title: str
) -> None:
    """Also that keys are whole for administrators only: with one a grammar of somebody else could be named."""
    app = application(compiler, replica, tenants=tenants(tests=False, others=False, operations=True))
    async with client_of(app) as http:
        compiler.answers = [answer_of(0.1)]
        answer = await http.post("/v1/grammars", json={"specification": specification}, headers=bearer("tests"))
        key = answer.json()["key"]
        compiler.reports = [compiler_report(1, ready(key, 0.1))]
        pages = {name: (await http.get("/", headers=bearer(name))).text for name in ("tests", "others", "operations")}
    for name in ("tests", "operations"):
        assert pages[name].count(f"{title} <code") == 2 and key[:12] in pages[name]
    assert title not in pages["others"] and key[:12] not in pages["others"]
    assert [key[:13] in page for page in pages.values()] == [False, False, True]


@pytest.mark.anyio
async def test_the_newest_refusals_are_shown_to_their_tenant(compiler: FakeCompiler, replica: FakeReplica) -> None:
    app = application(compiler, replica, tenants=tenants(tests=False, others=False, operations=True))
    async with client_of(app) as http:
        for number in range(MOST_REFUSALS + 2):
            error = {"code": "unsupported_schema", "message": f"<i>no {number:02}</i>", "pointer": "/not"}
            compiler.answers = [{"status": "refused", "error": error}]
            body = {"messages": [{"role": "user", "content": "x"}], "structured_outputs": {"regex": f"a{number}"}}
            assert (await http.post("/v1/chat/completions", json=body, headers=bearer("tests"))).status_code == 400
        pages = {name: (await http.get("/", headers=bearer(name))).text for name in ("tests", "others", "operations")}
    for name in ("tests", "operations"):
        shown = re.findall(r"&lt;i&gt;no (\d\d)&lt;/i&gt; \(at ", pages[name])
        assert shown == [f"{number:02}" for number in range(MOST_REFUSALS + 1, 1, -1)]
        assert ">regex<" in pages[name] and ">a11<" in pages[name]
    assert "no 11" not in pages["others"]


def test_descriptions_read_the_beginning_of_a_specification_only() -> None:
    seen, long = SeenGrammars(), described(ChoiceSpecification(choices=["x" * 1000] * 1000))
    for number in range(MOST_REMEMBERED + 10):
        seen.ready(f"{number}", long, "tests", {"notes": ["x"]})
    assert len(seen.grammars("tests")) == MOST_REMEMBERED and seen.grammars("others") == {}
    newest = seen.grammars("tests")[f"{number}"]
    assert len(newest.title) <= MOST_TITLE + 3 and newest.figures == {}
    figures = {"compile_seconds": 0.1, "automaton_states": 2, "artifact_bytes": 5}
    seen.ready(f"{number}", Seen(), "tests", figures)
    assert seen.grammars(None)[f"{number}"] == Seen(newest.kind, newest.title, figures)
    for untrusted in ({"artifact_bytes": 5}, {**figures, "compile_seconds": "x"}):
        seen.ready(f"{number}", Seen(), "tests", untrusted)
        assert seen.grammars(None)[f"{number}"].figures == {}


@pytest.mark.anyio
async def test_what_others_named_is_text(compiler: FakeCompiler, replica: FakeReplica) -> None:
    hostile = "<script>alert(1)</script>"
    compiler.reports = [compiler_report(1, ready(hostile, 0.1))]
    async with client_of(application(compiler, replica)) as http:
        page = (await http.get("/")).text
    assert hostile not in page and "&lt;script&gt;" in page
    Text(page)


@pytest.mark.anyio
async def test_those_who_ask_at_a_time_share_the_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deployments.status.reports.REMEMBER_S", 1e6)
    asked = []

    async def ask() -> list[Any]:
        asked.append(1)
        return [[], None]

    recent = RecentReports(ask)
    assert await recent.get() is await recent.get()
    assert asked == [1] and (await recent.get()) == Reports([], None)


def test_a_ledger_keeps_the_slowest_and_the_most_used() -> None:
    ledger = GrammarLedger()
    for number in range(MOST_COUNTED + 500):
        ledger.answered(ready(f"{number:064d}", number / 1000))
        ledger.answered(ready("0" * 64, 0.0, "process"))
    assert ledger.most_used()[0] == {"key": "0" * 64, "calls": MOST_COUNTED + 501}
    assert len(ledger.most_used()) == len(ledger.slowest()) == SHOWN
    assert [one["compile_seconds"] for one in ledger.slowest()][:2] == [4.595, 4.594]
    used = {one["key"] for one in ledger.most_used()}
    asked_once = [one for one in ledger.slowest() if one["key"] not in used]
    assert asked_once and all(one["calls"] == 1 for one in asked_once)
    assert Reports([{"slowest": ledger.slowest(), "most_used": ledger.most_used()}], None).calls()["0" * 64] == 4597


@pytest.mark.anyio
async def test_the_api_documentation_refers_to_this_server_alone(http: httpx.AsyncClient) -> None:
    page = (await http.get("/docs")).text
    references = re.findall(r"""(?:href|src|url)\s*[=:]\s*['"]([^'"]*)""", page)
    assert {"/docs/assets/swagger-ui-bundle.js", "/docs/assets/swagger-ui.css", "/openapi.json"} <= set(references)
    assert "//" not in re.sub(r"<!--.*?-->", "", page, flags=re.DOTALL)
    for reference in references:
        assert reference == "data:," or (await http.get(reference)).status_code == 200, reference
    assert (await http.get("/redoc")).status_code == 404
