"""How much work one question to an automaton that remembers values may take."""

from __future__ import annotations

from grammar_workers.errors import LimitExceededError

_MOST_STEPS = 50_000
"""About a quarter of a second."""


class Effort:
    """Counts the work of one question: a mask row, a step, or a way to an end. A step is some microseconds' work."""

    def __init__(self) -> None:
        self._left = _MOST_STEPS

    def begin(self) -> None:
        """Another question."""
        self._left = _MOST_STEPS

    def spend(self, steps: int) -> None:
        """Count steps; raises LimitExceededError for a question that takes too many."""
        self._left -= steps
        if self._left < 0:
            raise LimitExceededError(
                f"to tell which values are left that differ from earlier ones takes more than {_MOST_STEPS} steps"
            )
