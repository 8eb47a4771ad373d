"""Argument parsing of the `turnstile` command: a parser with one-line errors, types of numbers, and exceptions.

A subcommand that fails raises `Failure` or `UsageFailure`. `deployments.cli.main` prints the message on stderr and
converts the exception to an exit code.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from typing import NoReturn, TypeVar

from grammar_workers.errors import shortened

T = TypeVar("T", int, float)
# Maximum number of characters of an argument in an error message.
_SHOWN = 40


class Failure(Exception):
    """A subcommand of `turnstile` has failed. `main` prints the message on stderr and returns exit code 1."""


class UsageFailure(Failure):
    """An argument of `turnstile` is unusable, such as a missing file. `main` prints the message and returns code 2."""


class Parser(argparse.ArgumentParser):
    """Argument parser that reports an error in one line, without the list of all arguments."""

    def error(self, message: str) -> NoReturn:
        """Print the error and a hint to `--help` on stderr, and exit with code 2.

        Args:
            message: Description of the error, from argparse.
        """
        print(f"error: {message} (`{self.prog} --help` explains)", file=sys.stderr)
        sys.exit(2)


def _number_type(parse: type[T], *demands: tuple[Callable[[T], bool], str]) -> Callable[[str], T]:
    """Return an argparse `type` for numbers. Each demand is a check and the message for a number that fails it."""

    def read(text: str) -> T:
        try:
            number = parse(text)
        except ValueError:
            kind = "whole number" if parse is int else "number"
            raise argparse.ArgumentTypeError(f"{shortened(text, _SHOWN)!r} is no {kind}") from None
        for is_met, otherwise in demands:
            if not is_met(number):
                raise argparse.ArgumentTypeError(f"{shortened(text, _SHOWN)!r} is {otherwise}")
        return number

    return read


port = _number_type(int, (lambda number: 0 <= number <= 65535, "no port: ports are at most 65535"))
finite = _number_type(float, (math.isfinite, "no finite number"))
positive = _number_type(float, (math.isfinite, "no finite number"), (lambda number: number > 0, "not above 0"))
natural = _number_type(int, (lambda number: number >= 1, "not at least 1"))
