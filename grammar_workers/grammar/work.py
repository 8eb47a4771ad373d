"""The step budget of reading one grammar, and of visiting one state of what it became."""

from __future__ import annotations

from grammar_workers.errors import LimitExceededError
from grammar_workers.options import Limits


class Work:
    """Counts elementary steps against `Limits.max_steps`."""

    def __init__(self, limits: Limits, what: str = "compiling the grammar") -> None:
        self.limits = limits
        self.steps = 0
        self._what = what

    def spend(self, steps: int) -> None:
        """Count steps; raises LimitExceededError."""
        self.steps += steps
        if self.steps > self.limits.max_steps:
            raise LimitExceededError(f"{self._what} takes more than {self.limits.max_steps} steps (limit max_steps)")
