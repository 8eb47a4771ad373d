"""Banned words in JSON documents, as one condition on strings and one condition on the text outside strings.

A document is permitted if no banned word occurs in a decoded string or in the raw text (the document as it is
generated). The raw text of a string is its escaped body between quotes. So each string can be checked alone, decoded
and with escapes: `permitted_strings` returns the DFA of the permitted strings. Then a banned word can occur only
outside strings or across a quote. For most words this is impossible. `matters_outside` returns whether it is possible.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator

import numpy as np

from grammar_workers.budget import budget_of
from grammar_workers.dfa import charset
from grammar_workers.dfa.dfa import DEAD, Dfa, intersect, minimize
from grammar_workers.options import Limits
from grammar_workers.pushdown.json_text import ESCAPED_CHARACTERS, encode_string_body

_ESCAPED = sorted(ESCAPED_CHARACTERS)
_UNESCAPED = charset.complement(charset.of(_ESCAPED))
# The pieces of which JSON text outside strings consists.
_OUTSIDE = (*"{}[]:, \t\n\r", *"0123456789+-.", *(f"{n}{e}" for n in range(10) for e in "eE"), "true", "false", "null")


def permitted_strings(restriction: Dfa, limits: Limits) -> Dfa:
    """Return the DFA of the strings that `restriction` accepts both decoded and with JSON escapes.

    An exceeded limit raises LimitExceededError.

    Args:
        restriction: DFA of the permitted texts. It applies to decoded strings and to raw JSON text.
        limits: Bounds on states and on steps of work.

    Returns:
        A DFA over the characters of decoded strings. It is empty if no string is permitted.
    """
    starts = sorted({0, *restriction.starts, *(code for c in _ESCAPED for code in (ord(c), ord(c) + 1))})
    column = [bisect.bisect_right(restriction.starts, start) - 1 for start in starts]
    budget_of(limits).spend(restriction.many_states * (4 * len(_ESCAPED) + len(starts) // 8))
    # The last row stands for the dead state -1.
    table = np.append(restriction.table, np.full((1, len(restriction.starts)), DEAD, np.int32), axis=0)
    moves = table[:-1, column]
    for character in _ESCAPED:
        states = np.arange(restriction.many_states)
        for number in _columns(restriction, encode_string_body(character).decode()):
            states = table[states, number]
        moves[:, bisect.bisect_left(starts, ord(character))] = states
    spelled = minimize(Dfa(tuple(starts), np.ascontiguousarray(moves), restriction.accepting))
    return intersect([restriction, spelled], limits)


def matters_outside(restriction: Dfa, limits: Limits) -> bool:
    """Return whether JSON text can contain a banned word although each of its strings is permitted.

    A string is permitted if the DFA from `permitted_strings` accepts it. For example, the word `true` can occur outside
    strings, but the word `Bob` cannot. An exceeded limit raises LimitExceededError.

    Args:
        restriction: DFA of the permitted texts, which contain no banned word.
        limits: Bounds on steps of work.
    """
    budget = budget_of(limits)
    budget.spend(len(restriction.starts) * (8 + restriction.many_states // 8))
    outside = [_columns(restriction, text) for text in _OUTSIDE]
    escapes = [encode_string_body(character).decode() for character in _ESCAPED]
    inside = [_columns(restriction, text) for text in (*_representatives(restriction), *escapes)]
    quote = _columns(restriction, '"')
    # Each pair has the state of `restriction` after the whole text, and the state after the body of the open string
    # alone (None outside strings).
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
    """Yield one character of each class that `automaton` distinguishes among those that JSON does not escape."""
    seen = set()
    ends = (*automaton.starts[1:], 0x110000)
    for start, end, column in zip(automaton.starts, ends, zip(*automaton.moves, strict=True), strict=True):
        plain = charset.intersect(((start, end - 1),), _UNESCAPED)
        if plain and column not in seen:
            seen.add(column)
            yield chr(plain[0][0])


def _columns(automaton: Dfa, text: str) -> list[int]:
    """Return the column of each character of `text` in the table of `automaton`."""
    return [bisect.bisect_right(automaton.starts, ord(character)) - 1 for character in text]


def _read(automaton: Dfa, state: int, columns: list[int]) -> int:
    for column in columns:
        if state == DEAD:
            return DEAD
        state = automaton.moves[state][column]
    return state
