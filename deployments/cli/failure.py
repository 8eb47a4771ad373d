"""What ends a subcommand with one line instead of a traceback."""

from __future__ import annotations


class Failure(Exception):
    """The command could not do what was asked; the message says why."""


class UsageFailure(Failure):
    """An argument is at fault: a file that is not there, a kind that cannot be told."""
