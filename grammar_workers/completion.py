"""The shortest way to finish: Dijkstra's algorithm over a machine with calls.

Within one rule the nodes are (state, register); a call is an edge whose length is the shortest text of the called rule
with the label that the edge stands for. Shortest texts of rules are found on demand in the same queue, as in Knuth's
generalisation of Dijkstra's algorithm to grammars (Information Processing Letters 6, 1977).
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from grammar_workers.kernels import (
    ACCEPT,
    ADVICE,
    ASSIGN,
    CALL,
    ENTER_AT_ZERO,
    ENTER_DEEPER,
    GOTO,
    HALF,
    INCREMENT,
    OTHERWISE,
    RETURN,
    SET_BIT,
    STAY,
    passes,
)
from grammar_workers.machine import Machine
from grammar_workers.types import TokenId

_Start = tuple[int, int]
"""A rule instance: (entry state, entry register)."""
_Node = tuple[int, int, int]
"""(state, register, depth): depth counts the frames of the real stack that were left, 0 inside called rules; the state
-1 - label stands for a return with this label."""
_TOKEN_MARK, _TOKEN_DIGITS = b"\xff", 10
_Trail = tuple["_Trail | None", bytes]
"""A text as a linked list, last piece first."""


def shortest_bytes(
    machine: Machine,
    frames: NDArray[np.int64],
    configuration: tuple[int, int, int],
    spellable: frozenset[str] | None,
) -> bytes:
    """A shortest text that leads from `configuration` to a place where the whole may stop; see `split_tokens`.

    Raises AssertionError when there is none: the machine would not be co-reachable.
    """
    state, register, frame = configuration
    return _Search(machine, frames, register, frame, spellable).run(state, register)


def split_tokens(text: bytes) -> Iterator[bytes | TokenId]:
    """The bytes and the tokens without bytes of a shortest text: it marks a token by a byte that UTF-8 never holds."""
    head, *rest = text.split(_TOKEN_MARK)
    yield head
    for part in rest:
        yield int(part[:_TOKEN_DIGITS])
        yield part[_TOKEN_DIGITS:]


class _Search:
    """One run. A fact (length, start, node) says: `node` is reached from `start` by a text of this length."""

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
        self._allowed = None if spellable is None else frozenset(b"".join(map(str.encode, spellable)))
        # (lower bound of the whole text, tie breaker, length, start, node, text). A called rule begins at its first
        # caller's length, so nothing is explored that could not be part of a shortest text.
        self._queue: list[tuple[int, int, int, _Start | None, _Node, _Trail | None]] = []
        self._base: dict[_Start | None, int] = {None: 0}
        self._order = itertools.count()
        self._settled: set[tuple[_Start | None, _Node]] = set()
        # start -> label -> (length, text); start -> callers waiting for it.
        self._finished: dict[_Start, dict[int, tuple[int, _Trail | None]]] = {}
        self._waiting: dict[_Start, list[tuple[int, _Start | None, _Node, int, int, _Trail | None]]] = {}
        self._moves: dict[tuple[int, int], list[tuple[int, int]]] = {}
        self._token_edges: dict[int, list[tuple[TokenId, int]]] = {}
        for state, token, target in machine.token_edges.tolist():
            self._token_edges.setdefault(state, []).append((token, target))

    def run(self, state: int, register: int) -> bytes:
        self._add(0, None, (state, register, 0), None)
        while self._queue:
            _, _, length, start, node, trail = heapq.heappop(self._queue)
            if (start, node) in self._settled or (start is not None and self._is_finished(start)):
                continue
            self._settled.add((start, node))
            state, register, depth = node
            if state == ACCEPT:
                return _text(trail)
            if state < 0:
                self._leave(length, start, depth, -1 - state, trail)
                continue
            label = int(self._machine.states[state, 2])
            if label >= 0 and self._leave(length, start, depth, label, trail):
                return _text(trail)
            for byte, target in self._bytes(state):
                self._arrive(length + 1, start, target, register, depth, (trail, bytes([byte])))
            for token, target in self._token_edges.get(state, ()):
                mark = b"%s%0*d" % (_TOKEN_MARK, _TOKEN_DIGITS, token)
                self._arrive(length + 1, start, target, register, depth, (trail, mark))
        raise AssertionError("no completion: the automaton has a dead end")

    def _is_finished(self, start: _Start) -> bool:
        """Whether the shortest texts of a called rule are known for every label that its callers can use."""
        return len(self._finished[start]) >= self._machine.label_counts[start[0]]

    def _add(self, length: int, start: _Start | None, node: _Node, trail: _Trail | None) -> None:
        if (start, node) not in self._settled:
            heapq.heappush(self._queue, (self._base[start] + length, next(self._order), length, start, node, trail))

    def _arrive(
        self,
        length: int,
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
            op = int(self._machine.states[state, 3])
            if op == 0:
                self._add(length, start, (state, register, depth), trail)
                return
            first, last, action, value, move, target, site, enter = self._machine.ops[op].tolist()
            guards = self._machine.guards[first:last]
            if len(guards):
                begun = start is None and register == self._registers[depth]
                # A name that has begun must be brought to an end, advisable or not.
                if not (left and guards[0, 0] == ADVICE) and not _passes(guards, register, begun=begun):
                    if move != OTHERWISE:
                        return
                    state = target
                    continue
            if action == INCREMENT:
                register = min(register + 1, max(value, register))
            elif action == ASSIGN:
                register = value
            elif action == SET_BIT:
                register |= 1 << value
            if move in (STAY, OTHERWISE):
                self._add(length, start, (state, register, depth), trail)
                return
            if move == RETURN:
                self._add(length, start, (-1 - target, 0, depth), trail)
                return
            if move == GOTO:
                state = target
                continue
            assert move == CALL
            self._call(length, start, (state, register, depth), site, (target, _entered(register, enter)), trail)
            return

    def _call(
        self, length: int, start: _Start | None, node: _Node, site: int, called: _Start, trail: _Trail | None
    ) -> None:
        if (start, node) in self._settled:
            return
        self._settled.add((start, node))
        if called not in self._finished:
            self._finished[called] = {}
            self._base[called] = self._base[start] + length
            self._waiting[called] = []
            self._arrive(0, called, called[0], called[1], 0, None)
        self._waiting[called].append((length, start, node, site, node[1], trail))
        for label, (more, text) in list(self._finished[called].items()):
            self._resume(length + more, start, node, site, label, (trail, _text(text)))

    def _resume(
        self, length: int, start: _Start | None, node: _Node, site: int, label: int, trail: _Trail | None
    ) -> None:
        state = int(self._machine.returns[site + label])
        if state >= 0:
            self._arrive(length, start, state, node[1], node[2], trail)

    def _leave(self, length: int, start: _Start | None, depth: int, label: int, trail: _Trail | None) -> bool:
        """Return from a rule; True when it was the outermost one, so that the text may stop here."""
        if start is None:
            if depth == len(self._stack):
                self._add(length, None, (ACCEPT, 0, depth), trail)
                return True
            site, saved = self._stack[depth]
            state = int(self._machine.returns[site + label])
            if state >= 0:
                self._arrive(length, None, state, saved, depth + 1, trail, left=True)
            return False
        if label not in self._finished[start]:
            self._finished[start][label] = (length, trail)
            text = _text(trail)
            for before, caller, node, site, _, prefix in list(self._waiting[start]):
                self._resume(before + length, caller, node, site, label, (prefix, text))
        return False

    def _bytes(self, state: int) -> list[tuple[int, int]]:
        """(byte, target) with one byte per distinct target, ordinary characters preferred."""
        lit, row = int(self._machine.states[state, 0]), int(self._machine.states[state, 1])
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
            known = [(byte, target) for target, byte in targets.items()]
            self._moves[lit if lit < 0 else state, row] = known
        return known

    def _may_spell(self, byte: int) -> bool:
        return self._allowed is None or byte in self._allowed


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


def _text(trail: _Trail | None) -> bytes:
    pieces = []
    while trail is not None:
        trail, piece = trail
        pieces.append(piece)
    return b"".join(reversed(pieces))
