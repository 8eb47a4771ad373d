"""`turnstile precompile PATH...`: compile schemas on a running server before the first request needs them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tqdm import tqdm

from deployments.cli.arguments import UsageFailure, natural
from deployments.cli.constraint_file import KIND_HELP, KINDS, SUFFIXES, Kind, read_text, specification
from deployments.cli.grammar_flags import add_on_unsupported
from deployments.cli.server import Server, ServerFailure, add_server_arguments
from grammar_workers.errors import GrammarError

# HTTP statuses that reject one specification. Any other error status ends the command.
_REFUSALS = (400, 413)

_COLUMNS = ("file", "status", "key", "states", "bytes", "seconds")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `turnstile precompile` to the parser."""
    parser.add_argument(
        "paths",
        nargs="+",
        metavar="PATH",
        help=f"a file, a folder (every {', '.join(sorted(SUFFIXES))} in it), or - for a list of files on standard "
        "input, one to a line",
    )
    parser.add_argument("--kind", choices=KINDS, help=KIND_HELP)
    add_on_unsupported(parser)
    parser.add_argument(
        "--jobs", type=natural, default=4, metavar="N", help="number of concurrent requests (default 4)"
    )
    add_server_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Compile the constraint of each file on the server, and print a table with one row for each file.

    If the constraint of a file is rejected, the command continues with the other files. Other errors end the command:
    `ServerFailure` is raised if the server cannot be reached or responds with another error. `UsageFailure` is raised
    if a file cannot be read, if the kind of its constraint is unknown, or if there are no files.

    Args:
        options: Parsed arguments of `add_arguments`.

    Returns:
        Exit code: 0 if all constraints were compiled, 1 if a constraint was rejected.
    """
    files = _files(options.paths)
    server = Server(options.url, timeout_s=options.timeout)
    with ThreadPoolExecutor(options.jobs) as pool:
        answers = pool.map(lambda path: _compile(server, path, options.kind, options.on_unsupported), files)
        outcomes = dict(zip(files, tqdm(answers, total=len(files), unit="grammar", file=sys.stderr), strict=True))
    print("\n".join(_table([_COLUMNS, *map(_row, outcomes, outcomes.values())])))
    for path, outcome in outcomes.items():
        for keyword in outcome.get("unenforced", ()):
            print(f"not enforced: {path}: {keyword['pointer']}: {keyword['reason']}")
    refused = {path: outcome["reason"] for path, outcome in outcomes.items() if "reason" in outcome}
    for path, reason in refused.items():
        print(f"refused: {path}: {reason}")
    return 1 if refused else 0


def _compile(server: Server, path: str, kind: Kind | None, on_unsupported: str | None) -> dict[str, Any]:
    """Return the response of the server for a file. If the specification is rejected, the result has a `reason`."""
    try:
        return server.compile(specification(path, read_text(path), kind), on_unsupported)
    except GrammarError as error:
        reason = str(error)
    except ServerFailure as failure:
        if failure.status not in _REFUSALS:
            raise
        reason = str(failure)
    return {"status": "refused", "key": "", "reason": reason}


def _files(paths: Sequence[str]) -> list[str]:
    """Return the files that the arguments name, without duplicates. The files of a folder are sorted by name."""
    files: list[str] = []
    for path in paths:
        if path == "-":
            files += [line for line in read_text("-").splitlines() if line]
        elif Path(path).is_dir():
            files += sorted(str(file) for file in Path(path).rglob("*") if file.suffix.lower() in SUFFIXES)
        else:
            files.append(path)
    if not files:
        raise UsageFailure(f"no files in {', '.join(paths)}")
    return list(dict.fromkeys(files))


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _row(path: str, outcome: dict[str, Any]) -> tuple[str, ...]:
    """Return the cells of one table row, in the order of `_COLUMNS`."""
    forms = {"automaton_states": ",", "artifact_bytes": ",", "compile_seconds": ".3f"}
    figures = (format(outcome[name], form) if outcome.get(name) is not None else "" for name, form in forms.items())
    return (path, outcome["status"], outcome["key"], *figures)
