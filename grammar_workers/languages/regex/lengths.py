"""Length bounds instead of repetition counts, for patterns that repeat one class of characters often.

`^v[0-9a-f]{1,255}$` matches the same texts as `^v[0-9a-f]*$` with 2 to 256 characters. All other parts have a fixed
length, so the length of the text determines the number of repetitions. The counter of the pushdown automaton counts
lengths. A repetition count in a pattern would need a state for each repetition.
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

# Minimum count that becomes a length. Smaller counts are written out: a state for each is cheaper than a guard.
_LONG = 16


@remembered(maxsize=4096)
def pattern_and_lengths(pattern: str, limits: Limits) -> tuple[Dfa, Interval]:
    """Compile a pattern to a DFA and bounds on the length of the text.

    A text matches if the DFA accepts it and its length is within the bounds. For example, `^a{20,90}$` becomes the DFA
    of `^a*$` and the bounds (20, 90). `search_automaton` returns a DFA for the pattern without bounds, which may need
    many more states. Errors are raised as by `compile_regex`.

    Args:
        pattern: The regular expression, which may match anywhere in the text.
        limits: Bounds on states and on steps of work.

    Returns:
        The DFA, and the pair of minimum and maximum number of characters of the text. The pair is (0, UNBOUNDED), which
        means no bounds, if the pattern has no large count that a length can replace.
    """
    parts = _runs(_flat(read_regex(pattern, limits)))
    if len(parts) > 2 and _is_anchor(parts[0], at_end=False) and _is_anchor(parts[-1], at_end=True):
        body = parts[1:-1]
        longest = max(range(len(body)), key=lambda index: _count(body[index]))
        repeat = body[longest]
        others = [_length(part) for index, part in enumerate(body) if index != longest]
        fixed = sum(length for length in others if length is not None)
        # The count may have to be written out later, for example below `not`, so it must fit the limit.
        fits = fixed + _count(repeat) < limits.max_regex_states
        if isinstance(repeat, Repeat) and _count(repeat) >= _LONG and fits and None not in others:
            body[longest] = Repeat(repeat.body, 0, None, position=repeat.position)
            automaton = compile_tree(Sequence((parts[0], *body, parts[-1])), search=True, limits=limits)
            most = UNBOUNDED if repeat.high is None else fixed + repeat.high
            return automaton, (fixed + repeat.low, most)
    return search_automaton(pattern, limits), (0, UNBOUNDED)


def _flat(node: Node) -> list[Node]:
    """Return the parts of a pattern in order, without nested sequences."""
    if isinstance(node, Sequence):
        return [part for inner in node.parts for part in _flat(inner)]
    return [node]


def _runs(parts: list[Node]) -> list[Node]:
    """Return the parts with adjacent equal characters joined into one repetition: `....` is `.{4}`."""
    runs = []
    for _, group in itertools.groupby(parts, lambda node: node.characters if isinstance(node, Characters) else node):
        node, *others = group
        runs.append(Repeat(node, len(others) + 1, len(others) + 1) if others else node)
    return runs


def _is_anchor(node: Node, *, at_end: bool) -> bool:
    return isinstance(node, Anchor) and node.at_end == at_end


def _count(node: Node) -> int:
    """Return the count of a repeated class: the maximum or, if there is none, the minimum; 0 for any other part."""
    if not isinstance(node, Repeat) or not isinstance(node.body, Characters):
        return 0
    return node.low if node.high is None else node.high


def _length(node: Node) -> int | None:
    """Return the number of characters of every match of a part; None if it varies or if there is a condition."""
    low, high = width(node)
    return int(low) if low == high and is_plain(node) else None
