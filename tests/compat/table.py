"""The table of packages and calls, from the results of the tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

CALLS = {
    "text": "text",
    "object": "object",
    "streamed_object": "streamed object",
    "tool_results": "tools with results",
    "parallel_calls": "parallel calls",
    "error_results": "error results",
    "reasoning_echo": "reasoning sent back",
    "tools_beside_an_object": "tools beside an object",
}
"""Names of the tests, and columns of the table; a package's other tests share a last column."""
OTHERS = "other tests"
HEAD = """\
# Client packages

Each package of others runs each call against a real server with the shipped model: `make compat` (its requests are
replayed by `make test`; `python -m tests.compat --record` writes this page). A cell is `passed`, `failed`, or empty
where the package has no such call.
"""


def table(results: Iterable[dict[str, Any]]) -> str:
    """Return the page, from results with `package`, `version`, `api`, `call` and `passed`."""
    cells: dict[tuple[str, str, str], dict[str, list[bool]]] = {}
    for one in results:
        row = cells.setdefault((one["package"], one["version"], one["api"]), {})
        row.setdefault(CALLS.get(one["call"], OTHERS), []).append(one["passed"])
    columns = [*CALLS.values(), OTHERS]
    lines = [["package", "version", "API", *columns], ["---"] * (3 + len(columns))]
    for names, row in sorted(cells.items()):
        lines.append([*names, *(_cell(row.get(column)) for column in columns)])
    return HEAD + "\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cell(passed: list[bool] | None) -> str:
    return "" if passed is None else "passed" if all(passed) else "failed"
