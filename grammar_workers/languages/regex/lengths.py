r"""Patterns that repeat one class of characters often, as a pattern without the count and a length.

`^v[0-9a-f]{1,255}$` matches what `^v[0-9a-f]*$` matches in 2 to 256 characters: all else has a fixed length, so the
length tells how often the class was repeated. Lengths are counted in the counter, where counts are written out.
"""

from __future__ import annotations

import itertools

from grammar_workers.budget import remembered
from grammar_workers.dfa.dfa import Dfa
from grammar_workers.languages.regex.compile import compile_tree, is_plain, search_automaton
from grammar_workers.languages.regex.parse import Anchor, Characters, Node, Repeat, Sequence, read_regex
from grammar_workers.languages.regex.written_out import width
from grammar_workers.options import Limits
from grammar_workers.pushdown.automaton import UNBOUNDED, Interval

_LONG = 16
"""Repetitions of fewer characters are written out: a state each is cheaper than a guard."""


@remembered(maxsize=4096)
def pattern_and_lengths(pattern: str, limits: Limits) -> tuple[Dfa, Interval]:
    """`search_automaton` as an automaton and bounds of the lengths of its texts; raises what that raises."""
    parts = _runs(_flat(read_regex(pattern, limits)))
    if len(parts) > 2 and _is_anchor(parts[0], at_end=False) and _is_anchor(parts[-1], at_end=True):
        body = parts[1:-1]
        longest = max(range(len(body)), key=lambda index: _count(body[index]))
        repeat = body[longest]
        others = [_length(part) for index, part in enumerate(body) if index != longest]
        fixed = sum(length for length in others if length is not None)
        # What would be too long when written out may be needed so: below `not`, for one.
        fits = fixed + _count(repeat) < limits.max_regex_states
        if isinstance(repeat, Repeat) and _count(repeat) >= _LONG and fits and None not in others:
            body[longest] = Repeat(repeat.body, 0, None, position=repeat.position)
            automaton = compile_tree(Sequence((parts[0], *body, parts[-1])), search=True, limits=limits)
            most = UNBOUNDED if repeat.high is None else fixed + repeat.high
            return automaton, (fixed + repeat.low, most)
    return search_automaton(pattern, limits), (0, UNBOUNDED)


def _flat(node: Node) -> list[Node]:
    """The parts of a pattern one after the other."""
    if isinstance(node, Sequence):
        return [part for inner in node.parts for part in _flat(inner)]
    return [node]


def _runs(parts: list[Node]) -> list[Node]:
    """The same with characters that follow each other as one repetition: `....` is `.{4}`."""
    runs = []
    for _, group in itertools.groupby(parts, lambda node: node.characters if isinstance(node, Characters) else node):
        node, *others = group
        runs.append(Repeat(node, len(others) + 1, len(others) + 1) if others else node)
    return runs


def _is_anchor(node: Node, *, at_end: bool) -> bool:
    return isinstance(node, Anchor) and node.at_end == at_end


def _count(node: Node) -> int:
    """The repetitions of a single character in a part: the most or, where there is no end, the fewest; else 0."""
    if not isinstance(node, Repeat) or not isinstance(node.body, Characters):
        return 0
    return node.low if node.high is None else node.high


def _length(node: Node) -> int | None:
    """The characters of whatever a part matches; None where that differs, or where it asks more than characters."""
    low, high = width(node)
    return int(low) if low == high and is_plain(node) else None
