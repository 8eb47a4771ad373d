"""The shortest way to finish: Dijkstra's algorithm over a pushdown automaton with calls.

Within one rule the nodes are (state, counter); a call is an edge whose length is the shortest text of the called rule
with the label that the edge stands for. Shortest texts of rules are found on demand in the same queue, as in Knuth's
generalisation of Dijkstra's algorithm to grammars (Information Processing Letters 6, 1977).

Counts are not walked through one by one. Between two values that some guard names, a counter behaves alike: a way that
comes by the same state twice there may go round as often as it takes, and leaves only the last `_NEAR` values to the
search. So a text of a billion characters is found in a few hundred steps, and is a `Text` that says what is repeated.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from grammar_workers.budget import Budget
from grammar_workers.errors import ArtifactError, LimitExceededError
from grammar_workers.memo import memoized
from grammar_workers.pushdown import instructions as code
from grammar_workers.pushdown.automaton import PushdownAutomaton
from grammar_workers.pushdown.instructions import entered, perform
from grammar_workers.pushdown.repeated_text import NOWHERE, Repeated, Text, Trail, counted, length_of, marked, text_of

_Start = tuple[int, int]
"""A rule instance: (entry state, entry counter)."""
_Node = tuple[int, int, int]
"""(state, counter, depth): depth counts the frames of the real stack that were left, 0 inside called rules; the state
-1 - label stands for a return with this label."""
_NEAR = 32
"""Values of a counter before one that some guard names which are walked through one by one."""
_MOST_STEPS = 100_000
"""Nodes of one search: about a second."""
_NODE_STEPS = 2
"""Of a budget, for one node."""


def shortest_text(
    pushdown: PushdownAutomaton,
    state: int,
    counter: int,
    callers: Sequence[tuple[int, int]],
    spellable: frozenset[str] | None,
    budget: Budget | None = None,
) -> Text:
    """A shortest text that leads from `state` with `counter` to a place where the whole may stop.

    `callers` are those that wait, last first: where the return site begins, and the counter to go on with. Where
    counts are large, what is repeated is the shortest that was met, not the shortest there is. Raises
    LimitExceededError when the search takes too long, or more than is left of `budget`, and ArtifactError when there is
    no such text: then these are not the tables that a compiler made.
    """
    return _Search(pushdown, counter, callers, spellable, budget).run(state, counter)


class _Search:
    """One run. A fact (start, node, trail) says: `node` is reached from `start` by the text of the trail."""

    def __init__(
        self,
        pushdown: PushdownAutomaton,
        counter: int,
        callers: Sequence[tuple[int, int]],
        spellable: frozenset[str] | None,
        budget: Budget | None,
    ) -> None:
        self._pushdown = pushdown
        self._budget = budget
        self._stack = callers
        self._counters = [counter, *(saved for _, saved in callers)]
        # Per depth: the labels with which that frame has been left.
        self._left: list[set[int]] = [set() for _ in self._stack]
        self._allowed = frozenset(range(256) if spellable is None else b"".join(map(str.encode, spellable)))
        # (lower bound of the whole text, tie breaker, start, node, text). A called rule begins at its first caller's
        # length, so nothing is explored that could not be part of a shortest text.
        self._queue: list[tuple[int, int, _Start | None, _Node, Trail | None]] = []
        self._base: dict[_Start | None, int] = {None: 0}
        self._order = itertools.count()
        self._settled: set[tuple[_Start | None, _Node]] = set()
        # start -> label -> text; start -> callers waiting for it.
        self._finished: dict[_Start, dict[int, Text]] = {}
        self._waiting: dict[_Start, list[tuple[_Start | None, _Node, int, Trail | None]]] = {}
        self._thresholds = _thresholds(pushdown)

    def run(self, state: int, counter: int) -> Text:
        self._add(None, (state, counter, 0), None)
        while self._queue:
            _, _, start, node, trail = heapq.heappop(self._queue)
            if (start, node) in self._settled or self._is_finished(start, node[2]):
                continue
            self._settled.add((start, node))
            if self._budget is not None:
                self._budget.spend(_NODE_STEPS)
            if len(self._settled) > _MOST_STEPS:
                raise LimitExceededError(f"the shortest way to an end takes more than {_MOST_STEPS} steps to find")
            state, counter, depth = node
            if state == code.ACCEPT:
                return text_of(trail)
            if state < 0:
                self._leave(start, depth, -1 - state, trail)
                continue
            if self._instruction(state)[code.INSTRUCTION_MOVE] == code.CALL:
                self._call(start, node, trail)
                continue
            label = int(self._pushdown.states[state, code.STATE_EXIT])
            if label >= 0 and self._leave(start, depth, label, trail):
                return text_of(trail)
            for byte, target in self._bytes(state):
                self._arrive(start, target, counter, depth, Trail(trail, _BYTES[byte], length_of(trail) + 1))
            for token, _, target in self._pushdown.token_edges_of.get(state, ()):
                self._arrive(start, target, counter, depth, Trail(trail, token, length_of(trail) + 1))
        raise ArtifactError("a state without a way to an end")

    def _is_finished(self, start: _Start | None, depth: int) -> bool:
        """Whether the shortest texts of a rule, or to the end of a frame, are known for every label of use."""
        if start is not None:
            return len(self._finished[start]) >= self._pushdown.label_counts[start[0]]
        return depth < len(self._stack) and len(self._left[depth]) >= self._pushdown.site_labels[self._stack[depth][0]]

    def _add(self, start: _Start | None, node: _Node, trail: Trail | None) -> None:
        if (start, node) not in self._settled:
            bound = self._base[start] + length_of(trail)
            heapq.heappush(self._queue, (bound, next(self._order), start, node, trail))

    def _arrive(
        self,
        start: _Start | None,
        state: int,
        counter: int,
        depth: int,
        trail: Trail | None,
        *,
        left: bool = False,
    ) -> None:
        """Follow the instructions on entering `state`, as `matching.kernels.step.arrive` does. `left`: a frame of the
        real stack was left."""
        while True:
            instruction = self._instruction(state)
            number = int(self._pushdown.states[state, code.STATE_INSTRUCTION])
            passed, after, _, _ = perform(self._pushdown.instructions, self._pushdown.guards, number, counter)
            # A name that has begun must be brought to an end, advisable or not.
            begun = start is None and counter == self._counters[depth]
            passed = passed and (left or self._is_advised(instruction, counter, begun=begun))
            move, target = instruction[code.INSTRUCTION_MOVE], instruction[code.INSTRUCTION_TARGET]
            if not passed:
                if move != code.OTHERWISE:
                    return
                state = target
                continue
            action = instruction[code.INSTRUCTION_ACTION]
            if action == code.INCREMENT and after > counter:
                after, trail = self._count(state, after, depth, trail)
            elif action not in (code.KEEP, code.INCREMENT, code.SET_BIT):
                # What counted up before is no round that could be repeated.
                trail = Trail(trail, b"", length_of(trail), NOWHERE)
            counter = after
            if move in (code.STAY, code.OTHERWISE, code.CALL):
                # A call is made when its turn comes: what it adds may be long, and another way here shorter.
                self._add(start, (state, counter, depth), trail)
                return
            if move == code.RETURN:
                self._add(start, (-1 - target, 0, depth), trail)
                return
            assert move == code.GOTO
            state = target

    def _is_advised(self, instruction: list[int], counter: int, *, begun: bool) -> bool:
        """Whether the counter follows the advice of an instruction, if it gives any.

        `begun`: nothing has been read since it last changed, so that a comma may have been read before, after which a
        name must come even if nothing is missing.
        """
        first, last = instruction[code.INSTRUCTION_GUARD_START], instruction[code.INSTRUCTION_GUARD_END]
        guards = self._pushdown.guards
        if last == first or guards[first, code.GUARD_KIND] != code.ADVICE:
            return True
        masks = guards[first + 1 : last if begun else first + 1 + guards[first, code.GUARD_COUNT]]
        bits = masks[:, code.GUARD_LOW].astype(np.int64) | masks[:, code.GUARD_HIGH].astype(np.int64) << code.GUARD_HALF
        return bool(((counter & bits) == bits).any())

    def _count(self, state: int, counter: int, depth: int, trail: Trail | None) -> tuple[int, Trail | None]:
        """The counter and the text after counting up to `counter` on entering `state`: a way that has come by here
        before, and that no guard tells apart from going round once more, goes round until the next guard is near.
        """
        following = bisect.bisect_right(self._thresholds, counter)
        end = self._thresholds[following] if following < len(self._thresholds) else counter
        if end - counter <= _NEAR:
            return counter, trail
        least = max(self._thresholds[following - 1], counter - _NEAR)
        rounds = [link for link in marked(trail, least) if link.mark and (link.mark[0], link.mark[2]) == (state, depth)]
        if not rounds:
            return counter, Trail(trail, b"", length_of(trail), (state, counter, depth))

        def bytes_per_count(link: Trail) -> int:
            # A fraction with 32 bits: lengths may be larger than any float.
            return ((length_of(trail) - link.length) << 32) // counted(counter, link)

        begun = min(rounds, key=bytes_per_count)
        period = counted(counter, begun)
        count = (end - _NEAR - counter) // period
        if count <= 0:
            return counter, trail
        once = text_of(trail, begun)
        return counter + count * period, Trail(trail, Repeated(once, count), length_of(trail) + count * once.length)

    @memoized
    def _instruction(self, state: int) -> list[int]:
        """What entering a state does: a row of `PushdownAutomaton.instructions`."""
        row: list[int] = self._pushdown.instructions[self._pushdown.states[state, code.STATE_INSTRUCTION]].tolist()
        return row

    def _call(self, start: _Start | None, node: _Node, trail: Trail | None) -> None:
        instruction = self._instruction(node[0])
        site = instruction[code.INSTRUCTION_SITE]
        called = instruction[code.INSTRUCTION_TARGET], entered(node[1], instruction[code.INSTRUCTION_ENTRY])
        if called not in self._finished:
            self._finished[called] = {}
            self._base[called] = self._base[start] + length_of(trail)
            self._waiting[called] = []
            self._arrive(called, called[0], called[1], 0, None)
        self._waiting[called].append((start, node, site, trail))
        for label, text in list(self._finished[called].items()):
            self._resume(start, node, site, label, text, trail)

    def _resume(
        self, start: _Start | None, node: _Node, site: int, label: int, text: Text, trail: Trail | None
    ) -> None:
        """Go on behind a call, whose rule has read `text` and returned with `label`."""
        state = int(self._pushdown.returns[site + label])
        if state >= 0:
            self._arrive(start, state, node[1], node[2], Trail(trail, text, length_of(trail) + text.length))

    def _leave(self, start: _Start | None, depth: int, label: int, trail: Trail | None) -> bool:
        """Return from a rule; True when it was the outermost one, so that the text may stop here."""
        if start is None:
            if depth == len(self._stack):
                self._add(None, (code.ACCEPT, 0, depth), trail)
                return True
            site, saved = self._stack[depth]
            state = int(self._pushdown.returns[site + label])
            if state >= 0 and label not in self._left[depth]:
                self._left[depth].add(label)
                self._arrive(None, state, saved, depth + 1, trail, left=True)
            return False
        if label not in self._finished[start]:
            text = self._finished[start][label] = text_of(trail)
            for caller, node, site, prefix in list(self._waiting[start]):
                self._resume(caller, node, site, label, text, prefix)
        return False

    def _bytes(self, state: int) -> list[tuple[int, int]]:
        """(byte, target) with one byte per distinct target, ordinary characters preferred."""
        lit, row = self._pushdown.states[state, [code.STATE_LITERAL, code.STATE_ROW]].tolist()
        return self._targets(lit, -1 if lit < 0 else state + 1, row)

    @memoized
    def _targets(self, lit: int, following: int, row: int) -> list[tuple[int, int]]:
        targets: dict[int, int] = {}
        if lit in self._allowed:
            targets[following] = lit
        if row >= 0:
            dense = self._pushdown.table[row]
            for byte in _PREFERENCE[dense[_PREFERENCE] >= 0].tolist():
                if byte != lit and byte in self._allowed:
                    targets.setdefault(int(dense[byte]), byte)
        return [(byte, target) for target, byte in targets.items()]


def _thresholds(pushdown: PushdownAutomaton) -> list[int]:
    """The values of counters, sorted, below which some guard or some count behaves differently than from there on."""
    found = {0}
    columns = [
        code.INSTRUCTION_GUARD_START,
        code.INSTRUCTION_GUARD_END,
        code.INSTRUCTION_ACTION,
        code.INSTRUCTION_VALUE,
    ]
    for start, end, action, value in pushdown.instructions[:, columns].tolist():
        if action in (code.INCREMENT, code.ASSIGN):
            found.add(value)
        if end > start and pushdown.guards[start, code.GUARD_KIND] >= 0:
            bounds = pushdown.guards[start:end]
            found.update(bounds[:, code.GUARD_LOW].tolist())
            found.update((bounds[:, code.GUARD_HIGH].astype(np.int64) + 1).tolist())
    return sorted(found)


def _preference() -> Iterator[int]:
    yield from b'"}]0123456789aeiostnrbcdfghjklmpquvwxyz'
    yield from range(256)


_PREFERENCE = np.array(list(dict.fromkeys(_preference())), np.int64)
_BYTES = [bytes([byte]) for byte in range(256)]
