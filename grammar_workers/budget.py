"""Work budget of a compilation, counted in steps instead of seconds.

The number of steps does not depend on the machine. So a specification that needs too many steps is rejected on fast and
on slow machines alike. A step is at most half a microsecond of work, and a rejection comes within two seconds. The
numbers of steps are estimates. If an estimate is too low, the CPU limit of the compile process (`cpu_s` of
`service.pool`) ends the compilation. All code that works for a compilation uses one budget, which belongs to the thread
of the compilation.
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
    """Counter of the steps (units of work) that a compilation has used, with a maximum.

    Args:
        limits: Limits of the compilation.
        most: Maximum number of steps. None: `limits.max_steps`.
        what: Name of the work, for error messages.

    Attributes:
        limits: Limits of the compilation.
        steps: Number of steps used so far.
        seconds: CPU seconds by part of the specification. The key is a JSON Pointer, or line and column as text. The
            time of a part excludes the parts nested in it.
        inside: CPU seconds of the finished parts that are nested in the part that is compiled now.
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
        """Number of steps that may still be used. Negative if the maximum has been exceeded."""
        return self._most - self.steps

    def spend(self, steps: int) -> None:
        """Count steps of work.

        Args:
            steps: Number of steps, at least 0.

        Raises:
            LimitExceededError: More steps than allowed have been used.
        """
        self.steps += steps
        if self.steps > self._most:
            most = self.limits.max_steps if self._what == "compiling" else self._most
            raise LimitExceededError(f"{self._what} takes more than {most} steps (fixed limit max_steps)")

    def check_states(self, many: int) -> None:
        """Check that the automaton of a regular expression has fewer states than `Limits.max_regex_states`.

        Args:
            many: Number of states.

        Raises:
            LimitExceededError: The automaton has `max_regex_states` states or more.
        """
        if many >= self.limits.max_regex_states:
            raise LimitExceededError(
                f"patterns need more than {self.limits.max_regex_states} states (fixed limit max_regex_states); use "
                "smaller counts, `maxLength` for the length of a string, or an `enum` for fixed strings"
            )

    def check_written_out(self, many: float) -> None:
        """Check the length of a regular expression after its counts are expanded (`a{3}` to `aaa`).

        Args:
            many: Number of characters after the expansion. It may be infinite.

        Raises:
            LimitExceededError: The pattern has more characters than `max_pattern_characters`.
        """
        if many > (most := self.limits.max_pattern_characters):
            raise LimitExceededError(
                f"the pattern has more than {most} characters once its counts are written out "
                "(fixed limit max_regex_states)"
            )

    @contextlib.contextmanager
    def share(self, part: int) -> Iterator[None]:
        """Limit the block of this context manager to a fraction of the steps that are left.

        If the block exceeds this limit (LimitExceededError), the caller can use the other steps for an alternative. The
        steps of the block count as used.

        Args:
            part: Denominator of the fraction: with 2, the block may use half of the steps.
        """
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
    """Make `budget` the budget of this thread while the block of this context manager runs.

    The earlier budget of the thread applies again after the block.

    Args:
        budget: Counter and maximum of the steps (units of work) of a compilation.
    """
    before, _RUNNING.budget = _RUNNING.budget, budget
    try:
        yield
    finally:
        _RUNNING.budget = before


def budget_of(limits: Limits) -> Budget:
    """Return the budget (counter of steps) of the compilation that runs in this thread.

    Args:
        limits: Limits of the new budget that is returned if no compilation runs in this thread.
    """
    return Budget(limits) if _RUNNING.budget is None else _RUNNING.budget


def remembered(maxsize: int) -> Callable[[Callable[_Arguments, _Result]], Callable[_Arguments, _Result]]:
    """Return a decorator that caches return values of a function. Each use of a cached value counts its steps.

    The cache works like `functools.lru_cache`. At a cache hit, the steps (units of work) of the original computation
    are added to the thread's budget. So the rejection of a specification does not depend on earlier compilations. A
    decorated function raises LimitExceededError if the budget has too few steps left.

    Args:
        maxsize: Maximum number of cached values.
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


class limits_at:
    """Context manager that adds a location to a LimitExceededError of its block, and measures the block's CPU time.

    The CPU time is added to `Budget.seconds`. The key is `place` without parentheses, or else `pointer`. It is a class,
    because a generator would take twice as long, and a schema has hundreds of such blocks.

    Args:
        pointer: JSON Pointer of the part that the block compiles. It is added to an error without a pointer. None: the
            part has no pointer.
        position: Character offset of the part in a pattern or grammar text. It is added to an error with neither
            pointer nor position. None: no position.
        place: The position as text, such as ` (line 3, column 5)`. It is appended to the message of such an error.
            Empty: nothing is appended.
    """

    __slots__ = ("_around", "_begun", "_budget", "_place", "_pointer", "_position")

    def __init__(self, pointer: str | None = None, position: int | None = None, place: str = "") -> None:
        self._pointer, self._position, self._place = pointer, position, place

    def __enter__(self) -> None:
        self._budget = budget = _RUNNING.budget or Budget(Limits())
        self._around, budget.inside = budget.inside, 0.0
        self._begun = time.thread_time()

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        budget, spent = self._budget, time.thread_time() - self._begun
        if (where := self._place.strip(" ()") or self._pointer) is not None:
            budget.seconds[where] = budget.seconds.get(where, 0.0) + spent - budget.inside
            budget.inside = spent
        budget.inside += self._around
        if isinstance(error, LimitExceededError):
            if error.pointer is None and error.position is None:
                error.position = self._position
                error.message += self._place
            error.pointer = self._pointer if error.pointer is None else error.pointer
