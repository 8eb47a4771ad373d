"""`turnstile precompile PATH...`: compile schemas on a running server before the first request needs them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from deployments.cli.arguments import natural
from deployments.cli.constraint_file import KIND_HELP, KINDS, SUFFIXES, Kind, read_text, specification
from deployments.cli.failure import UsageFailure
from deployments.cli.server import Server, ServerFailure, add_server_arguments
from grammar_workers.errors import GrammarError

_REFUSALS = (400, 413)
"""Statuses that are about the one specification; any other ends the command."""

_COLUMNS = ("file", "status", "key", "states", "bytes", "seconds")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one file: the server's answer, or why it was refused."""

    path: str
    status: dict[str, Any] | None
    refusal: str | None = None

    def row(self) -> tuple[str, ...]:
        """The cells of the table, in the order of `_COLUMNS`."""
        if self.status is None:
            return (self.path, "refused", "", "", "", "")
        numbers = (_number(self.status.get(name)) for name in ("automaton_states", "artifact_bytes"))
        return (self.path, str(self.status["status"]), self.status["key"], *numbers, self._seconds())

    def _seconds(self) -> str:
        seconds = (self.status or {}).get("compile_seconds")
        return "" if seconds is None else f"{seconds:.3f}"


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
    parser.add_argument("--jobs", type=natural, default=4, metavar="N", help="requests at a time (default 4)")
    add_server_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Returns 0 when all are ready, 1 when one was refused. Raises `Failure` when the server is not there."""
    if options.jobs < 1:
        raise UsageFailure("--jobs: at least 1")
    files = _files(options.paths)
    server = Server.of(options)
    outcomes: dict[str, Outcome] = {}
    with ThreadPoolExecutor(options.jobs) as pool:
        calls = [pool.submit(_compile, server, path, options.kind) for path in files]
        try:
            for call in tqdm(as_completed(calls), total=len(calls), unit="grammar", file=sys.stderr):
                outcomes[call.result().path] = call.result()
        finally:
            pool.shutdown(cancel_futures=True)
    in_order = [outcomes[path] for path in files]
    print("\n".join(_table([_COLUMNS, *(outcome.row() for outcome in in_order)])))
    refused = [outcome for outcome in in_order if outcome.refusal is not None]
    for outcome in refused:
        print(f"refused: {outcome.path}: {outcome.refusal}")
    return 1 if refused else 0


def _compile(server: Server, path: str, kind: Kind | None) -> Outcome:
    try:
        return Outcome(path, server.compile(specification(path, read_text(path), kind)))
    except GrammarError as error:
        return Outcome(path, None, str(error))
    except ServerFailure as failure:
        if failure.status not in _REFUSALS:
            raise
        return Outcome(path, None, str(failure))


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


def _number(value: int | None) -> str:
    return "" if value is None else f"{value:,}"
