"""What a configuration remembers of the containers whose parts must differ from each other.

A *history* is the open ones among them, innermost first: linked levels, None for none. A level belongs to the rule that
reads the container, known by the depth of its frame, and has the values of earlier parts and the position in the part
that is being read, if any. Outer levels go on to read while an inner container is read.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Iterator
from typing import NamedTuple, TypeAlias

from grammar_workers.budget import Budget
from grammar_workers.errors import LimitExceededError
from grammar_workers.matching.distinct.earlier import EMPTY, EarlierValues, SetId
from grammar_workers.matching.distinct.values import AT_NAME, AT_VALUE, BEGIN, DONE, NAME, STRING, Position, Values


class Level(NamedTuple):
    """One container: the levels around it, the depth, the number of the set of earlier values, the position, and
    whether there are always more values (`DISTINCT_ENDLESS`).
    """

    outer: Level | None
    depth: int
    earlier: SetId
    position: Position
    endless: bool


History: TypeAlias = Level | None

_IDLE, _IDLE_IN_STRING, _IDLE_IN_ESCAPE, _OWES = range(DONE + 1, DONE + 5)
"""Kinds of positions outside of the parts that must differ: behind one, in a string there, and behind a comma, where
another part must follow; unless they are endless, it may have been used up. One that is exempt, such as a declared
name, begins without a call and is outside, too."""
_BEHIND: Position = (_IDLE, b"", b"", 0)
_WHITE_SPACE = frozenset(b" \t\n\r")
_MOST_LEVELS = 128
_STEP_BYTES = 1024
"""So much text is copied in the time of a step."""


class Histories:
    """The histories of one automaton: what bytes, calls and returns do to them."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self.values = Values()
        self._earlier = EarlierValues(self.values, budget)
        self.is_settled = functools.lru_cache(maxsize=4096)(self._is_settled)

    @property
    def nbytes(self) -> int:
        return self.values.nbytes + self._earlier.nbytes

    def called(self, history: History, depth: int, *, name: bool, endless: bool) -> History:
        """The history where a part begins in the container at this depth."""
        history = self.left(history, depth + 1)
        position = AT_NAME if name else AT_VALUE
        if history and history.depth == depth:
            return history._replace(position=position, endless=endless)
        if sum(1 for _ in levels_of(history)) >= _MOST_LEVELS:
            raise LimitExceededError(f"arrays and objects whose parts must differ nest more than {_MOST_LEVELS} deep")
        return Level(history, depth, EMPTY, position, endless)

    def left(self, history: History, depth: int) -> History:
        """The history once the rules at this depth and deeper have returned."""
        while history and history.depth >= depth:
            history = history.outer
        return history

    def returned(self, level: Level, *, counts: bool) -> Level | None:
        """The innermost level where a part of its container ends; None where an earlier one was equal.

        Without `counts`, it need not differ from any.
        """
        if level.position[0] > DONE:
            return level
        outer, depth, earlier, position, endless = level
        if counts:
            larger = self._earlier.with_one_more(earlier, self.values.finish(position))
            if larger is None:
                return None
            earlier = larger
        return Level(outer, depth, earlier, _BEHIND, endless)

    def read(self, history: History, byte: int, depth: int) -> History:
        """The history after a byte, which a rule at this depth has read."""
        levels = list(levels_of(history))
        history, steps = None, 0
        for level in reversed(levels):
            _, at, earlier, position, endless = level
            steps += 1 + len(position[1]) // _STEP_BYTES
            if position[0] <= DONE:
                moved = self.values.read(position, byte)
            else:
                moved = _moved_outside(position, byte, own=at == depth)
            # Nothing has moved where an outer part is exempt, and equal objects are compared faster if they are one.
            if moved is not position or history is not level.outer:
                level = Level(history, at, earlier, moved, endless)
            history = level
        self._budget.spend(steps)
        return history

    def read_text(self, history: History, text: bytes) -> History:
        """The history after a piece of a string without quotes and escapes; None where a level is not within one."""
        levels = list(levels_of(history))
        history, steps = None, 0
        for _, at, earlier, (kind, before, pending, container), endless in reversed(levels):
            steps += 1 + len(before) // _STEP_BYTES
            if kind in (STRING, NAME) and not pending:
                before += text
            elif kind != _IDLE_IN_STRING:
                return None
            history = Level(history, at, earlier, (kind, before, b"", container), endless)
        self._budget.spend(steps)
        return history

    # -- what is known -----------------------------------------------------------------------------------------------

    def _is_settled(self, history: History) -> bool:
        """Whether no earlier value has any say in how the parts in progress may end."""
        return all(map(self._is_free, levels_of(history)))

    def _is_free(self, level: Level) -> bool:
        position = level.position
        if position[0] > DONE:
            return position[0] != _OWES or level.endless
        return not self._earlier.may_repeat(level.earlier, position)

    def is_ended_well(self, before: History, after: History) -> bool:
        """Return whether a byte leads to where no earlier value decides how the text may end.

        This holds, too, if the byte ends a part of the innermost container and no container around it is compared any
        more: that container may end, or another part must follow, and the compiler has shown that one is left.
        """
        if before and after and before.position[0] <= DONE < after.position[0] and before.depth == after.depth:
            return self.is_settled(after.outer)
        return self.is_settled(after)

    def decisive(self, history: History) -> Hashable:
        """Return what decides whether a text can end after this history.

        Where no container around the innermost one is compared any more, these are the earlier values that may come
        out of the part in progress. Other values do not count, so what is known stays known when one is added.
        """
        if history is None or not BEGIN < history.position[0] < DONE or not self.is_settled(history.outer):
            return history
        likely = self._earlier.likely(history.earlier, history.position)
        return history if likely is None else (history.position, likely)

    def may_begin(self, history: History) -> bool:
        """Whether a part that must differ from earlier ones may begin with the next byte."""
        return history is not None and history.position[0] == _OWES and history.earlier != EMPTY

    def in_string(self, history: History) -> bool:
        """Whether the last byte was inside of a string, as far as a level knows."""
        return history is not None and history.position[0] in (STRING, NAME, _IDLE_IN_STRING, _IDLE_IN_ESCAPE)

    def next_bytes(self, history: History) -> frozenset[int] | None:
        """Inside of a string: the bytes after which an earlier value may still have a say; None for any."""
        found: frozenset[int] = frozenset()
        for _, _, earlier, position, _ in levels_of(history):
            if position[0] in (STRING, NAME):
                more = self._earlier.next_bytes(earlier, position)
                if more is None:
                    return None
                found |= more
        return found


def levels_of(history: History) -> Iterator[Level]:
    """The levels of a history, innermost first."""
    while history is not None:
        yield history
        history = history.outer


def _moved_outside(position: Position, byte: int, *, own: bool) -> Position:
    """The position outside of the parts that must differ, after a byte. `own`: whether the rule of the container itself
    has read it."""
    kind = position[0]
    if kind == _IDLE_IN_ESCAPE:
        kind = _IDLE_IN_STRING
    elif kind == _OWES:
        if byte not in _WHITE_SPACE:
            kind = _IDLE_IN_STRING if byte == ord('"') else _IDLE
    elif byte == ord('"'):
        kind = _IDLE if kind == _IDLE_IN_STRING else _IDLE_IN_STRING
    elif byte == ord("\\") and kind == _IDLE_IN_STRING:
        kind = _IDLE_IN_ESCAPE
    elif byte == ord(",") and own and kind == _IDLE:
        kind = _OWES
    return position if kind == position[0] else (kind, b"", b"", 0)
