"""Conversion of number DFAs to pushdown states. A number ends before the first byte that cannot continue it."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from grammar_workers.dfa.dfa import Dfa
from grammar_workers.languages.json_schema.solve.number_dfa import MAX_DIGITS, digits_needed, parts_and_costs
from grammar_workers.pushdown.builder import PushdownBuilder
from grammar_workers.pushdown.instructions import STATE_EXIT, STATE_INSTRUCTION, STATE_ROW


def number_moves(builder: PushdownBuilder, automaton: Dfa) -> NDArray[np.int32]:
    """Append pushdown states that read the numbers of a DFA, and return the moves over the first byte.

    The counter of the pushdown automaton holds the number of digits before the point, at most MAX_DIGITS. A digit is
    allowed only if the number can still be finished within this limit. In a state where the number may end, the
    automaton returns to the caller with a label: the value of `automaton.accepting`, minus 1.

    Args:
        builder: The pushdown automaton to extend.
        automaton: A DFA over the characters of numbers.

    Returns:
        Next state for each first byte, int32 [256]; -1 if no number begins with the byte.
    """
    layout = _layout(automaton)
    builder.note_label(max(layout.labels, default=-1))
    first = builder.empty_states(len(layout.labels))
    moves = np.where(layout.moves >= 0, layout.moves + np.int32(first), np.int32(-1))
    rows = np.array(builder.rows(moves[1:]), np.int64)[layout.rows]
    ops = {
        (left, counts): builder.op(
            guard=[(0, left)] if left < MAX_DIGITS else (), increment_to=MAX_DIGITS if counts else None
        )
        for left, counts in dict.fromkeys(layout.kinds)
    }
    numbers = [ops[kind] for kind in layout.kinds]
    builder.fill_states(first, {STATE_ROW: rows, STATE_EXIT: layout.labels, STATE_INSTRUCTION: numbers})
    return moves[0]


class _Layout(NamedTuple):
    """The states of a number automaton, numbered from 0.

    Attributes:
        moves: Moves over the first byte, then the rows of the states, int32 [1 + rows, 256].
        rows: Row of each state.
        labels: Exit label of each state; -1 if it does not accept.
        kinds: For each state the largest number of digits before the point with which it may be entered, and whether
            entering it counts a digit.
    """

    moves: NDArray[np.int32]
    rows: list[int]
    labels: list[int]
    kinds: list[tuple[int, int]]


@functools.lru_cache(maxsize=256)
def _layout(automaton: Dfa) -> _Layout:
    # A state may be entered in each part of a number, and before the point by a digit, which counts, or a sign, which
    # does not; an exponent mark has a guard of its own. So an entry is (state, part, cost). Entry -1 leads nowhere.
    parts, costs = parts_and_costs(automaton)
    prices = sorted({*costs.ravel().tolist()})
    kinds = parts * len(prices) + np.searchsorted(prices, costs)
    many = 3 * len(prices)
    entries = np.where(automaton.table >= 0, many * automaton.table + kinds[:, None, :], -1)
    reached = entries.tolist()
    known: dict[int, int] = {}
    pending: list[int] = []
    order: list[int] = []
    part, source = 0, 0
    while True:
        for entry in reached[part][source]:
            if entry >= 0 and entry not in known:
                known[entry] = len(known)
                pending.append(entry)
        if not pending:
            break
        order.append(pending.pop())
        source, kind = divmod(order[-1], many)
        part = kind // len(prices)
    entered = np.array(list(known), np.int64)
    targets, kind_of = np.divmod(entered, many)
    labels = np.array(automaton.accepting, np.int32)[targets] - 1
    state_of = np.full(entries.max(initial=0) + 2, -1, np.int32)
    state_of[entered] = np.arange(len(entered))
    byte_classes = np.searchsorted(automaton.starts, np.arange(128), side="right") - 1
    sources, parts_of = np.divmod(np.array(order, np.int64), many)
    moves = np.full((1 + len(order), 256), -1, np.int32)
    moves[0, :128] = state_of[entries[0, 0]][byte_classes]
    moves[1:, :128] = state_of[entries[parts_of // len(prices), sources]][:, byte_classes]
    rows = np.empty(len(order), np.int64)
    rows[[known[entry] for entry in order]] = np.arange(len(order))
    paid = np.array(prices)[kind_of % len(prices)]
    left = MAX_DIGITS - paid - digits_needed(automaton)[kind_of // len(prices), targets]
    return _Layout(moves, rows.tolist(), labels.tolist(), list(zip(left.tolist(), (paid == 1).tolist(), strict=True)))
