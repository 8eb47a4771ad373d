"""Sets of return stacks: the state of an ambiguous grammar, kept as hash-consed trees, and its steps over bytes.

A stack is a state of the `RuleGraph` on top of the states to return to, with END at the bottom. A set of stacks is

    number -> ((top state, number of the set of what lies below it), ...)      sorted, each top once

so stacks that share a top share a node, sets that are equal have one number, and the sizes of both stay small even
where the number of stacks does not (`s: s s | "a"` has one top after every `a`; compare the graph-structured stack of
generalised LR, Tomita 1986). Set 0 is empty; set 1 holds the one stack that is only END.
"""

from __future__ import annotations

import heapq
from graphlib import TopologicalSorter

from grammar_workers.budget import Budget
from grammar_workers.languages.cfg.rule_graph import DEAD, END, RuleGraph

StackSet = int
Items = tuple[tuple[int, StackSet], ...]

NOTHING: StackSet = 0
FINISHED: StackSet = 1
_BYTES_PER_SET = 250
_BYTES_PER_ITEM = 100
_BYTES_PER_MEMO = 160
_UNION_STEPS = 4
"""The steps of uniting two sets, beside their common tops."""


class StackSets:
    """The sets of one grammar: equal ones are one number. Only the work of one call is bounded: give it a `budget`."""

    def __init__(self, graph: RuleGraph) -> None:
        self._rows = graph.rows.tolist()
        self._row_of = graph.row_of.tolist()
        self._final = graph.final.tolist()
        self._calls: dict[int, list[tuple[int, int]]] = {}
        for caller, first, back in graph.calls.tolist():
            self._calls.setdefault(caller, []).append((first, back))
        self._rank = _ranks(self._calls)
        self._reads = [any(target != DEAD for target in row) for row in self._rows]
        self.items: list[Items] = [(), ((END, NOTHING),)]
        self._numbers: dict[Items, StackSet] = {items: number for number, items in enumerate(self.items)}
        self._unions: dict[tuple[StackSet, StackSet], StackSet] = {}
        self._arrivals: dict[StackSet, StackSet] = {FINISHED: FINISHED}
        self._item_count = 1
        self.start = (graph.first, FINISHED)

    @property
    def nbytes(self) -> int:
        """An estimate of the memory held, in bytes."""
        memos = len(self._unions) + len(self._arrivals)
        return len(self.items) * _BYTES_PER_SET + self._item_count * _BYTES_PER_ITEM + memos * _BYTES_PER_MEMO

    def make(self, tops: dict[int, StackSet]) -> StackSet:
        """The set with these top states over these sets."""
        items = tuple(sorted(tops.items()))
        number = self._numbers.get(items)
        if number is None:
            number = self._numbers[items] = len(self.items)
            self.items.append(items)
            self._item_count += len(items)
        return number

    def steps(self, stacks: StackSet, budget: Budget) -> list[StackSet]:
        """Per class of bytes, the set after such a byte, ready for the next; NOTHING when no stack can read it."""
        items = self.items[stacks]
        known: dict[tuple[int, ...], StackSet] = {}
        result = []
        # Most classes of bytes lead to the same targets as another one does.
        for targets in zip(*(self._rows[self._row_of[state]] for state, _ in items), strict=True):
            after = known.get(targets)
            if after is None:
                reached: dict[int, list[StackSet]] = {}
                for target, (_, below) in zip(targets, items, strict=True):
                    if target != DEAD:
                        reached.setdefault(target, []).append(below)
                budget.spend(1 + len(items))
                merged = self.make({state: self._union_all(each, budget) for state, each in reached.items()})
                after = known[targets] = self.arrive(merged, budget)
            result.append(after)
        return result

    def arrive(self, stacks: StackSet, budget: Budget) -> StackSet:
        """Follow all calls and returns: the set of the stacks whose top reads a byte, and END if it can be reached."""
        pending = [stacks]
        while pending:
            number = pending[-1]
            if number in self._arrivals:
                pending.pop()
                continue
            # Where a rule ends, what arrives below it comes first: a stack is shorter below its top.
            missing = [
                below for state, below in self.items[number] if self._final[state] and below not in self._arrivals
            ]
            if missing:
                pending += missing
            else:
                self._arrivals[number] = self._arrived(number, budget)
                pending.pop()
        return self._arrivals[stacks]

    def _arrived(self, stacks: StackSet, budget: Budget) -> StackSet:
        # Callers before what they call, so that all ways to a rule are united before it is entered, once.
        lying: dict[int, list[StackSet]] = {state: [below] for state, below in self.items[stacks]}
        found: dict[int, StackSet] = {}
        queue = [(self._rank.get(state, 0), state) for state in lying]
        heapq.heapify(queue)
        while queue:
            _, state = heapq.heappop(queue)
            below = found[state] = self._union_all(lying[state], budget)
            for first, back in self._calls.get(state, ()):
                if first not in lying:
                    lying[first] = []
                    heapq.heappush(queue, (self._rank[first], first))
                lying[first].append(below if back == END else self.make({back: below}))
                budget.spend(1)
        # Where a rule ends, everything that follows has arrived already.
        returned: dict[int, list[StackSet]] = {state: [below] for state, below in found.items()}
        for ended in {below for state, below in self.items[stacks] if self._final[state]}:
            for top, rest in self.items[self._arrivals[ended]]:
                returned.setdefault(top, []).append(rest)
                budget.spend(1)
        return self.make(
            {
                state: self._union_all(each, budget)
                for state, each in returned.items()
                if state == END or self._reads[self._row_of[state]]
            }
        )

    def _union_all(self, stacks: list[StackSet], budget: Budget) -> StackSet:
        """All stacks of all of these, united two by two."""
        while len(stacks) > 1:
            last = stacks[-1:] if len(stacks) % 2 else []
            stacks = [self._union(*pair, budget) for pair in zip(stacks[::2], stacks[1::2], strict=False)] + last
        return stacks[0]

    def _union(self, first: StackSet, second: StackSet, budget: Budget) -> StackSet:
        """All stacks of both. Iterative: sets are as deep as the text is nested."""
        unions = self._unions
        pending = [_ordered(first, second)]
        while pending:
            pair = pending[-1]
            if self._known_union(pair) is not None:
                pending.pop()
                continue
            left, right = dict(self.items[pair[0]]), dict(self.items[pair[1]])
            budget.spend(_UNION_STEPS + min(len(left), len(right)))
            shared = [_ordered(left[state], right[state]) for state in left.keys() & right.keys()]
            missing = [each for each in shared if self._known_union(each) is None]
            if missing:
                pending += missing
                continue
            tops = left | right
            for state in left.keys() & right.keys():
                below = self._known_union(_ordered(left[state], right[state]))
                assert below is not None
                tops[state] = below
            unions[pair] = self.make(tops)
            pending.pop()
        result = self._known_union(_ordered(first, second))
        assert result is not None
        return result

    def _known_union(self, pair: tuple[StackSet, StackSet]) -> StackSet | None:
        if pair[0] == pair[1] or pair[0] == NOTHING:
            return pair[1]
        return self._unions.get(pair)


def _ranks(calls: dict[int, list[tuple[int, int]]]) -> dict[int, int]:
    """Numbers for the states that call or are called: lower for a caller than for what it calls."""
    order = TopologicalSorter({state: [first for first, _ in called] for state, called in calls.items()})
    return {state: -index for index, state in enumerate(order.static_order())}


def _ordered(first: StackSet, second: StackSet) -> tuple[StackSet, StackSet]:
    return (first, second) if first <= second else (second, first)
