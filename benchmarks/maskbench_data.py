"""Command line option `--data`: the folder of MaskBench files. Without files, the benchmarks exit with status 0."""

from __future__ import annotations

import argparse
from pathlib import Path


def parse_with_data(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Add the option `--data` to a parser, and parse the command line.

    If the folder of `--data` has no JSON files, the program exits with status 0.

    Args:
        parser: Parser with all other options.

    Returns:
        The parsed command line.
    """
    parser.add_argument(
        "--data", type=Path, required=True, help="folder of MaskBench files (see guidance-ai/jsonschemabench)"
    )
    arguments = parser.parse_args()
    if not any(arguments.data.glob("*.json")):
        parser.exit(0, f"skipped: no MaskBench files in {arguments.data} (see guidance-ai/jsonschemabench)\n")
    return arguments
