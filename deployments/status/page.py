"""Reports as HTML that needs no script and nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path

from deployments.status.reports import KINDS, Reports

STYLE = (Path(__file__).parent / "status.css").read_text()
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
}
LINKS = (
    ("/explorer/", "Explorer", "step through a generation and see what the mask did"),
    ("/docs", "API documentation", "every path and field, to try out"),
    ("/v1/models", "Models", "what is served, as JSON"),
    ("/health", "Health", "200 while both tiers answer"),
)
TIERS = ("Grammar compilers", "Model replicas")


def status_page(model: str, version: str, reports: Reports | None, *, whole_keys: bool) -> str:
    """The page; `reports` None: for somebody who may not see them. `whole_keys`: for an administrator."""
    title = f"Turnstile: {model}"
    links = "".join(f'<li><a href="{path}">{name}</a> <span>{what}</span></li>' for path, name, what in LINKS)
    if reports is None:
        body = "<p>What the tiers do is shown to those who send an API key: <code>Authorization: Bearer ...</code></p>"
    else:
        body = _state(reports) + _tiers(reports) + _stores(reports) + _grammars(reports, whole_keys)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{escape(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<header>
<h1>{escape(title)}</h1>
<p>version {escape(version)}, as of {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC; load the page again for newer figures</p>
</header>
<nav aria-label="Pages"><ul>{links}</ul></nav>
<main>{body}</main>
</body>
</html>
"""


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


def _grammars(reports: Reports, whole_keys: bool) -> str:
    slowest = [
        [
            Html(_key(one["key"], whole_keys)),
            f"{one['compile_seconds']:.3f} s",
            f"{one['automaton_states']:,}",
            f"{one['artifact_bytes'] / 1024:,.1f} KiB",
        ]
        for one in reports.slowest()
    ]
    used = [[Html(_key(key, whole_keys)), f"{calls:,}"] for key, calls in reports.most_used()]
    return _table("Slowest grammars", ("key", "compiled in", "states", "stored"), slowest) + _table(
        "Most used grammars", ("key", "requests"), used
    )


class Html(str):
    """Text that is HTML already."""


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
