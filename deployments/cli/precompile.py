"""`turnstile precompile PATH...`: compile schemas on a running server before the first request needs them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, get_args

from tqdm import tqdm

from deployments.cli.arguments import UsageFailure, natural
from deployments.cli.constraint_file import KIND_HELP, KINDS, SUFFIXES, Kind, read_text, specification
from deployments.cli.server import Server, ServerFailure, add_server_arguments
from deployments.openai.constraints import ON_UNSUPPORTED
from grammar_workers.errors import GrammarError
from grammar_workers.options import OnUnsupported

_REFUSALS = (400, 413)
"""Statuses that are about the one specification; any other ends the command."""

_COLUMNS = ("file", "status", "key", "states", "bytes", "seconds")


Outcome = dict[str, Any] | str
"""What became of a file: the server's answer, or why it was refused."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `run` needs to know."""
    parser.add_argument(
        "paths",
        nargs="+",
        metavar="PATH",
        help=f"a file, a folder (every {', '.join(sorted(SUFFIXES))} in it), or - for a list of files on standard "
        "input, one to a line",
    )
    parser.add_argument("--kind", choices=KINDS, help=KIND_HELP)
    parser.add_argument("--on-unsupported", choices=get_args(OnUnsupported), help=ON_UNSUPPORTED)
    parser.add_argument("--jobs", type=natural, default=4, metavar="N", help="requests at a time (default 4)")
    add_server_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Returns 0 when all are ready, 1 when one was refused. Raises `Failure` when the server is not there."""
    files = _files(options.paths)
    server = Server(options.url, timeout_s=options.timeout)
    with ThreadPoolExecutor(options.jobs) as pool:
        answers = pool.map(lambda path: _compile(server, path, options.kind, options.on_unsupported), files)
        outcomes = dict(zip(files, tqdm(answers, total=len(files), unit="grammar", file=sys.stderr), strict=True))
    print("\n".join(_table([_COLUMNS, *map(_row, outcomes, outcomes.values())])))
    for path, outcome in outcomes.items():
        for keyword in outcome.get("unenforced", ()) if isinstance(outcome, dict) else ():
            print(f"not enforced: {path}: {keyword['pointer']}: {keyword['reason']}")
    refused = {path: outcome for path, outcome in outcomes.items() if isinstance(outcome, str)}
    for path, reason in refused.items():
        print(f"refused: {path}: {reason}")
    return 1 if refused else 0


def _compile(server: Server, path: str, kind: Kind | None, on_unsupported: str | None) -> Outcome:
    try:
        return server.compile(specification(path, read_text(path), kind), on_unsupported)
    except GrammarError as error:
        return str(error)
    except ServerFailure as failure:
        if failure.status not in _REFUSALS:
            raise
        return str(failure)


def _files(paths: Sequence[str]) -> list[str]:
    """The files that the arguments mean, each once, those of a folder by name."""
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


def _row(path: str, outcome: Outcome) -> tuple[str, ...]:
    """The cells of the table, in the order of `_COLUMNS`."""
    status: dict[str, Any] = {"status": "refused", "key": ""} if isinstance(outcome, str) else outcome
    forms = {"automaton_states": ",", "artifact_bytes": ",", "compile_seconds": ".3f"}
    return (path, status["status"], status["key"], *(_shown(status.get(name), form) for name, form in forms.items()))


def _shown(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
