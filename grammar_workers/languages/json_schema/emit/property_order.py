"""Property orders as guards: what the counter of an object must be for a name to come, and what reading it changes."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Sequence
from typing import NamedTuple

from grammar_workers.pushdown.automaton import NEVER, UNBOUNDED, Guard, advice, all_set, some_clear


class Mark(NamedTuple):
    """The step of an object's counter when a name has been read: it must pass `guard`, then is set, or gets a bit."""

    guard: Guard = ()
    assign: int | None = None
    set_bit: int | None = None


NO_MARK = Mark()


@dataclasses.dataclass(frozen=True, slots=True)
class PropertyOrder:
    """`windows` and `marks` per declared name, the same for undeclared ones, and when the object may close."""

    windows: tuple[Guard, ...]
    marks: tuple[Mark, ...]
    undeclared: Guard = ()
    undeclared_mark: Mark = NO_MARK
    complete: Guard = ()


def order_by_nodes(usable: Sequence[bool], last: int, *, has_runs: bool) -> PropertyOrder:
    """The states keep the order, up to the names that may follow only some positions of a run.

    With `has_runs`, the counter is the position among the declared names, in this state `last` at most.
    """
    many = len(usable)
    windows: list[Guard] = [
        (() if index >= last else ((0, index),)) if flag else NEVER for index, flag in enumerate(usable)
    ]
    if not has_runs:
        return PropertyOrder(tuple(windows), (NO_MARK,) * many)
    return PropertyOrder(tuple(windows), _position_marks(many), undeclared_mark=Mark(assign=many))


@functools.lru_cache(maxsize=64)
def _position_marks(many: int) -> tuple[Mark, ...]:
    """The counter becomes the position after the name that has been read."""
    return tuple(Mark(assign=index + 1) for index in range(many))


def declared_order(usable: Sequence[bool], required: Collection[int]) -> PropertyOrder:
    """The counter is the position among the declared names: those before it may not come any more.

    Name i may come while the counter is between the last required name before it, exclusive, and i.
    """
    windows: list[Guard] = []
    first = 0
    for index, flag in enumerate(usable):
        windows.append(((first, index),) if flag else NEVER)
        if index in required:
            first = index + 1
    complete: Guard = ((first, UNBOUNDED),) if first else ()
    return PropertyOrder(
        tuple(windows),
        _position_marks(len(usable)),
        complete,
        Mark(complete, assign=len(usable) or None),
        complete,
    )


def any_order(
    usable: Sequence[bool], endings: Sequence[Collection[int]], advised: Collection[int] = ()
) -> PropertyOrder:
    """The counter has a bit per declared name that has been read. One of `endings` must have been read at the end.

    The shortest way to finish reads what is missing of an ending, first names first, and perhaps some of `advised`:
    other names, or other orders, would only multiply what a search has to try.
    """

    def mark(index: int) -> Mark:
        before = [[name for name in names if name < index] for names in endings if index in names]
        return Mark(advice([[]] if index in advised else before, endings), set_bit=index)

    return PropertyOrder(
        tuple(some_clear([index]) if flag else NEVER for index, flag in enumerate(usable)),
        tuple(map(mark, range(len(usable)))),
        complete=() if not all(endings) else all_set(endings),
    )
