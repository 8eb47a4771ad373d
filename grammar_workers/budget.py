"""The work of one compilation, counted against `Limits`: in steps, not seconds, so that the answer is always the same.

A step is half a microsecond's work or less, so that a refusal comes within two seconds. Steps are estimates: where one
falls short, the clock of a compile process ends it (`cpu_s` of `service.pool`). One budget is shared by all that works
for a compilation: it is that of the thread it runs in.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

from grammar_workers.errors import LimitExceededError
from grammar_workers.options import Limits

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


class Budget:
    """Steps spent so far, at most `most` (None: `limits.max_steps`); `what` takes them, for messages.

    `seconds`: CPU seconds by place, without places inside; `inside`: those of the places inside the open one.
    """

    def __init__(self, limits: Limits, most: int | None = None, what: str = "compiling") -> None:
        self.limits = limits
        self.steps = 0
        self.seconds: dict[str, float] = {}
        self.inside = 0.0
        self._most = limits.max_steps if most is None else most
        self._what = what

    @property
    def left(self) -> int:
        """The steps that may still be taken."""
        return self._most - self.steps

    def spend(self, steps: int) -> None:
        """Count steps; raises LimitExceededError."""
        self.steps += steps
        if self.steps > self._most:
            most = self.limits.max_steps if self._what == "compiling" else self._most
            raise LimitExceededError(f"{self._what} takes more than {most} steps (fixed limit max_steps)")

    def check_states(self, many: int) -> None:
        """Raise LimitExceededError when the automaton of a pattern has more states than it may."""
        if many >= self.limits.max_regex_states:
            raise LimitExceededError(
                f"patterns need more than {self.limits.max_regex_states} states (fixed limit max_regex_states); use "
                "smaller counts, `maxLength` for the length of a string, or an `enum` for fixed strings"
            )

    def check_written_out(self, many: float) -> None:
        """Raise LimitExceededError when a pattern has more characters than it may, its counts written out."""
        if many > (most := self.limits.max_pattern_characters):
            raise LimitExceededError(
                f"the pattern has more than {most} characters once its counts are written out "
                "(fixed limit max_regex_states)"
            )

    @contextlib.contextmanager
    def share(self, part: int) -> Iterator[None]:
        """What runs inside may take one `part`-th of what is left: if it fails, something else can be tried."""
        inner = Budget(self.limits, self.left // part, self._what)
        inner.seconds = self.seconds
        try:
            with running(inner):
                yield
        finally:
            self.steps += inner.steps
            self.inside += inner.inside


class _Running(threading.local):
    budget: Budget | None = None


_RUNNING = _Running()


@contextlib.contextmanager
def running(budget: Budget) -> Iterator[None]:
    """Let `budget` be that of everything that this thread does inside."""
    before, _RUNNING.budget = _RUNNING.budget, budget
    try:
        yield
    finally:
        _RUNNING.budget = before


def budget_of(limits: Limits) -> Budget:
    """The budget of the compilation that runs in this thread; a fresh one outside of any."""
    return Budget(limits) if _RUNNING.budget is None else _RUNNING.budget


def remembered(maxsize: int) -> Callable[[Callable[_Arguments, _Result]], Callable[_Arguments, _Result]]:
    """A cache like `functools.lru_cache` that counts the steps of a result each time it is asked for.

    So it does not depend on what was compiled before whether a specification is refused.
    """

    def decorate(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
        @functools.lru_cache(maxsize=maxsize)
        def priced(*arguments: _Arguments.args, **named: _Arguments.kwargs) -> tuple[_Result, int]:
            outer = _RUNNING.budget
            own = Budget(Limits()) if outer is None else Budget(outer.limits, outer.left)
            with running(own):
                return function(*arguments, **named), own.steps

        @functools.wraps(function)
        def charged(*arguments: _Arguments.args, **named: _Arguments.kwargs) -> _Result:
            result, steps = priced(*arguments, **named)  # type: ignore[arg-type]
            if _RUNNING.budget is not None:
                _RUNNING.budget.spend(steps)
            return result

        return charged

    return decorate


@contextlib.contextmanager
def limits_at(pointer: str | None = None, position: int | None = None, place: str = "") -> Iterator[None]:
    """Give a limit that is exceeded inside a pointer and a position, as far as it has none, and count the time.

    Args:
        pointer: JSON Pointer of what is compiled inside.
        position: Character offset of the part of a pattern or of the rule that is compiled inside.
        place: The position for a person, ` (line 3, column 5)`, which the message ends with.
    """
    budget = _RUNNING.budget or Budget(Limits())
    begun, around, budget.inside = time.thread_time(), budget.inside, 0.0
    try:
        yield
    except LimitExceededError as error:
        if error.pointer is None and error.position is None:
            error.position = position
            error.message += place
        error.pointer = pointer if error.pointer is None else error.pointer
        raise
    finally:
        spent = time.thread_time() - begun
        if (where := place.strip(" ()") or pointer) is not None:
            budget.seconds[where] = budget.seconds.get(where, 0.0) + spent - budget.inside
            budget.inside = spent
        budget.inside += around
