"""Restrictions of all text (banned words) as they concern JSON: its strings, and the text around them.

A document keeps to it when every decoded string does, and the raw text does. The raw text of a string is its escaped
body between quotes; whether that keeps to the restriction is again a regular question about the decoded string. What is
left are occurrences outside of strings or over their quotes, and for most words there can be none.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator

from grammar_workers.budget import budget_of
from grammar_workers.dfa import charset
from grammar_workers.dfa.dfa import DEAD, Dfa, intersect, minimize
from grammar_workers.options import Limits
from grammar_workers.pushdown.json_text import SHORT_ESCAPES, encode_string_body

_ESCAPED = sorted({chr(code) for code in range(0x20)} | set(SHORT_ESCAPES))
_UNESCAPED = charset.complement(charset.of(_ESCAPED))
_OUTSIDE = (*"{}[]:, \t\n\r", *"0123456789+-.", *(f"{n}{e}" for n in range(10) for e in "eE"), "true", "false", "null")
"""The characters of JSON text outside of strings."""


def permitted_strings(restriction: Dfa, limits: Limits) -> Dfa:
    """The decoded strings that keep to `restriction`, and so does their escaped spelling."""
    starts = sorted({0, *restriction.starts, *(code for c in _ESCAPED for code in (ord(c), ord(c) + 1))})
    column = [bisect.bisect_right(restriction.starts, start) - 1 for start in starts]
    budget_of(limits).spend(restriction.many_states * (4 * len(_ESCAPED) + len(starts) // 8))
    escapes = [
        (bisect.bisect_left(starts, ord(character)), _columns(restriction, encode_string_body(character).decode()))
        for character in _ESCAPED
    ]
    moves = []
    for state in range(restriction.many_states):
        row = [restriction.moves[state][number] for number in column]
        for index, spelling in escapes:
            row[index] = _read(restriction, state, spelling)
        moves.append(row)
    spelled = minimize(Dfa.of(starts, moves, restriction.accepting))
    return intersect([restriction, spelled], limits)


def matters_outside(restriction: Dfa, limits: Limits) -> bool:
    """Whether JSON text can break `restriction` although each of its strings is one of `permitted_strings`.

    Explores pairs: where the whole text stands in `restriction`, and where the body of the open string does alone.
    """
    budget = budget_of(limits)
    budget.spend(len(restriction.starts) * (8 + restriction.many_states // 8))
    outside = [_columns(restriction, text) for text in _OUTSIDE]
    escapes = [encode_string_body(character).decode() for character in _ESCAPED]
    inside = [_columns(restriction, text) for text in (*_representatives(restriction), *escapes)]
    quote = _columns(restriction, '"')
    pairs: list[tuple[int, int | None]] = [(0, None)]
    found = set(pairs)
    for whole, body in pairs:
        budget.spend(3 * (len(outside) if body is None else 2 * len(inside)))
        if body is None:
            if not restriction.accepting[whole]:
                return True
            steps: list[tuple[list[int], int | None]] = [(text, None) for text in outside]
            steps.append((quote, 0))
        else:
            steps = [(text, reached) for text in inside if (reached := _read(restriction, body, text)) != DEAD]
            if restriction.accepting[body]:
                steps.append((quote, None))
        for text, following in steps:
            reached = _read(restriction, whole, text)
            if reached == DEAD:
                return True
            if (reached, following) not in found:
                found.add((reached, following))
                pairs.append((reached, following))
    return False


def _representatives(automaton: Dfa) -> Iterator[str]:
    """One character that JSON strings hold unescaped for each way in which the automaton treats characters."""
    seen = set()
    ends = (*automaton.starts[1:], 0x110000)
    for start, end, column in zip(automaton.starts, ends, zip(*automaton.moves, strict=True), strict=True):
        plain = charset.intersect(((start, end - 1),), _UNESCAPED)
        if plain and column not in seen:
            seen.add(column)
            yield chr(plain[0][0])


def _columns(automaton: Dfa, text: str) -> list[int]:
    """The column of each character of a text in the rows of an automaton."""
    return [bisect.bisect_right(automaton.starts, ord(character)) - 1 for character in text]


def _read(automaton: Dfa, state: int, columns: list[int]) -> int:
    for column in columns:
        if state == DEAD:
            return DEAD
        state = automaton.moves[state][column]
    return state
