"""Parsing of arguments: every mistake is one line, and numbers are numbers."""

from __future__ import annotations

import argparse
import math
import sys
from typing import NoReturn, TypeVar

T = TypeVar("T", int, float)


class Parser(argparse.ArgumentParser):
    """Tells a mistake in one line, instead of the usage of everything."""

    def error(self, message: str) -> NoReturn:
        print(f"error: {message} (`{self.prog} --help` explains)", file=sys.stderr)
        sys.exit(2)


def port(text: str) -> int:
    """A TCP port."""
    number = _number(int, text)
    if not 0 <= number <= 65535:
        raise argparse.ArgumentTypeError(f"{_shown(text)} is no port: ports are at most 65535")
    return number


def finite(text: str) -> float:
    """A number other than NaN and infinity."""
    number = _number(float, text)
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"{_shown(text)} is no finite number")
    return number


def positive(text: str) -> float:
    """A finite number above 0."""
    number = finite(text)
    if number <= 0:
        raise argparse.ArgumentTypeError(f"{_shown(text)} is not above 0")
    return number


def natural(text: str) -> int:
    """A whole number from 1."""
    number = _number(int, text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{_shown(text)} is not at least 1")
    return number


def _number(kind: type[T], text: str) -> T:
    try:
        return kind(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{_shown(text)} is no {'whole ' if kind is int else ''}number") from None


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}...")
