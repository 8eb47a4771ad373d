"""The shortest way to finish: Dijkstra's algorithm over a machine with calls.

Within one rule the nodes are (state, register); a call is an edge whose length is the shortest text of the called rule
with the label that the edge stands for. Shortest texts of rules are found on demand in the same queue, as in Knuth's
generalisation of Dijkstra's algorithm to grammars (Information Processing Letters 6, 1977).

Counts are not walked through one by one. Between two values that some guard names, a register behaves alike: a way that
comes by the same state twice there may go round as often as it takes, and leaves only the last `_NEAR` values to the
search. So a text of a billion characters is found in a few hundred steps, and is a `Text` that says what is repeated.
"""

from __future__ import annotations

import bisect
import dataclasses
import heapq
import itertools
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from grammar_workers.artifacts.artifact import ArtifactError
from grammar_workers.errors import LimitExceededError
from grammar_workers.matching.kernels.step import (
    ACCEPT,
    ACTION,
    ADVICE,
    ASSIGN,
    CALL,
    ENTER_AT_ZERO,
    ENTER_DEEPER,
    ENTRY_MODE,
    EXIT,
    GOTO,
    HALF,
    INCREMENT,
    KEEP,
    LIT,
    MOVE,
    OP,
    OTHERWISE,
    RETURN,
    ROW,
    SET_BIT,
    SITE_BASE,
    STAY,
    TARGET,
    passes,
)
from grammar_workers.pushdown.automaton import Machine
from grammar_workers.pushdown.repeated_text import Repeated, Text
from grammar_workers.types import TokenId

_Start = tuple[int, int]
"""A rule instance: (entry state, entry register)."""
_Node = tuple[int, int, int]
"""(state, register, depth): depth counts the frames of the real stack that were left, 0 inside called rules; the state
-1 - label stands for a return with this label."""
_NEAR = 32
"""Values of a register before one that some guard names which are walked through one by one."""
_MOST_STEPS = 100_000
"""Nodes of one search: about a second."""
_MOST_LINKS = 4096
_NOWHERE: _Node = (-1, -1, -1)


@dataclasses.dataclass(frozen=True, slots=True)
class _Trail:
    """A text as a linked list, last part first; `length` is that of all of it. Where a register that may be skipped
    ahead has just been counted up, `mark` is (state, register, depth).
    """

    before: _Trail | None
    part: bytes | TokenId | Repeated | Text
    length: int
    mark: _Node | None = None


def shortest_text(
    machine: Machine,
    frames: NDArray[np.int64],
    configuration: tuple[int, int, int],
    spellable: frozenset[str] | None,
) -> Text:
    """A shortest text that leads from `configuration` to a place where the whole may stop.

    Where counts are large, what is repeated is the shortest that was met, not the shortest there is. Raises
    LimitExceededError when the search takes too long, and ArtifactError when there is no such text: then these are not
    the tables that a compiler made.
    """
    state, register, frame = configuration
    return _Search(machine, frames, register, frame, spellable).run(state, register)


