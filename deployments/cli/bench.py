"""`turnstile bench`: put load on a running server and print throughput and latency as clients measure them."""

from __future__ import annotations

import argparse
import asyncio
import itertools

from tqdm import tqdm

from deployments.cli.arguments import Failure, UsageFailure, finite, natural, positive
from deployments.cli.load import Load, Report
from deployments.cli.load import run as put_load
from deployments.cli.server import add_server_arguments, authorization


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `turnstile bench` to the parser."""
    parser.add_argument(
        "--clients",
        type=natural,
        nargs="+",
        default=[1, 8, 32],
        metavar="N",
        help="numbers of clients that send requests at the same time",
    )
    parser.add_argument(
        "--structured",
        type=finite,
        nargs="+",
        default=[0, 1],
        metavar="SHARE",
        help="shares of requests with a schema, from 0 to 1",
    )
    parser.add_argument(
        "--unique", action="store_true", help="each request has a new schema, which the server must compile"
    )
    parser.add_argument(
        "--seconds", type=positive, default=5, metavar="S", help="seconds for each measured row (default %(default)s)"
    )
    parser.add_argument(
        "--max-tokens",
        type=natural,
        default=32,
        metavar="N",
        help="maximum number of output tokens of each response (default 32)",
    )
    parser.add_argument("--model", help="a name from /v1/models (default: the served model)")
    add_server_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Send requests to a server, for `--seconds` with each combination of `--clients` and `--structured`.

    At the end, print a table of throughput and latency with one row for each combination.

    Args:
        options: Parsed arguments of `add_arguments`.

    Returns:
        Exit code: 0 if all requests succeeded, 1 if a request failed.

    Raises:
        UsageFailure: A value of `--structured` (share of the requests that have a schema) is not between 0 and 1.
        Failure: All requests of one combination failed. The message has the reasons.
    """
    if not all(0 <= share <= 1 for share in options.structured):
        raise UsageFailure("--structured: between 0 and 1")
    rows: list[tuple[str, ...]] = [("clients", "structured", *Report.COLUMNS)]
    failed = 0
    cells = list(itertools.product(options.clients, options.structured))
    with tqdm(total=len(cells) * options.seconds, unit="s", disable=None, bar_format="{l_bar}{bar}{postfix}") as bar:
        for number, (clients, share) in enumerate(cells, 1):
            bar.set_postfix_str(f"{clients} clients, {share:.0%} structured")
            load = Load(clients, share, options.unique, options.seconds, options.max_tokens, options.model)
            report = asyncio.run(put_load(options.url, load, headers=authorization(), tick=bar.refresh))
            bar.update(number * options.seconds - bar.n)
            if not report.requests:
                reasons = ", ".join(f"{reason} ({many} times)" for reason, many in report.failures.items())
                raise Failure(f"{options.url} answered no request: {reasons}")
            failed += report.failures.total()
            rows.append((str(clients), f"{share:.0%}", *report.cells()))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))
    return 1 if failed else 0
