"""Verdict: what judges say about a text, and how several of them speak with one voice."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Answer(enum.Enum):
    """`VALID`: must be accepted. `INVALID`: must not be. `OPEN`: either is right, or nobody knows."""

    VALID = "valid"
    INVALID = "invalid"
    OPEN = "open"


class Verdict(NamedTuple):
    """An answer and who says why."""

    answer: Answer
    reason: str = ""


VALID = Verdict(Answer.VALID)


def invalid(reason: str) -> Verdict:
    return Verdict(Answer.INVALID, reason)


def undecided(reason: str) -> Verdict:
    return Verdict(Answer.OPEN, reason)


class Judge(Protocol):
    """Decides about whole texts."""

    def verdict(self, text: str) -> Verdict: ...


class AllOf:
    """Valid is what all judges find valid."""

    def __init__(self, judges: Sequence[Judge]) -> None:
        self.judges = judges

    def verdict(self, text: str) -> Verdict:
        found = Verdict(Answer.VALID)
        for judge in self.judges:
            one = judge.verdict(text)
            if one.answer == Answer.INVALID:
                return one
            found = one if one.answer == Answer.OPEN else found
        return found
