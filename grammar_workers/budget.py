"""Counts the work of one construction against `Limits`."""

from __future__ import annotations

from grammar_workers.errors import LimitExceededError
from grammar_workers.options import Limits


class Budget:
    """Steps of one construction, and states of the automata of one pattern or one combination of patterns."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._steps = 0

    @property
    def left(self) -> int:
        """The steps that may still be taken."""
        return self._limits.max_steps - self._steps

    def spend(self, steps: int) -> None:
        """Count steps, each about a microsecond's work; raises LimitExceededError."""
        self._steps += steps
        if self._steps > self._limits.max_steps:
            raise LimitExceededError(f"compiling takes more than {self._limits.max_steps} steps (limit max_steps)")

    def check_states(self, many: int) -> None:
        if many >= self._limits.max_regex_states:
            raise LimitExceededError(
                f"patterns need more than {self._limits.max_regex_states} states (limit max_regex_states)"
            )
