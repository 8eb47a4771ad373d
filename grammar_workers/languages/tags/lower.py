"""Lowers the deterministic automaton of a format to pushdown states.

Values (JSON, for the time being) are rules that are called. Where something else may come in place of one, its first
byte decides: the state that the byte leads to calls the rest of the value.

    may hold text or a value   s -'a'-> s ;  s -'{'-> t ;  t calls what the rule does after '{', returns to r
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from grammar_workers.dfa.dfa import DEAD, Dfa
from grammar_workers.errors import UnsupportedFeatureError
from grammar_workers.languages.tags.automaton import FormatDfa, Value
from grammar_workers.pushdown.builder import PushdownBuilder
from grammar_workers.pushdown.strings import StringLowering

_GOES_ON = frozenset(b"0123456789.eE")
"""What may follow a digit of a number."""
_NUMBER_BEGINS = frozenset(b"-0123456789")


@dataclasses.dataclass(frozen=True)
class ValueRule:
    """A rule that is called: the state in which it begins, and where it stands in the specification.

    `is_open`: a number goes on for as long as it can (`ContentFormat`).
    """

    entry: int
    pointer: str
    is_open: bool = False

    def moves(self, builder: PushdownBuilder) -> dict[int, int]:
        """First byte -> the state after it."""
        row = builder.row_targets(builder.row_of(self.entry))
        return {byte: int(row[byte]) for byte in np.flatnonzero(row != DEAD).tolist()}


def lower(automaton: FormatDfa, values: Mapping[Value, ValueRule], builder: PushdownBuilder) -> int:
    """The first of the states; those in which the text may end carry exit label 0.

    Raises UnsupportedFeatureError where the first byte does not tell what begins.
    """
    states = _text_states(automaton, builder)
    moves = {value: rule.moves(builder) for value, rule in values.items()}
    for state, tokens in enumerate(automaton.tokens):
        builder.spend(len(tokens))
        for first, last, target in tokens:
            builder.token_edge(states[state], first, last, states[target])
    for state, target in automaton.boundaries.items():
        builder.boundary(states[state], states[target])
    for state, following in enumerate(automaton.values):
        if not following:
            continue
        alone = not (automaton.final[state] or automaton.characters[state] or automaton.tokens[state])
        if alone and len(following) == 1:
            ((value, target),) = following.items()
            builder.set_op(states[state], builder.call(values[value].entry, [states[target]]))
            continue
        begun = builder.row_targets(builder.row_of(states[state]))
        for value, target in following.items():
            for byte, inside in moves[value].items():
                if begun[byte] != DEAD:
                    raise UnsupportedFeatureError(
                        f"a value that begins like something else that may come in its place ({chr(byte)!r}); begin "
                        "them differently, or make one JSON Schema of both",
                        pointer=values[value].pointer,
                    )
                begun[byte] = builder.state(op=builder.call(inside, [states[target]]))
        builder.fill(states[state], row=builder.row(begun), exit_label=0 if automaton.final[state] else -1)
    _check_numbers(automaton, values, moves, states, builder)
    return states[0]


def _text_states(automaton: FormatDfa, builder: PushdownBuilder) -> dict[int, int]:
    """The number of each state, its characters and exits filled in; tokens and values are left out.

    Most states of a tag read one letter of a begin or an end: these become literals, the others dense rows.
    """
    letters = {
        state: read for state in range(len(automaton.final)) if (read := _only_letter(automaton, state)) is not None
    }
    numbers: dict[int, int] = {}
    ends = []
    for first in letters:
        state = first
        while state in letters and state not in numbers:
            letter, target = letters[state]
            numbers[state] = builder.state(lit=letter)
            state = target
        if state != first:
            ends.append((builder.state(), state))
    dense = [state for state in range(len(automaton.final)) if state not in numbers]
    entered = {target: None for state in dense for target in automaton.characters[state].values() if target in numbers}
    rows = {state: row for row, state in enumerate([*dense, *entered])}
    table = np.full((len(rows), len(automaton.starts)), DEAD, np.int32)
    for state in dense:
        moves = automaton.characters[state]
        table[rows[state], list(moves)] = [rows[target] for target in moves.values()]
    labels = [*(int(automaton.final[state]) for state in dense), *range(2, 2 + len(entered))]
    known = {label: numbers[state] for label, state in enumerate(entered, 2)}
    if rows:
        laid = StringLowering(builder).raw_states(Dfa(tuple(automaton.starts), table, tuple(labels)), known)
        numbers |= {state: laid[rows[state]] for state in dense}
    for end, state in ends:
        builder.set_op(end, builder.goto(numbers[state]))
    return numbers


def _only_letter(automaton: FormatDfa, state: int) -> tuple[int, int] | None:
    """The ASCII character that is all that a state reads, and where it leads."""
    if automaton.final[state] or automaton.tokens[state] or automaton.values[state]:
        return None
    if len(automaton.characters[state]) != 1:
        return None
    ((one, target),) = automaton.characters[state].items()
    starts = automaton.starts
    letter = starts[one]
    return (letter, target) if letter < 0x80 and one + 1 < len(starts) and starts[one + 1] == letter + 1 else None


def _check_numbers(
    automaton: FormatDfa,
    values: Mapping[Value, ValueRule],
    moves: Mapping[Value, Mapping[int, int]],
    states: Mapping[int, int],
    builder: PushdownBuilder,
) -> None:
    """A number ends where no digit follows: what comes after it may not begin with one, or with the next token."""
    for following in automaton.values:
        for value, target in following.items():
            if _NUMBER_BEGINS.isdisjoint(moves[value]):
                continue
            if target in automaton.boundaries:
                raise UnsupportedFeatureError(
                    "a value that may be a number, before text with a limit in tokens", pointer=values[value].pointer
                )
            if values[value].is_open:
                continue
            begins = set().union(*(moves[after] for after in automaton.values[target]))
            if (only := _only_letter(automaton, target)) is not None:
                begins.add(only[0])
            elif automaton.characters[target]:
                row = builder.row_targets(builder.row_of(states[target]))
                begins |= set(np.flatnonzero(row != DEAD).tolist())
            if found := sorted(begins & _GOES_ON):
                raise UnsupportedFeatureError(
                    f"a value that may be a number, before what a number could go on with ({chr(found[0])!r})",
                    pointer=values[value].pointer,
                )
