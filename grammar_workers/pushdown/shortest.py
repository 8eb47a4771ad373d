"""Search for a shortest completion: Dijkstra's algorithm over a pushdown automaton with calls.

A completion is a text up to the end of the output. A rule is a part of the automaton that states call. It returns with
a label (a small number). Within one rule, the nodes of the search are pairs (state, counter). A call has one edge for
each label. The length of this edge is the length of the shortest string with which the called rule returns with the
label. The search finds these strings on demand, with the same queue, as in Knuth's generalization of Dijkstra's
algorithm to grammars (Information Processing Letters 6, 1977).

The search does not step through all values of a counter. A *threshold* is a value at which some guard or action changes
its result. Between two thresholds, all values behave alike. If a path visits a state twice between two thresholds, the
search repeats this loop in one step, until the counter is 32 (`_NEAR`) below the next threshold. So it finds a string
of a billion characters in a few hundred steps. The result is a `Text`, which stores the repeated part once.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
from collections.abc import Sequence

import numpy as np

from grammar_workers.budget import Budget
from grammar_workers.errors import ArtifactError, LimitExceededError
from grammar_workers.memo import memoized
from grammar_workers.pushdown import instructions as code
from grammar_workers.pushdown.automaton import PushdownAutomaton
from grammar_workers.pushdown.instructions import entered, perform
from grammar_workers.pushdown.repeated_text import NOWHERE, Repeated, Text, Trail, length_of, marked, text_of

# An instance of a rule: (entry state, entry counter).
_Start = tuple[int, int]
# (state, counter, depth). `depth` is the number of frames of the real stack that were popped, 0 inside called
# rules. The state -1 - label stands for a return with this label.
_Node = tuple[int, int, int]
# Number of counter values before a threshold that the search visits one by one.
_NEAR = 32
# Maximum number of nodes of one search, about one second.
_MOST_STEPS = 100_000
# Steps of the work budget per node.
_NODE_STEPS = 2


class ShortestSearch:
    """Search for a shortest string that leads from a configuration to one in which the output may end.

    A configuration is a state, a counter and a return stack. An object is for one search. A queue entry (start, node,
    trail) means: the trail's string leads from `start` to `node`.

    Args:
        pushdown: The automaton.
        counter: Counter of the configuration.
        callers: The return stack, innermost frame first. A frame is a pair: the index in `returns` where the return
            states of the call begin, and the counter after the return.
        spellable: Characters that may be used. None: all.
        budget: Work budget to which the search is charged. None: no budget.
    """

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
        # Per depth: the labels with which the frame has been popped.
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

    def run(self, state: int) -> Text:
        """Find the string. If the counter is compared with large numbers, it may be longer than necessary.

        Args:
            state: State of the configuration.

        Returns:
            The string. Its parts may include tokens without bytes. Its length is 0 if the output may end in the
            configuration.

        Raises:
            LimitExceededError: The search visits more than 100,000 nodes or exhausts the budget.
            ArtifactError: No string exists, which happens only if the tables are damaged.
        """
        self._add(None, (state, self._counters[0], 0), None)
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
        """Return whether the shortest strings for all useful labels of a rule, or of a real frame, have been found."""
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
        """Follow the instructions on entering `state`, as `matching.kernels.step.arrive` does.

        `left` is True if a frame of the real stack was popped just before.
        """
        while True:
            instruction = self._instruction(state)
            number = int(self._pushdown.states[state, code.STATE_INSTRUCTION])
            passed, after, _, _ = perform(self._pushdown.instructions, self._pushdown.guards, number, counter)
            # A name that has begun must be completed, even against the advice.
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
                # Rounds before an assignment of the counter cannot be repeated.
                trail = Trail(trail, b"", length_of(trail), NOWHERE)
            counter = after
            if move in (code.STAY, code.OTHERWISE, code.CALL):
                # A call waits in the queue, because its string may be long and another path to this node shorter.
                self._add(start, (state, counter, depth), trail)
                return
            if move == code.RETURN:
                self._add(start, (-1 - target, 0, depth), trail)
                return
            assert move == code.GOTO
            state = target

    def _is_advised(self, instruction: list[int], counter: int, *, begun: bool) -> bool:
        """Return whether the counter follows the advice of an instruction. Without advice, all counters do.

        `begun`: the counter has not changed since the search began in this frame. A comma may have been read before,
        and then a name must follow even if all required names are present.
        """
        first, last = instruction[code.INSTRUCTION_GUARD_START], instruction[code.INSTRUCTION_GUARD_END]
        guards = self._pushdown.guards
        if last == first or guards[first, code.GUARD_KIND] != code.ADVICE:
            return True
        masks = guards[first + 1 : last if begun else first + 1 + guards[first, code.GUARD_COUNT]]
        bits = masks[:, code.GUARD_LOW].astype(np.int64) | masks[:, code.GUARD_HIGH].astype(np.int64) << code.GUARD_HALF
        return bool(((counter & bits) == bits).any())

    def _count(self, state: int, counter: int, depth: int, trail: Trail | None) -> tuple[int, Trail | None]:
        """Return the counter and the trail after counting up to `counter` on entering `state`.

        If the path has passed this state before and no guard distinguishes another round, the rounds are repeated in
        one leap until the next threshold is near.
        """
        following = bisect.bisect_right(self._thresholds, counter)
        end = self._thresholds[following] if following < len(self._thresholds) else counter
        if end - counter <= _NEAR:
            return counter, trail
        least = max(self._thresholds[following - 1], counter - _NEAR)
        rounds = [
            (link, counter - link.mark[1])
            for link in marked(trail, least)
            if link.mark and (link.mark[0], link.mark[2]) == (state, depth)
        ]
        if not rounds:
            return counter, Trail(trail, b"", length_of(trail), (state, counter, depth))
        # The fewest bytes per count: fixed-point numbers with 32 fractional bits, as lengths may exceed all floats.
        begun, period = min(rounds, key=lambda one: ((length_of(trail) - one[0].length) << 32) // one[1])
        count = (end - _NEAR - counter) // period
        if count <= 0:
            return counter, trail
        once = text_of(trail, begun)
        return counter + count * period, Trail(trail, Repeated(once, count), length_of(trail) + count * once.length)

    @memoized
    def _instruction(self, state: int) -> list[int]:
        """Return the instruction of a state: a row of `PushdownAutomaton.instructions`."""
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
        """Continue after a call whose rule has read `text` and returned with `label`."""
        state = int(self._pushdown.returns[site + label])
        if state >= 0:
            self._arrive(start, state, node[1], node[2], Trail(trail, text, length_of(trail) + text.length))

    def _leave(self, start: _Start | None, depth: int, label: int, trail: Trail | None) -> bool:
        """Return from a rule. Return True if it was the outermost one, so that the output may end here."""
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
        """Return (byte, target), with one byte for each distinct target. Common characters are preferred."""
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
    """Return the sorted counter values at which the result of some guard or action changes."""
    found = {0}
    for start, end, action, value in pushdown.instructions[:, : code.INSTRUCTION_MOVE].tolist():
        if action in (code.INCREMENT, code.ASSIGN):
            found.add(value)
        if end > start and pushdown.guards[start, code.GUARD_KIND] >= 0:
            bounds = pushdown.guards[start:end]
            found.update(bounds[:, code.GUARD_LOW].tolist())
            found.update((bounds[:, code.GUARD_HIGH].astype(np.int64) + 1).tolist())
    return sorted(found)


# All bytes; those that the search prefers come first.
_PREFERENCE = np.array(list(dict.fromkeys([*b'"}]0123456789aeiostnrbcdfghjklmpquvwxyz', *range(256)])), np.int64)
_BYTES = [bytes([byte]) for byte in range(256)]
