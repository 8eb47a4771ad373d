"""The page `/`: what the tiers report, for those who may see it, without a request to anybody else."""

from __future__ import annotations

import hashlib
import re
from html.parser import HTMLParser
from typing import Any

import httpx
import pytest

from deployments.http.tenants import ApiKey, Tenants
from deployments.status.reports import RecentReports, Reports
from grammar_workers.service.ledger import MOST_REMEMBERED, SHOWN, GrammarLedger
from tests.deployments.applications import application, client_of
from tests.deployments.fakes import FakeCompiler, FakeReplica

KEY = "ab" * 32
VOID = {"meta", "link", "br"}


def ready(key: str, seconds: float, source: str = "compiled") -> dict[str, Any]:
    sizes = {"automaton_states": 1234, "artifact_bytes": 4096}
    return {"key": key, "status": "ready", "compile_seconds": seconds, "source": source, **sizes}


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
    assert texts.index(f"{'cd' * 6} | 1.500 s | 1,234 | 4.0 KiB") < texts.index(f"{KEY[:12]} | 0.250 s")
    assert f"{KEY[:12]} | 2" in texts


@pytest.mark.anyio
async def test_the_page_refers_to_this_server_alone(http: httpx.AsyncClient) -> None:
    answer = await http.get("/")
    page = Text(answer.text)
    assert all(re.match(r"/[a-z]|data:,$", reference) for reference in page.references)
    assert "url(" not in answer.text and "@import" not in answer.text and "<script" not in answer.text
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


@pytest.mark.anyio
async def test_figures_are_for_those_with_a_key(compiler: FakeCompiler, replica: FakeReplica) -> None:
    compiler.reports, replica.reports = [compiler_report(1, ready(KEY, 0.1))], [REPLICA]
    tenants = Tenants([ApiKey(tenant="tests", sha256=hashlib.sha256(b"secret").hexdigest())])
    async with client_of(application(compiler, replica, tenants=tenants)) as http:
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            page = await http.get("/", headers=headers)
            assert page.status_code == 200 and "API key" in page.text
            assert KEY[:12] not in page.text and "Tiers" not in page.text
        assert KEY[:12] in (await http.get("/", headers={"Authorization": "Bearer secret"})).text


@pytest.mark.anyio
async def test_whole_keys_are_for_administrators(compiler: FakeCompiler, replica: FakeReplica) -> None:
    """With one a grammar of somebody else could be named."""
    compiler.reports = [compiler_report(1, ready(KEY, 0.1))]
    people = [("tests", False), ("operations", True)]
    keys = [
        ApiKey(tenant=name, sha256=hashlib.sha256(name.encode()).hexdigest(), administrator=administrator)
        for name, administrator in people
    ]
    async with client_of(application(compiler, replica, tenants=Tenants(keys))) as http:
        for name, administrator in people:
            page = (await http.get("/", headers={"Authorization": f"Bearer {name}"})).text
            assert KEY[:12] in page and (KEY[:13] in page) == administrator


@pytest.mark.anyio
async def test_what_others_named_is_text(compiler: FakeCompiler, replica: FakeReplica) -> None:
    hostile = "<script>alert(1)</script>"
    compiler.reports = [compiler_report(1, ready(hostile, 0.1))]
    async with client_of(application(compiler, replica)) as http:
        page = (await http.get("/")).text
    assert hostile not in page and "&lt;script&gt;" in page
    Text(page)


@pytest.mark.anyio
async def test_those_who_ask_at_a_time_share_the_reports() -> None:
    asked = []

    async def ask() -> list[Any]:
        asked.append(1)
        return [[], None]

    recent = RecentReports(ask)
    assert await recent.get() is await recent.get()
    assert asked == [1] and (await recent.get()) == Reports([], None)


def test_a_ledger_keeps_the_slowest_and_the_most_used() -> None:
    ledger = GrammarLedger()
    for number in range(MOST_REMEMBERED + 500):
        ledger.answered(ready(f"{number:064d}", number / 1000))
        ledger.answered(ready("0" * 64, 0.0, "process"))
    assert ledger.most_used()[0] == {"key": "0" * 64, "calls": MOST_REMEMBERED + 501}
    assert len(ledger.most_used()) == len(ledger.slowest()) == SHOWN
    assert [one["compile_seconds"] for one in ledger.slowest()][:2] == [4.595, 4.594]


@pytest.mark.anyio
async def test_the_api_documentation_refers_to_this_server_alone(http: httpx.AsyncClient) -> None:
    page = (await http.get("/docs")).text
    references = re.findall(r"""(?:href|src|url)\s*[=:]\s*['"]([^'"]*)""", page)
    assert {"/docs/assets/swagger-ui-bundle.js", "/docs/assets/swagger-ui.css", "/openapi.json"} <= set(references)
    assert "//" not in re.sub(r"<!--.*?-->", "", page, flags=re.DOTALL)
    for reference in references:
        assert reference == "data:," or (await http.get(reference)).status_code == 200, reference
    assert (await http.get("/redoc")).status_code == 404