class _Search:
    """One run. A fact (start, node, trail) says: `node` is reached from `start` by the text of the trail."""

    def __init__(
        self,
        machine: Machine,
        frames: NDArray[np.int64],
        register: int,
        frame: int,
        spellable: frozenset[str] | None,
    ) -> None:
        self._machine = machine
        self._stack: list[tuple[int, int]] = []
        while frame:
            parent, site, saved = frames[frame, :3].tolist()
            self._stack.append((site, saved))
            frame = parent
        self._registers = [register, *(saved for _, saved in self._stack)]
        # Per depth: the labels with which that frame has been left.
        self._left: list[set[int]] = [set() for _ in self._stack]
        self._allowed = None if spellable is None else frozenset(b"".join(map(str.encode, spellable)))
        # (lower bound of the whole text, tie breaker, start, node, text). A called rule begins at its first caller's
        # length, so nothing is explored that could not be part of a shortest text.
        self._queue: list[tuple[int, int, _Start | None, _Node, _Trail | None]] = []
        self._base: dict[_Start | None, int] = {None: 0}
        self._order = itertools.count()
        self._settled: set[tuple[_Start | None, _Node]] = set()
        # start -> label -> text; start -> callers waiting for it.
        self._finished: dict[_Start, dict[int, Text]] = {}
        self._waiting: dict[_Start, list[tuple[_Start | None, _Node, int, _Trail | None]]] = {}
        self._moves: dict[tuple[int, int], list[tuple[int, int]]] = {}
        self._operations: dict[int, list[int]] = {}
        self._label_counts: dict[int, int] = {}
        self._thresholds = _thresholds(machine)
        self._token_edges: dict[int, list[tuple[TokenId, int]]] = {}
        for state, token, target in machine.token_edges.tolist():
            self._token_edges.setdefault(state, []).append((token, target))

    def run(self, state: int, register: int) -> Text:
        self._add(None, (state, register, 0), None)
        while self._queue:
            _, _, start, node, trail = heapq.heappop(self._queue)
            if (start, node) in self._settled or self._is_finished(start, node[2]):
                continue
            self._settled.add((start, node))
            if len(self._settled) > _MOST_STEPS:
                raise LimitExceededError(f"the shortest way to an end takes more than {_MOST_STEPS} steps to find")
            state, register, depth = node
            if state == ACCEPT:
                return _text(trail)
            if state < 0:
                self._leave(start, depth, -1 - state, trail)
                continue
            if self._operation(state)[MOVE] == CALL:
                self._call(start, node, trail)
                continue
            label = int(self._machine.states[state, EXIT])
            if label >= 0 and self._leave(start, depth, label, trail):
                return _text(trail)
            for byte, target in self._bytes(state):
                self._arrive(start, target, register, depth, _Trail(trail, _BYTES[byte], _length(trail) + 1))
            for token, target in self._token_edges.get(state, ()):
                self._arrive(start, target, register, depth, _Trail(trail, token, _length(trail) + 1))
        raise ArtifactError("a state without a way to an end")

    def _is_finished(self, start: _Start | None, depth: int) -> bool:
        """Whether the shortest texts of a rule, or to the end of a frame, are known for every label of use."""
        if start is not None:
            return len(self._finished[start]) >= self._machine.label_counts[start[0]]
        return depth < len(self._stack) and len(self._left[depth]) >= self._labels_at(self._stack[depth][0])

    def _labels_at(self, site: int) -> int:
        """With how many labels a rule may return there."""
        known = self._label_counts.get(site)
        if known is None:
            sites = self._machine.returns[site : self._machine.site_ends[site]]
            known = self._label_counts[site] = int((sites >= 0).sum())
        return known

    def _add(self, start: _Start | None, node: _Node, trail: _Trail | None) -> None:
        if (start, node) not in self._settled:
            bound = self._base[start] + _length(trail)
            heapq.heappush(self._queue, (bound, next(self._order), start, node, trail))

    def _arrive(
        self,
        start: _Start | None,
        state: int,
        register: int,
        depth: int,
        trail: _Trail | None,
        *,
        left: bool = False,
    ) -> None:
        """Follow the ops on entering `state`, as `kernels.arrive` does. `left`: a frame of the real stack was left."""
        while True:
            first, last, action, value, move, target, *_ = self._operation(state)
            if last > first:
                guards = self._machine.guards[first:last]
                begun = start is None and register == self._registers[depth]
                # A name that has begun must be brought to an end, advisable or not.
                if not (left and guards[0, 0] == ADVICE) and not _passes(guards, register, begun=begun):
                    if move != OTHERWISE:
                        return
                    state = target
                    continue
            if action == INCREMENT and register < value:
                register, trail = self._count(state, register + 1, depth, trail)
            elif action == ASSIGN:
                # What counted up before is no round that could be repeated.
                register, trail = value, _Trail(trail, b"", _length(trail), _NOWHERE)
            elif action == SET_BIT:
                register |= 1 << value
            if move in (STAY, OTHERWISE, CALL):
                # A call is made when its turn comes: what it adds may be long, and another way here shorter.
                self._add(start, (state, register, depth), trail)
                return
            if move == RETURN:
                self._add(start, (-1 - target, 0, depth), trail)
                return
            assert move == GOTO
            state = target

    def _count(self, state: int, register: int, depth: int, trail: _Trail | None) -> tuple[int, _Trail | None]:
        """The register and the text after counting up to `register` on entering `state`: a way that has come by here
        before, and that no guard tells apart from going round once more, goes round until the next guard is near.
        """
        following = bisect.bisect_right(self._thresholds, register)
        end = self._thresholds[following] if following < len(self._thresholds) else register
        if end - register <= _NEAR:
            return register, trail
        least = max(self._thresholds[following - 1], register - _NEAR)
        rounds = [
            link for link in _marked(trail, least) if link.mark and (link.mark[0], link.mark[2]) == (state, depth)
        ]
        if not rounds:
            return register, _Trail(trail, b"", _length(trail), (state, register, depth))

        def bytes_per_count(link: _Trail) -> float:
            return (_length(trail) - link.length) / _counted(register, link)

        begun = min(rounds, key=bytes_per_count)
        period = _counted(register, begun)
        count = (end - _NEAR - register) // period
        if count <= 0:
            return register, trail
        once = _text(trail, begun)
        return register + count * period, _Trail(trail, Repeated(once, count), _length(trail) + count * once.length)

    def _operation(self, state: int) -> list[int]:
        """What entering a state does: a row of `Machine.ops`."""
        known = self._operations.get(state)
        if known is None:
            known = self._operations[state] = self._machine.ops[self._machine.states[state, OP]].tolist()
        return known

    def _call(self, start: _Start | None, node: _Node, trail: _Trail | None) -> None:
        operation = self._operation(node[0])
        site = operation[SITE_BASE]
        called = operation[TARGET], _entered(node[1], operation[ENTRY_MODE])
        if called not in self._finished:
            self._finished[called] = {}
            self._base[called] = self._base[start] + _length(trail)
            self._waiting[called] = []
            self._arrive(called, called[0], called[1], 0, None)
        self._waiting[called].append((start, node, site, trail))
        for label, text in list(self._finished[called].items()):
            self._resume(start, node, site, label, text, trail)

    def _resume(
        self, start: _Start | None, node: _Node, site: int, label: int, text: Text, trail: _Trail | None
    ) -> None:
        """Go on behind a call, whose rule has read `text` and returned with `label`."""
        state = int(self._machine.returns[site + label])
        if state >= 0:
            self._arrive(start, state, node[1], node[2], _Trail(trail, text, _length(trail) + text.length))

    def _leave(self, start: _Start | None, depth: int, label: int, trail: _Trail | None) -> bool:
        """Return from a rule; True when it was the outermost one, so that the text may stop here."""
        if start is None:
            if depth == len(self._stack):
                self._add(None, (ACCEPT, 0, depth), trail)
                return True
            site, saved = self._stack[depth]
            state = int(self._machine.returns[site + label])
            if state >= 0 and label not in self._left[depth]:
                self._left[depth].add(label)
                self._arrive(None, state, saved, depth + 1, trail, left=True)
            return False
        if label not in self._finished[start]:
            text = self._finished[start][label] = _text(trail)
            for caller, node, site, prefix in list(self._waiting[start]):
                self._resume(caller, node, site, label, text, prefix)
        return False

    def _bytes(self, state: int) -> list[tuple[int, int]]:
        """(byte, target) with one byte per distinct target, ordinary characters preferred.

        A call that can only lead where a single byte leads, too, is no way to something shorter.
        """
        lit, row = int(self._machine.states[state, LIT]), int(self._machine.states[state, ROW])
        known = self._moves.get((lit if lit < 0 else state, row))
        if known is None:
            targets: dict[int, int] = {}
            if lit >= 0 and self._may_spell(lit):
                targets[state + 1] = lit
            if row >= 0:
                dense = self._machine.table[row]
                for byte in _PREFERENCE[dense[_PREFERENCE] >= 0].tolist():
                    if byte != lit and self._may_spell(byte):
                        targets.setdefault(int(dense[byte]), byte)
            known = [(byte, target) for target, byte in targets.items() if not self._only_returns_to(target, targets)]
            self._moves[lit if lit < 0 else state, row] = known
        return known

    def _only_returns_to(self, state: int, targets: dict[int, int]) -> bool:
        """Whether `state` does nothing but call a rule that returns to some of `targets`."""
        operation = self._operation(state)
        if operation[MOVE] != CALL or operation[ACTION] != KEEP:
            return False
        site = operation[SITE_BASE]
        sites = self._machine.returns[site : self._machine.site_ends[site]].tolist()
        return all(back < 0 or back in targets for back in sites)

    def _may_spell(self, byte: int) -> bool:
        return self._allowed is None or byte in self._allowed


