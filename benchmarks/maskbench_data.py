"""The folder of MaskBench files, which is not part of the project: programs that need it skip clearly without it."""

from __future__ import annotations

import argparse
from pathlib import Path


def parse_with_data(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The command line with `--data`, a folder that has such files; without any the program ends, with status 0."""
    parser.add_argument(
        "--data", type=Path, required=True, help="folder of MaskBench files (see guidance-ai/jsonschemabench)"
    )
    arguments = parser.parse_args()
    if not any(arguments.data.glob("*.json")):
        parser.exit(0, f"skipped: no MaskBench files in {arguments.data} (see guidance-ai/jsonschemabench)\n")
    return arguments
