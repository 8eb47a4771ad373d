"""HTML of the status page (HTTP path `/`).

The page contains its styles, and loads nothing else. If the visitor has no valid API key, the page has a form for the
key and a script.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from deployments.status.reports import KINDS, Reports
from deployments.status.seen_grammars import Seen, SeenGrammars

_FOLDER = Path(__file__).parent
_TEMPLATES = Environment(loader=FileSystemLoader(_FOLDER), autoescape=True, undefined=StrictUndefined)
PAGE = _TEMPLATES.get_template("page.html")
STYLE = Markup((_FOLDER / "status.css").read_text())
SCRIPT = Markup((_FOLDER / "status.js").read_text())
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    f"script-src 'sha256-{base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()}'; connect-src 'self'; "
    "form-action 'none'; frame-ancestors 'none'",
}
SHOWN = 10
LINKS = (
    ("/explorer/", "Explorer", "step through a generation and see what the mask did"),
    ("/docs", "API documentation", "every path and field, to try out"),
    ("/v1/models", "Models", "what is served, as JSON"),
    ("/health", "Health", "200 while both tiers answer"),
)
TIERS = ("Grammar compilers", "Model replicas")

# Title, heads of the columns, and rows of a table.
Table = tuple[str, Sequence[str], list[list[str]]]


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
    # A link sends no API key, so `/v1/models` would respond with 401.
    links = [link for link in LINKS if reports is not None or link[0] != "/v1/models"]
    tables = [] if reports is None else [_tiers(reports), _stores(reports), *_grammars(reports, seen, tenant)]
    now = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}"
    return PAGE.render(
        model=model, version=version, now=now, links=links, reports=reports, tables=tables, style=STYLE, script=SCRIPT
    )


def _tiers(reports: Reports) -> Table:
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
    return "Tiers", ("tier", "replicas", "running", "waiting", "since their start"), rows


def _stores(reports: Reports) -> Table:
    rows = []
    for tier, counts in reports.stores().items():
        hits, asked = counts["hits"], counts["hits"] + counts["misses"]
        meter = Markup('<meter max="{}" value="{}" aria-hidden="true"></meter> {:.1%}')
        share = meter.format(asked, hits, hits / asked) if asked else "not asked"
        rows.append([KINDS[tier], f"{hits:,}", f"{counts['misses']:,}", share])
    return "Where grammars were found", ("place", "hits", "misses", "share of hits"), rows


def _grammars(reports: Reports, seen: SeenGrammars, tenant: str | None) -> tuple[Table, Table, Table]:
    known = seen.grammars(tenant)
    slowest = {grammar["key"]: grammar for grammar in reports.slowest() if tenant is None or grammar["key"] in known}
    calls = reports.calls()
    used = [key for key, _ in calls.most_common() if tenant is None or key in known]

    def row(key: str) -> list[str]:
        grammar = known.get(key, Seen())
        figures = {**grammar.figures, **slowest.get(key, {})}
        whole = "" if tenant is not None else Markup(' title="{}"').format(key)
        return [
            Markup("{} <code{}>{}</code>").format(grammar.title, whole, key[:12]),
            grammar.kind,
            f"{calls[key]:,}" if key in calls else "",
            f"{figures['compile_seconds']:.3f} s" if figures else "",
            f"{figures['automaton_states']:,}" if figures else "",
            f"{figures['artifact_bytes'] / 1024:,.1f} KiB" if figures else "",
        ]

    heads = ("grammar", "kind", "requests", "compiled in", "states", "stored")
    refusals = [[f"{at:%Y-%m-%d %H:%M:%S}", one.kind, one.title, reason] for at, one, reason in seen.refusals(tenant)]
    return (
        ("Slowest grammars", heads, [row(key) for key in list(slowest)[:SHOWN]]),
        ("Most used grammars", heads, [row(key) for key in used[:SHOWN]]),
        ("Newest refusals of this router", ("time (UTC)", "kind", "specification", "reason"), refusals),
    )
