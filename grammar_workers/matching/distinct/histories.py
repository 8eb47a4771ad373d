"""The seen values of open containers (arrays and objects) whose parts must be unique. A configuration contains them.

A *part* is an item or a property name. A *history* is a linked list of levels, innermost container first; None is the
empty history. A *level* is the state of one open container: the set of seen values, and the read bytes of the part in
progress. The depth of a stack frame identifies the level: the frame of the rule that reads the container. Outer levels
read the bytes of inner containers, too.

A history is *settled* if no seen value restricts how the parts in progress may continue.
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
    """The state of one open container (array or object) whose parts must be unique.

    Attributes:
        outer: Level of the next such container around this one; None for the outermost.
        depth: FRAME_DEPTH (number of frames below) of the rule that reads the container.
        earlier: Number of the set of seen values, see `EarlierValues`.
        position: The part of the item or property name in progress that has been read, as (kind, text, pending,
            container), see `values`. Between two items or properties, the kind is above DONE.
        endless: True if another unseen value always exists (DISTINCT_ENDLESS).
    """

    outer: Level | None
    depth: int
    earlier: SetId
    position: Position
    endless: bool


History: TypeAlias = Level | None

# Kinds of positions outside of the parts that must be unique: after such a part; in a string there; in an escape of
# that string; after a comma, where another part must follow (all its values may be used up, unless it is endless). A
# part that is exempt, such as a declared name, begins without a call and is outside, too.
_IDLE, _IDLE_IN_STRING, _IDLE_IN_ESCAPE, _OWES = range(DONE + 1, DONE + 5)
_BEHIND: Position = (_IDLE, b"", b"", 0)
_WHITE_SPACE = frozenset(b" \t\n\r")
_MOST_LEVELS = 128
# Number of bytes that are copied in the time of one budget step.
_STEP_BYTES = 1024


class Histories:
    """The operations on the histories of one automaton: reading of bytes, and calls and returns of rules.

    A history is the linked list of the open containers whose parts must be unique, see the module. Histories are
    immutable.

    Args:
        budget: Counts the steps of work. A method that exhausts it raises LimitExceededError.

    Attributes:
        values: Numbering of the values that have been read.
        is_settled: Function (history) -> bool, cached. True if no seen value restricts how the parts in progress may
            continue. True for None.
    """

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self.values = Values()
        self._earlier = EarlierValues(self.values, budget)
        self.is_settled = functools.lru_cache(maxsize=4096)(self._is_settled)

    @property
    def nbytes(self) -> int:
        """Approximate memory of the seen values and of their sets, in bytes."""
        return self.values.nbytes + self._earlier.nbytes

    def called(self, history: History, depth: int, *, name: bool, endless: bool) -> History:
        """Return the history after an item or property name (a part) of a container has begun.

        The automaton has called the rule that reads the part. The first part of a container adds a level (the state of
        this container) to the history.

        Args:
            history: History (list of the open containers whose parts must be unique) before the call.
            depth: FRAME_DEPTH (number of stack frames below) of the rule that reads the container.
            name: True if the part is a property name.
            endless: True if another unseen value always exists (DISTINCT_ENDLESS).

        Raises:
            LimitExceededError: More than 128 containers with unique parts are nested.
        """
        history = self.left(history, depth + 1)
        position = AT_NAME if name else AT_VALUE
        if history and history.depth == depth:
            return history._replace(position=position, endless=endless)
        if sum(1 for _ in levels_of(history)) >= _MOST_LEVELS:
            raise LimitExceededError(f"arrays and objects whose parts must differ nest more than {_MOST_LEVELS} deep")
        return Level(history, depth, EMPTY, position, endless)

    def left(self, history: History, depth: int) -> History:
        """Return the history without the containers whose rules have returned.

        Args:
            history: History (list of the open containers whose parts must be unique) before the returns.
            depth: FRAME_DEPTH (number of stack frames below) of the outermost rule that has returned. All rules at this
                depth and deeper have returned.
        """
        while history and history.depth >= depth:
            history = history.outer
        return history

    def returned(self, level: Level, *, counts: bool) -> Level | None:
        """Return the state of the innermost open container after an item or property name (a part) has ended.

        Args:
            level: State of the container before the part ends; not changed.
            counts: False if the part need not be unique. Its value is then not added to the seen values.

        Returns:
            The new state. `level` itself if no part was in progress. None if the part repeats a seen value.
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
        """Return the history after a byte.

        Args:
            history: History (list of the open containers whose parts must be unique) before the byte.
            byte: The byte, 0 to 255.
            depth: FRAME_DEPTH (number of stack frames below) of the rule that has read the byte.
        """
        levels = list(levels_of(history))
        history, steps = None, 0
        for level in reversed(levels):
            _, at, earlier, position, endless = level
            steps += 1 + len(position[1]) // _STEP_BYTES
            if position[0] <= DONE:
                moved = self.values.read(position, byte)
            else:
                moved = _moved_outside(position, byte, own=at == depth)
            # Reuse the level if nothing has changed (an outer part is exempt): identical objects compare faster.
            if moved is not position or history is not level.outer:
                level = Level(history, at, earlier, moved, endless)
            history = level
        self._budget.spend(steps)
        return history

    def read_text(self, history: History, text: bytes) -> History:
        """Return the history after several bytes inside a string.

        Args:
            history: History (list of the open containers whose parts must be unique) before the bytes.
            text: The bytes, without quotes and backslashes.

        Returns:
            The new history. None if a level (open container) is not inside a string, or is inside an escape. The caller
            must then call `read` for each byte.
        """
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
        """Return whether no seen value restricts how the parts in progress may continue."""
        return all(map(self._is_free, levels_of(history)))

    def _is_free(self, level: Level) -> bool:
        position = level.position
        if position[0] > DONE:
            return position[0] != _OWES or level.endless
        return not self._earlier.may_repeat(level.earlier, position)

    def is_ended_well(self, before: History, after: History) -> bool:
        """Return whether the output can certainly be completed after a byte. False: it is not certain.

        A history is settled if no seen value restricts how the parts (items and property names) in progress may
        continue. The result is True if the new history is settled. It is also True if the byte ends a part of the
        innermost container, and the outer containers are settled: if the innermost container needs another part, an
        unseen value exists, because the compiler has verified this.

        Args:
            before: History (list of the open containers whose parts must be unique) before the byte.
            after: History after the byte.
        """
        if before and after and before.position[0] <= DONE < after.position[0] and before.depth == after.depth:
            return self.is_settled(after.outer)
        return self.is_settled(after)

    def decisive(self, history: History) -> Hashable:
        """Return a cache key: outputs with equal keys can either all be completed or none of them can.

        If the outer containers are settled (their seen values restrict nothing), the key has two members: the part of
        the item or property name in progress that has been read, and the seen values that it may equal in the end.
        Other seen values do not matter, so cached results stay valid when a value is added. In other cases, the key is
        the history itself.

        Args:
            history: List of the open containers whose parts must be unique. None (no container) has the key None.
        """
        if history is None or not BEGIN < history.position[0] < DONE or not self.is_settled(history.outer):
            return history
        likely = self._earlier.likely(history.earlier, history.position)
        return history if likely is None else (history.position, likely)

    def may_begin(self, history: History) -> bool:
        """Return whether the next byte may begin an item or property name that must differ from seen values.

        Args:
            history: The open containers. Only the innermost one is examined. False for None.
        """
        return history is not None and history.position[0] == _OWES and history.earlier != EMPTY

    def in_string(self, history: History) -> bool:
        """Return whether the output so far ends inside a JSON string.

        Args:
            history: The open containers after the last byte. Only the innermost one is examined. False for None.
        """
        return history is not None and history.position[0] in (STRING, NAME, _IDLE_IN_STRING, _IDLE_IN_ESCAPE)

    def next_bytes(self, history: History) -> frozenset[int] | None:
        """Return the next bytes inside a string after which an item or property name may become equal to a seen value.

        Args:
            history: List of the open containers whose parts must be unique, after the last byte.

        Returns:
            The set of bytes, which may be empty. None: any byte may lead to a seen value.
        """
        found: frozenset[int] = frozenset()
        for _, _, earlier, position, _ in levels_of(history):
            if position[0] in (STRING, NAME):
                more = self._earlier.next_bytes(earlier, position)
                if more is None:
                    return None
                found |= more
        return found


def levels_of(history: History) -> Iterator[Level]:
    """Yield the levels of a history (states of open containers whose parts must be unique), innermost first."""
    while history is not None:
        yield history
        history = history.outer


def _moved_outside(position: Position, byte: int, *, own: bool) -> Position:
    """Return the position after a byte outside of the parts. `own`: the rule of the container itself has read it."""
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
