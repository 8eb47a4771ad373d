"""HTML of the status page (HTTP path `/`).

The page contains its styles, and loads nothing else. If the visitor has no valid API key, the page has a form for the
key and a script.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from string import Template

from deployments.status.reports import KINDS, Reports
from deployments.status.seen_grammars import Seen, SeenGrammars

_FOLDER = Path(__file__).parent
PAGE = Template((_FOLDER / "page.html").read_text())
STYLE = (_FOLDER / "status.css").read_text()
SCRIPT = (_FOLDER / "status.js").read_text()
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    f"script-src 'sha256-{base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()}'; connect-src 'self'; "
    "form-action 'none'; frame-ancestors 'none'",
}
SHOWN = 10
KEY_FORM = f"{(_FOLDER / 'key_form.html').read_text()}<script>{SCRIPT}</script>"
LINKS = (
    ("/explorer/", "Explorer", "step through a generation and see what the mask did"),
    ("/docs", "API documentation", "every path and field, to try out"),
    ("/v1/models", "Models", "what is served, as JSON"),
    ("/health", "Health", "200 while both tiers answer"),
)
TIERS = ("Grammar compilers", "Model replicas")


def status_page(model: str, version: str, reports: Reports | None, seen: SeenGrammars, tenant: str | None) -> str:
    """Return the HTML of the status page as one complete document.

    Args:
        model: Name of the served model.
        version: Installed version of Turnstile.
        reports: Figures of the compilers and model replicas. None: the visitor has no valid API key. The page then has
            a form for the key instead of figures.
        seen: Descriptions and rejections of the grammars (constraints) of the requests to this router.
        tenant: Name of the visitor's tenant (client). The page shows only grammars of this tenant. None: the visitor is
            an administrator, and the page shows all grammars.
    """
    title = f"Turnstile: {model}"
    # A link sends no API key, so `/v1/models` would respond with 401.
    shown = [link for link in LINKS if reports is not None or link[0] != "/v1/models"]
    links = "".join(f'<li><a href="{path}">{name}</a> <span>{what}</span></li>' for path, name, what in shown)
    if reports is None:
        body = '<p id="locked">The figures of the server are shown to those who have an API key.</p>'
    else:
        body = _state(reports) + _tiers(reports) + _stores(reports) + _grammars(reports, seen, tenant)
    return PAGE.substitute(
        title=escape(title),
        style=STYLE,
        version=escape(version),
        now=f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}",
        links=links,
        key_form=KEY_FORM if reports is None else "",
        body=body,
    )


def _state(reports: Reports) -> str:
    if reports.complete:
        return '<p class="good" role="status">Both tiers answer.</p>'
    return '<p class="bad" role="status">A tier does not answer: see below.</p>'


def _tiers(reports: Reports) -> str:
    rows = []
    for name, tier in zip(TIERS, (reports.compilers, reports.replicas), strict=True):
        if not tier:
            rows.append([name, "none" if tier is not None else "no answer", "", "", ""])
            continue
        sums = [sum(report[field] for report in tier) for field in ("running", "waiting")]
        if tier is reports.compilers:
            done = f"{sum(report['compiled'] for report in tier):,} grammars compiled or refused"
        else:
            ended = sum(sum(report["ended"].values()) for report in tier)
            failed = sum(report["ended"].get("error", 0) for report in tier)
            tokens = sum(report["tokens"] for report in tier)
            done = f"{ended:,} generations ended, {failed:,} with an error; {tokens:,} tokens"
        rows.append([name, f"{len(tier)}", *(f"{one:,}" for one in sums), done])
    return _table("Tiers", ("tier", "replicas", "running", "waiting", "since their start"), rows)


def _stores(reports: Reports) -> str:
    rows = []
    for tier, counts in reports.stores().items():
        asked = counts["hits"] + counts["misses"]
        share = f"{counts['hits'] / asked:.1%}" if asked else "not asked"
        meter = f'<meter max="{asked}" value="{counts["hits"]}" aria-hidden="true"></meter> ' if asked else ""
        rows.append([KINDS[tier], f"{counts['hits']:,}", f"{counts['misses']:,}", Html(f"{meter}{share}")])
    return _table("Where grammars were found", ("place", "hits", "misses", "share of hits"), rows)


def _grammars(reports: Reports, seen: SeenGrammars, tenant: str | None) -> str:
    known = seen.grammars(tenant)
    slowest = {grammar["key"]: grammar for grammar in reports.slowest() if tenant is None or grammar["key"] in known}
    calls = reports.calls()
    used = [key for key, _ in calls.most_common() if tenant is None or key in known]

    def row(key: str) -> list[str]:
        grammar = known.get(key, Seen())
        figures = {**grammar.figures, **slowest.get(key, {})}
        return [
            Html(f"{escape(grammar.title)} {_key(key, tenant is None)}"),
            grammar.kind,
            f"{calls[key]:,}" if key in calls else "",
            f"{figures['compile_seconds']:.3f} s" if figures else "",
            f"{figures['automaton_states']:,}" if figures else "",
            f"{figures['artifact_bytes'] / 1024:,.1f} KiB" if figures else "",
        ]

    heads = ("grammar", "kind", "requests", "compiled in", "states", "stored")
    refusals = [[f"{at:%Y-%m-%d %H:%M:%S}", one.kind, one.title, reason] for at, one, reason in seen.refusals(tenant)]
    return (
        _table("Slowest grammars", heads, map(row, list(slowest)[:SHOWN]))
        + _table("Most used grammars", heads, map(row, used[:SHOWN]))
        + _table("Newest refusals of this router", ("time (UTC)", "kind", "specification", "reason"), refusals)
    )


class Html(str):
    """String that contains HTML. The tables of the status page insert it without escaping."""


def _key(key: str, whole: bool) -> str:
    title = f' title="{escape(key)}"' if whole else ""
    return f"<code{title}>{escape(key[:12])}</code>"


def _table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col">{escape(one)}</th>' for one in heads)
    body = "".join(
        "<tr>"
        + "".join(_cell(one, head, first=n == 0) for n, (one, head) in enumerate(zip(row, heads, strict=True)))
        + "</tr>"
        for row in rows
    )
    if not body:
        return f"<section><h2>{escape(title)}</h2><p>None yet.</p></section>"
    return (
        f"<section><h2>{escape(title)}</h2><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></section>"
    )


def _cell(text: str, head: str, *, first: bool) -> str:
    shown = text if isinstance(text, Html) else escape(text)
    if first:
        return f'<th scope="row">{shown}</th>'
    return f'<td data-head="{escape(head)}">{shown}</td>'