def _thresholds(machine: Machine) -> list[int]:
    """The values of registers, sorted, below which some guard or some count behaves differently than from there on."""
    found = {0}
    for start, end, action, value, *_ in machine.ops.tolist():
        if action in (INCREMENT, ASSIGN):
            found.add(value)
        if end > start and machine.guards[start, 0] >= 0:
            bounds = machine.guards[start:end]
            found.update(bounds[:, 0].tolist())
            found.update((bounds[:, 1].astype(np.int64) + 1).tolist())
    return sorted(found)


def _passes(guards: NDArray[np.int32], register: int, *, begun: bool) -> bool:
    """As `kernels.passes`, but heeding advice. `begun`: nothing has been read since the register last changed, so that
    a comma may have been read before, after which a name must come even if nothing is missing.
    """
    if guards[0, 0] != ADVICE:
        return bool(passes(guards, 0, len(guards), register))
    rows = guards[1:] if begun else guards[1 : 1 + guards[0, 1]]
    masks = rows[:, 0].astype(np.int64) | rows[:, 1].astype(np.int64) << HALF
    return bool(((register & masks) == masks).any())


def _entered(register: int, mode: int) -> int:
    if mode == ENTER_AT_ZERO:
        return 0
    return register + 1 if mode == ENTER_DEEPER else register


