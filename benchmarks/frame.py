"""Shared parts of the benchmarks: command line, selection of MaskBench files, progress bar and tables."""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

from tqdm import tqdm

Item = TypeVar("Item")


def new_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser of the command line.

    Args:
        description: Text for `--help`, whose line breaks are kept: the module docstring of the program.
    """
    return argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)


def add_sample(parser: argparse.ArgumentParser) -> None:
    """Add the option `--sample` to a parser. `chosen` takes its value.

    Args:
        parser: The parser.
    """
    parser.add_argument("--sample", type=int, default=None, help="so many files, drawn by a fixed seed")


def chosen(folder: Path, sample: int | None) -> list[Path]:
    """Return MaskBench files in the order of their names.

    Args:
        folder: Folder of the files.
        sample: Number of files, which are selected at random with a fixed seed. None: all files.
    """
    paths = sorted(folder.glob("*.json"))
    return paths if sample is None else sorted(random.Random(0).sample(paths, min(sample, len(paths))))


def progress(items: Iterable[Item], what: str, total: int | None = None) -> Iterable[Item]:
    """Return the items as an iterable that shows a progress bar, if stderr is a terminal.

    Args:
        items: The items.
        what: Label of the bar.
        total: Number of items; None: `len(items)`, or unknown.
    """
    return tqdm(items, desc=what, total=total, smoothing=0.05, disable=None)


class Table:
    """A Markdown table that is printed row by row, so that a long run shows its results early.

    Args:
        *columns: Headings of the columns.
    """

    def __init__(self, *columns: str) -> None:
        print("| " + " | ".join(columns) + " |\n" + "|---" * len(columns) + "|", flush=True)

    def row(self, *cells: Any) -> None:
        """Print one row.

        Args:
            *cells: Values of the columns. Integers get thousands separators.
        """
        shown = (f"{cell:,}" if type(cell) is int else str(cell) for cell in cells)
        with tqdm.external_write_mode():
            print("| " + " | ".join(shown) + " |", flush=True)
