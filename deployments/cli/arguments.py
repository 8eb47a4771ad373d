"""Parsing of arguments: every mistake is one line, and numbers are numbers; what ends a subcommand with one line."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from typing import NoReturn, TypeVar

T = TypeVar("T", int, float)


class Failure(Exception):
    """The command could not do what was asked; the message says why."""


class UsageFailure(Failure):
    """An argument is at fault: a file that is not there, a kind that cannot be told."""


class Parser(argparse.ArgumentParser):
    """Tells a mistake in one line, instead of the usage of everything."""

    def error(self, message: str) -> NoReturn:
        print(f"error: {message} (`{self.prog} --help` explains)", file=sys.stderr)
        sys.exit(2)


def _number_type(parse: type[T], *demands: tuple[Callable[[T], bool], str]) -> Callable[[str], T]:
    """An argument's `type`: a number that is as each demand wants it; what it is not is said otherwise."""

    def read(text: str) -> T:
        try:
            number = parse(text)
        except ValueError:
            kind = "whole number" if parse is int else "number"
            raise argparse.ArgumentTypeError(f"{_shown(text)} is no {kind}") from None
        for is_met, otherwise in demands:
            if not is_met(number):
                raise argparse.ArgumentTypeError(f"{_shown(text)} is {otherwise}")
        return number

    return read


port = _number_type(int, (lambda number: 0 <= number <= 65535, "no port: ports are at most 65535"))
finite = _number_type(float, (math.isfinite, "no finite number"))
positive = _number_type(float, (math.isfinite, "no finite number"), (lambda number: number > 0, "not above 0"))
natural = _number_type(int, (lambda number: number >= 1, "not at least 1"))


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}...")
