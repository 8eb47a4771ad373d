"""Orders of properties: for each name, a condition on the counter of the object, and the change of the counter.

A *guard* is a condition on the counter; () always holds, and NEVER does not hold for any value.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Sequence
from typing import NamedTuple

from grammar_workers.pushdown.automaton import NEVER, UNBOUNDED, Guard, advice, all_set, some_clear


class Mark(NamedTuple):
    """Instruction for the counter of an object, executed after a property name has been read.

    Attributes:
        guard: Condition on the counter, under which reading may continue after the name; () always holds.
        assign: New value of the counter; None to leave it.
        set_bit: Index of the counter bit to set; None for no bit.
    """

    guard: Guard = ()
    assign: int | None = None
    set_bit: int | None = None


NO_MARK = Mark()


@dataclasses.dataclass(frozen=True, slots=True)
class PropertyOrder:
    """Guards and counter changes that enforce an order of the properties of an object.

    A guard is a condition on the counter; () always holds, and NEVER does not hold for any value.

    Attributes:
        windows: For each declared name, in declared order, the guard of reading it.
        marks: For each declared name, in declared order, the counter change after it.
        undeclared: Guard of reading an undeclared name.
        undeclared_mark: Counter change after an undeclared name.
        complete: Guard of closing the object.
    """

    windows: tuple[Guard, ...]
    marks: tuple[Mark, ...]
    undeclared: Guard = ()
    undeclared_mark: Mark = NO_MARK
    complete: Guard = ()


def order_by_nodes(usable: Sequence[bool], last: int, *, has_runs: bool) -> PropertyOrder:
    """Return the guards (conditions on the counter) and counter changes for one state of an object with several states.

    The states themselves enforce most of the order of properties. Each state stands for a range of positions. A
    position is the index of the next declared name.

    Args:
        usable: True for each declared name that may occur in this state, in declared order.
        last: Largest position of this state. Names with this index or a larger one need no guard.
        has_runs: True if some state of the object has several positions. The counter then holds the position. False:
            the counter is not used.
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
    """Return the actions that set the counter to the position after the name."""
    return tuple(Mark(assign=index + 1) for index in range(many))


def declared_order(usable: Sequence[bool], required: Collection[int]) -> PropertyOrder:
    """Return guards (conditions on the counter) that enforce the declared order in an object with one state.

    The counter is the position (index of the next declared name). Name i may follow if the position is at most i, and
    if the position is after the last required name before i.

    Args:
        usable: True for each declared name that may occur, in declared order.
        required: Indices of the required names.
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
    """Return guards (conditions on the counter) that allow names in any order, but each declared name at most once.

    The counter has one bit for each declared name, which is set when the name has been read. The guards in the returned
    `marks` never exclude an output. They only restrict the search for the shortest completion to few orders: the search
    reads the missing names of one set of `endings` in declared order, and possibly names of `advised`.

    Args:
        usable: True for each declared name that may occur, in declared order.
        endings: Sets of indices of declared names. The object may close if all names of one set have been read.
        advised: Indices of names outside `endings` that a completion may have to read.
    """

    def mark(index: int) -> Mark:
        before = [[name for name in names if name < index] for names in endings if index in names]
        return Mark(advice([[]] if index in advised else before, endings), set_bit=index)

    return PropertyOrder(
        tuple(some_clear([index]) if flag else NEVER for index, flag in enumerate(usable)),
        tuple(map(mark, range(len(usable)))),
        complete=() if not all(endings) else all_set(endings),
    )
