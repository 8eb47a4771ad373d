"""The product of a pushdown automaton and a regular language, as a pushdown automaton without dead ends.

A node of the product is a triple: a state of the pushdown automaton, the value of its counter, and a state of the DFA
over bytes. Where the counter does not matter, its value is set to 0. The product itself has no counter.

A rule is a part of an automaton that states call. In the pushdown automaton, it returns with a label (a small number).
In the product, it returns with a *pair*: this label and the state of the DFA. Two fixpoints remove all dead ends (Alur
et al., "Analysis of recursive state machines", 2005):

1. The *exits* of a node are the pairs with which its rule may still return. They are computed bottom up.
2. A pair is *usable* if a caller can continue to the end after it. Usable pairs are computed top down from the root.

In the result, a node has one state for each set of usable exits. Edges to nodes without usable exits are removed.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from grammar_workers.budget import budget_of
from grammar_workers.dfa.charset import bits_of
from grammar_workers.dfa.dfa import Dfa
from grammar_workers.dfa.utf8_dfa import Utf8Dfa
from grammar_workers.errors import UnsatisfiableError
from grammar_workers.memo import memoized
from grammar_workers.options import Limits
from grammar_workers.pushdown import instructions as code
from grammar_workers.pushdown.automaton import NEVER, PushdownAutomaton
from grammar_workers.pushdown.builder import PushdownBuilder
from grammar_workers.pushdown.instructions import entered, perform
from grammar_workers.pushdown.liveness import live_counters

# Steps of the work budget for a node, an edge between nodes, and the edges over all bytes.
_NODE_STEPS, _MOVE_STEPS, _TABLE_STEPS = 20, 8, 200


def intersect(pushdown: PushdownAutomaton, automaton: Dfa, limits: Limits) -> PushdownAutomaton:
    """Compute the pushdown automaton of the strings that both a pushdown automaton and a DFA accept.

    The function raises `UnsatisfiableError` if no string is accepted by both, and `LimitExceededError` if the product
    exceeds a limit. Each value of a counter has states of its own, so large counters may exceed the limit.

    Args:
        pushdown: The pushdown automaton, over bytes. Not changed.
        automaton: The regular language, a DFA over characters.
        limits: Limits on states and work.

    Returns:
        A new automaton, the product. It has no guards, counters or dead ends.
    """
    product = _Product(pushdown, Utf8Dfa(automaton), limits)
    return _Emitter(product, limits).pushdown()


@dataclasses.dataclass(frozen=True, slots=True)
class _Reads:
    """A node that reads a byte in `state`, with `counter`."""

    state: int
    counter: int


@dataclasses.dataclass(frozen=True, slots=True)
class _Calls:
    """A node that calls a rule with instruction `number` and keeps `counter`."""

    number: int
    counter: int


@dataclasses.dataclass(frozen=True, slots=True)
class _Returns:
    """A node that returns with `label`."""

    label: int


_Place = _Reads | _Calls | _Returns


@dataclasses.dataclass(slots=True)
class _Moves:
    """Transitions of a node by bytes.

    `targets` are pairs of states, (pushdown automaton, DFA). `index` (int16 [256]) has the index of each byte's target,
    or -1. `blocked` (bool [256]) marks the bytes that only the pushdown automaton reads.
    """

    targets: list[tuple[int, int]]
    index: NDArray[np.int16]
    blocked: NDArray[np.bool_]


class _Product:
    """The reachable nodes and their exits."""

    def __init__(self, pushdown: PushdownAutomaton, other: Utf8Dfa, limits: Limits) -> None:
        self.pushdown = pushdown
        self.other = other
        self.places: list[tuple[_Place, int]] = []
        # Bit set of pair numbers for each node.
        self.exits: list[int] = []
        # (label, state of the DFA) of each pair.
        self.pairs: list[tuple[int, int]] = []
        self._live = live_counters(pushdown)
        self._users: list[list[int]] = []
        self._callers: dict[int, list[int]] = {}
        self._returned: dict[int, int] = {}
        self._fresh: list[int] = []
        self._grown: list[int] = []
        self._budget = budget_of(limits)
        root = self.node(code.START, 0, 0)
        self._solve()
        self.root = root

    # -- nodes -------------------------------------------------------------------------------------------------------

    def node(self, state: int, counter: int, other: int) -> int | None:
        """Return the node on entering `state`, or None if a guard fails."""
        place = self._arrive(state, counter)
        return None if place is None else self._number(place, other)

    @memoized
    def _number(self, place: _Place, other: int) -> int:
        number = len(self.places)
        self.places.append((place, other))
        self.exits.append(0)
        self._users.append([])
        self._fresh.append(number)
        self._budget.spend(_NODE_STEPS)
        return number

    def moves(self, place: _Reads, other: int) -> _Moves:
        """Return the transitions by bytes that both automata read."""
        lit, row = self.pushdown.states[place.state, [code.STATE_LITERAL, code.STATE_ROW]].tolist()
        # A literal leads to the next state, so equal rows of two states may have different literal targets.
        return self._table_moves(row, other, lit, -1 if lit < 0 else place.state + 1)

    @memoized
    def _table_moves(self, row: int, other: int, lit: int, following: int) -> _Moves:
        """Return the transitions by a dense row, and by a literal that leads to the state `following`."""
        self._budget.spend(_TABLE_STEPS)
        mine = self.pushdown.table[row].astype(np.int64) if row >= 0 else np.full(256, -1, np.int64)
        if lit >= 0:
            mine[lit] = following
        theirs = self.other.row(other)
        reads = mine >= 0
        both = np.flatnonzero(reads & (theirs >= 0))
        distinct, inverse = np.unique(np.stack([mine[both], theirs[both]]), axis=1, return_inverse=True)
        index = np.full(256, -1, np.int16)
        index[both] = inverse.reshape(-1)
        return _Moves([(t, q) for t, q in distinct.T.tolist()], index, reads & (theirs < 0))

    def exit_pair(self, place: _Reads, other: int) -> int:
        """Return the number of the pair with which a node may return before the next byte, or -1."""
        label = int(self.pushdown.states[place.state, code.STATE_EXIT])
        return -1 if label < 0 else self.pair(label, other)

    @memoized
    def pair(self, label: int, other: int) -> int:
        self.pairs.append((label, other))
        return len(self.pairs) - 1

    def called(self, place: _Calls, other: int) -> int | None:
        """Return the node where the called rule begins, or None."""
        target, mode = self.pushdown.instructions[
            place.number, [code.INSTRUCTION_TARGET, code.INSTRUCTION_ENTRY]
        ].tolist()
        return self.node(target, entered(place.counter, mode), other)

    def resumed(self, place: _Calls, pair: int) -> int | None:
        """Return the node after the called rule has returned with `pair`, or None."""
        label, other = self.pairs[pair]
        state = int(self.pushdown.returns[self.pushdown.instructions[place.number, code.INSTRUCTION_SITE] + label])
        return None if state < 0 else self.node(state, place.counter, other)

    @memoized
    def _arrive(self, state: int, counter: int) -> _Place | None:
        """Follow the instructions on entering a state, as `matching.kernels.step.arrive` does."""
        instructions = self.pushdown.instructions
        for _ in range(code.SILENT_MOVES):
            number = int(self.pushdown.states[state, code.STATE_INSTRUCTION])
            if number == 0:
                return self._reads(state, counter)
            passed, counter, _, _ = perform(instructions, self.pushdown.guards, number, counter)
            move, target = instructions[number, [code.INSTRUCTION_MOVE, code.INSTRUCTION_TARGET]].tolist()
            if move == (code.GOTO if passed else code.OTHERWISE):
                state = target
            elif not passed:
                return None
            elif move == code.CALL:
                return _Calls(number, counter if self._live.calls[number] else 0)
            elif move == code.RETURN:
                return _Returns(target)
            else:
                return self._reads(state, counter)
        return None

    def _reads(self, state: int, counter: int) -> _Reads:
        return _Reads(state, counter if self._live.reads[state] else 0)

    # -- exits -------------------------------------------------------------------------------------------------------

    def _solve(self) -> None:
        while self._fresh or self._grown:
            if self._fresh:
                self._expand(self._fresh.pop())
                continue
            node = self._grown.pop()
            for user in self._users[node]:
                self._grow(user, self.exits[node])
            for caller in self._callers.get(node, ()):
                self._resume(caller, node)

    def _expand(self, node: int) -> None:
        place, other = self.places[node]
        if isinstance(place, _Returns):
            self._grow(node, 1 << self.pair(place.label, other))
            return
        if isinstance(place, _Calls):
            called = self.called(place, other)
            if called is not None:
                self._callers.setdefault(called, []).append(node)
                self._resume(node, called)
            return
        pair = self.exit_pair(place, other)
        if pair >= 0:
            self._grow(node, 1 << pair)
        targets = self.moves(place, other).targets
        self._budget.spend(_MOVE_STEPS * len(targets))
        # Tokens without bytes do not change the state of the DFA.
        silent = [(target, other) for _, _, target in self.pushdown.token_edges_of.get(place.state, ())]
        for state, following in [*targets, *silent]:
            target = self.node(state, place.counter, following)
            if target is not None:
                self._use(node, target)

    def _resume(self, caller: int, called: int) -> None:
        place, _ = self.places[caller]
        assert isinstance(place, _Calls)
        new = self.exits[called] & ~self._returned.get(caller, 0)
        self._returned[caller] = self.exits[called]
        for pair in bits_of(new):
            target = self.resumed(place, pair)
            self._budget.spend(_MOVE_STEPS)
            if target is not None:
                self._use(caller, target)

    def _use(self, user: int, target: int) -> None:
        self._users[target].append(user)
        self._grow(user, self.exits[target])

    def _grow(self, node: int, exits: int) -> None:
        if exits & ~self.exits[node]:
            self.exits[node] |= exits
            self._grown.append(node)


class _Emitter:
    """A writer of the nodes that lead to the end, once per set of usable pairs."""

    def __init__(self, product: _Product, limits: Limits) -> None:
        self._product = product
        self._builder = PushdownBuilder(limits)
        self._states: dict[tuple[int, int], int] = {}
        self._pending: list[tuple[int, int, int]] = []

    def pushdown(self) -> PushdownAutomaton:
        product = self._product
        accepted = [product.other.accepts(other) for _, other in product.pairs]
        usable = sum(1 << pair for pair, accepts in enumerate(accepted) if accepts)
        root = product.root
        if root is None or not product.exits[root] & usable:
            raise UnsatisfiableError(
                "no text matches all specifications (`banned_words` count as one); change one of them"
            )
        # The outermost rule is called, too, so that its pair decides whether the text may end.
        site = [code.ACCEPT if accepts else -1 for accepts in accepted]
        entry = self._builder.state(op=self._builder.call(self._state(root, usable), site))
        while self._pending:
            self._fill(*self._pending.pop())
        return self._builder.build(entry)

    def _state(self, node: int | None, usable: int) -> int:
        """Return the state of a node, or -1 if none of its exits is usable."""
        first = -1
        while node is not None and (usable := usable & self._product.exits[node]):
            known = self._states.get((node, usable))
            if known is not None:
                if first < 0:
                    return known
                # A literal leads to the state appended right after it.
                self._builder.state(op=self._builder.goto(known))
                return first
            lit, following = self._literal(node, usable)
            state = self._states[node, usable] = self._builder.state(lit=lit)
            self._pending.append((node, usable, state))
            first = state if first < 0 else first
            node = following
        return first

    def _literal(self, node: int, usable: int) -> tuple[int, int | None]:
        """Return the byte and the target of the literal of a node, or (-1, None)."""
        place, other = self._product.places[node]
        if isinstance(place, _Reads):
            lit = int(self._product.pushdown.states[place.state, code.STATE_LITERAL])
            following = int(self._product.other.row(other)[lit]) if lit >= 0 else -1
            if following >= 0:
                target = self._product.node(place.state + 1, place.counter, following)
                if target is not None and self._product.exits[target] & usable:
                    return lit, target
        return -1, None

    def _fill(self, node: int, usable: int, state: int) -> None:
        product, builder = self._product, self._builder
        place, other = product.places[node]
        builder.spend(1)
        if isinstance(place, _Returns):
            builder.fill(state, op=builder.return_(product.pair(place.label, other)))
            return
        if isinstance(place, _Calls):
            builder.fill(state, op=self._call(place, other, usable))
            return
        pair = product.exit_pair(place, other)
        if pair >= 0 and not usable >> pair & 1:
            pair = -1
        if pair >= 0:
            builder.note_label(pair)
        for first, last, target in product.pushdown.token_edges_of.get(place.state, ()):
            reached = self._state(product.node(target, place.counter, other), usable)
            if reached >= 0:
                builder.token_edge(state, first, last, reached)
        moves = product.moves(place, other)
        # If the pushdown automaton reads a byte, it does not return before the byte, even if the DFA rejects it.
        dead = self._dead() if pair >= 0 else -1
        numbers = []
        for target, following in moves.targets:
            reached = self._state(product.node(target, place.counter, following), usable)
            numbers.append(reached if reached >= 0 else dead)
        numbers.append(-1)
        dense = np.array(numbers, np.int32)[moves.index]
        if dead >= 0:
            dense[moves.blocked] = dead
        lit = self._literal(node, usable)[0]
        if lit >= 0:
            dense[lit] = -1
        row = builder.row(dense) if (dense >= 0).any() else -1
        builder.fill(state, row=row, exit_label=pair)

    def _call(self, place: _Calls, other: int, usable: int) -> int:
        product, builder = self._product, self._builder
        called = product.called(place, other)
        assert called is not None
        site = [-1] * len(product.pairs)
        wanted = 0
        for pair in bits_of(product.exits[called]):
            site[pair] = self._state(product.resumed(place, pair), usable)
            if site[pair] >= 0:
                wanted |= 1 << pair
        builder.spend(len(site) // 8)
        return builder.call(self._state(called, wanted), site)

    @memoized
    def _dead(self) -> int:
        return self._builder.state(op=self._builder.op(guard=NEVER))
