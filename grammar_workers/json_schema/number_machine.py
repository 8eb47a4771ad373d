"""Lowers number automata to machine states that end where the next byte belongs to whatever follows the number."""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from grammar_workers.character_automaton import CharacterAutomaton
from grammar_workers.machine_builder import MachineBuilder
from grammar_workers.machine_fragment import shared
from grammar_workers.number_automaton import MAX_DIGITS, digits_needed
from grammar_workers.utf8_shapes import RowShape


def number_moves(builder: MachineBuilder, automaton: CharacterAutomaton) -> NDArray[np.int32]:
    """Append states that read the automaton's language; the moves over its first byte, int32 [256] of states or -1.

    The register counts digits, at most MAX_DIGITS: no digit is read after which the number could not be finished.
    Accepting states exit with their label.
    """
    return shared(builder, ("number", automaton), functools.partial(_lay_out, automaton=automaton))


def _lay_out(builder: MachineBuilder, automaton: CharacterAutomaton) -> NDArray[np.int32]:
    needed = digits_needed(automaton)
    # A state may be entered by a digit, which counts, or by a sign, a point or an exponent mark, which does not.
    states: dict[tuple[int, bool], int] = {}
    pending: list[tuple[int, bool]] = []

    def enter(target: int, by_digit: bool) -> int:
        known = states.get((target, by_digit))
        if known is None:
            left = MAX_DIGITS - needed[target]
            op = builder.op(guard=[(0, left - by_digit)], increment_to=MAX_DIGITS if by_digit else None)
            label = automaton.accepting[target] - 1
            builder.note_label(label)
            known = states[target, by_digit] = builder.state(op=op, exit_label=label)
            pending.append((target, by_digit))
        return known

    def moves_of(source: int) -> NDArray[np.int32]:
        targets, shape = automaton.row(source)
        ways, slots = _ways(shape)
        return np.array([-1, *[enter(targets[number], by_digit) for number, by_digit in ways]], np.int32)[slots]

    moves = moves_of(0)
    while pending:
        source, by_digit = pending.pop()
        state = states[source, by_digit]
        builder.fill(
            state,
            row=builder.row(moves_of(source)),
            op=builder.op_of(state),
            exit_label=automaton.accepting[source] - 1,
        )
    return moves


@functools.lru_cache(maxsize=256)
def _ways(shape: RowShape) -> tuple[list[tuple[int, bool]], NDArray[np.intp]]:
    """The targets of a row, each with whether it is reached by a digit, and per byte the place in [no target, *those].

    Only digits form runs: signs, points and exponent marks stand alone.
    """
    ways: dict[tuple[int, bool], int] = {}
    slots = np.zeros(256, np.intp)
    for first, last, number in shape.ranges:
        slots[first : last + 1] = ways.setdefault((number, chr(first).isdecimal()), len(ways) + 1)
    return list(ways), slots
