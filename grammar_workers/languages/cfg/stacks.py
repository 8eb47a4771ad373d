"""Sets of return stacks: the state of a recognizer for an ambiguous grammar, and its steps over bytes.

A stack has the current state of the `RuleGraph` on top, the states to return to below it, and END at the bottom. A set
of stacks is stored under a number, as a tuple of pairs:

    number -> ((top state, number of the set of the stacks below it), ...)      sorted, each top once

Equal sets have equal numbers. So sets share their parts, and the memory stays small even if the number of stacks grows
exponentially. For example, after each `a`, all unfinished stacks of `s: s s | "a"` have the same top. The
graph-structured stack of generalized LR parsing (Tomita, 1986) is similar. Set 0 is empty. Set 1 contains only the
stack that consists of END.
"""

from __future__ import annotations

import heapq
from graphlib import TopologicalSorter

from grammar_workers.budget import Budget
from grammar_workers.languages.cfg.rule_graph import DEAD, END, RuleGraph

# The number of a set of stacks.
StackSet = int
# The members of a set: (top state, set of the stacks below it), sorted by top state.
Items = tuple[tuple[int, StackSet], ...]

# The empty set: the text is not a prefix of any text of the grammar.
NOTHING: StackSet = 0
# The set that contains only the stack END: the text is complete and cannot continue.
FINISHED: StackSet = 1
_BYTES_PER_SET = 250
_BYTES_PER_ITEM = 100
_BYTES_PER_MEMO = 160
# Budget steps of a union of two sets, in addition to one for each top that may be common to both.
_UNION_STEPS = 4


class StackSets:
    """Numbered sets of return stacks that a recognizer of one grammar visits. Equal sets have equal numbers.

    A return stack has the current state on top, and below it the states in which calling rules continue. The grammar
    may be ambiguous, so the state of the recognizer is a set of stacks. Sets are never removed.

    Args:
        graph: The byte automaton of the grammar.
    """

    def __init__(self, graph: RuleGraph) -> None:
        self._rows = graph.rows.tolist()
        self._row_of = graph.row_of.tolist()
        self._final = graph.final.tolist()
        self._calls: dict[int, list[tuple[int, int]]] = {}
        for caller, first, back in graph.calls.tolist():
            self._calls.setdefault(caller, []).append((first, back))
        self._rank = _ranks(self._calls)
        self._reads = [any(target != DEAD for target in row) for row in self._rows]
        # The members of each set, by number.
        self.items: list[Items] = [(), ((END, NOTHING),)]
        self._numbers: dict[Items, StackSet] = {items: number for number, items in enumerate(self.items)}
        self._unions: dict[tuple[StackSet, StackSet], StackSet] = {}
        self._arrivals: dict[StackSet, StackSet] = {FINISHED: FINISHED}
        self._item_count = 1
        # The state in which reading begins, and the set below it.
        self.start = (graph.first, FINISHED)

    @property
    def nbytes(self) -> int:
        """Estimated memory of all sets and memoized results, in bytes."""
        memos = len(self._unions) + len(self._arrivals)
        return len(self.items) * _BYTES_PER_SET + self._item_count * _BYTES_PER_ITEM + memos * _BYTES_PER_MEMO

    def make(self, tops: dict[int, StackSet]) -> StackSet:
        """Return the number of a set of stacks, and store the set if it is new.

        Args:
            tops: The stacks of the set, grouped by top state. Key: the top state. Value: number of the set of the
                stacks below this top state.
        """
        items = tuple(sorted(tops.items()))
        number = self._numbers.get(items)
        if number is None:
            number = self._numbers[items] = len(self.items)
            self.items.append(items)
            self._item_count += len(items)
        return number

    def steps(self, stacks: StackSet, budget: Budget) -> list[StackSet]:
        """Return the next set of stacks for each byte class. A byte class contains bytes that no state distinguishes.

        An exhausted budget raises LimitExceededError.

        Args:
            stacks: Number of a set that `arrive` returned.
            budget: Counts the steps of work.

        Returns:
            Number of the set after a byte of each class, in the order of the columns of `RuleGraph.rows`. All calls and
            returns before the next byte are done. NOTHING (0) if no stack can read a byte of the class.
        """
        items = self.items[stacks]
        known: dict[tuple[int, ...], StackSet] = {}
        result = []
        # Most classes of bytes have the same targets as another class.
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
        """Follow all calls and returns that come before the next byte.

        An exhausted budget raises LimitExceededError.

        Args:
            stacks: Number of the set of stacks directly after a byte, or at the beginning of the text.
            budget: Counts the steps of work.

        Returns:
            Number of the set of the stacks that can read a byte. The set also contains the stack END if the text may
            end here.
        """
        pending = [stacks]
        while pending:
            number = pending[-1]
            if number in self._arrivals:
                pending.pop()
                continue
            # If a rule ends in a top state, the stacks below it are processed first. They are shorter, so this
            # terminates.
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
        # Callers precede the rules that they call, so that all stacks below a rule are united before it is entered,
        # once.
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
        # If a rule ends in a top state, `arrive` has already processed the stacks below it.
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
        """Return the union of these sets, computed pairwise."""
        while len(stacks) > 1:
            last = stacks[-1:] if len(stacks) % 2 else []
            stacks = [self._union(*pair, budget) for pair in zip(stacks[::2], stacks[1::2], strict=False)] + last
        return stacks[0]

    def _union(self, first: StackSet, second: StackSet, budget: Budget) -> StackSet:
        """Return the union of two sets. It is iterative because sets are as deep as the text is nested."""
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
    """Return the rank of each state that calls or is called: a caller's is lower than those of its callees."""
    order = TopologicalSorter({state: [first for first, _ in called] for state, called in calls.items()})
    return {state: -index for index, state in enumerate(order.static_order())}


def _ordered(first: StackSet, second: StackSet) -> tuple[StackSet, StackSet]:
    return (first, second) if first <= second else (second, first)