def _preference() -> Iterator[int]:
    yield from b'"}]0123456789aeiostnrbcdfghjklmpquvwxyz'
    yield from range(256)


_PREFERENCE = np.array(list(dict.fromkeys(_preference())), np.int64)
_BYTES = [bytes([byte]) for byte in range(256)]


def _length(trail: _Trail | None) -> int:
    return 0 if trail is None else trail.length


def _counted(register: int, link: _Trail) -> int:
    """How far the register has been counted up since a marked link."""
    assert link.mark is not None
    return register - link.mark[1]


def _marked(trail: _Trail | None, least: int) -> Iterator[_Trail]:
    """The links with marks, last first, as far as they hold registers from `least` on."""
    for _ in range(_MOST_LINKS):
        if trail is None:
            return
        if trail.mark is not None:
            if trail.mark[1] < least:
                return
            yield trail
        trail = trail.before


def _text(trail: _Trail | None, begin: _Trail | None = None) -> Text:
    """The text of a trail, or what of it comes after the link `begin`."""
    length = _length(trail) - _length(begin)
    parts: list[bytes | TokenId | Repeated] = []
    while trail is not begin:
        assert trail is not None
        if isinstance(trail.part, Text):
            parts += reversed(trail.part.parts)
        else:
            parts.append(trail.part)
        trail = trail.before
    merged: list[bytes | TokenId | Repeated] = []
    for is_bytes, group in itertools.groupby(reversed(parts), lambda part: isinstance(part, bytes)):
        if is_bytes:
            merged.append(b"".join(part for part in group if isinstance(part, bytes)))
        else:
            merged += group
    return Text(length, tuple(merged))
