r"""Patterns as Python's `re` alone reads them: `\w` is any letter, `.` anything but a line feed, `$` may precede one.

Anchors and word boundaries become look-arounds, so that look-arounds are the only conditions that are left.
"""

from __future__ import annotations

from grammar_workers.dfa import charset
from grammar_workers.languages.regex.character_class import ANYTHING, agreed
from grammar_workers.languages.regex.parse import (
    NOTHING,
    Alternatives,
    Anchor,
    Characters,
    Look,
    Node,
    Sequence,
    WordBoundary,
)
from grammar_workers.languages.regex.written_out import parts_of, with_parts

_ANY = Characters(ANYTHING)
_LINE_FEED = Characters(agreed(charset.of("\n")))
_OTHER = Characters(agreed(charset.complement(charset.of("\n"))))


def as_python(node: Node) -> Node:
    """Return the pattern with classes that both dialects read as Python does, and without anchors."""
    if isinstance(node, Characters):
        return node if node.characters.is_agreed else Characters(agreed(node.characters.python()))
    if isinstance(node, Anchor):
        return _anchor(node)
    if isinstance(node, WordBoundary):
        word = Characters(agreed(node.words.python()))
        return Alternatives(tuple(Sequence(pair) for pair in _boundary(node, word)))
    return with_parts(node, as_python)


def _anchor(node: Anchor) -> Node:
    if node.at_end:
        more = Alternatives((_OTHER, Sequence((_LINE_FEED, _ANY))))
        return Look(more, False, True, node.position)
    return Look(_ANY, True, True, node.position)


def _boundary(node: WordBoundary, word: Characters) -> list[tuple[Node, Node]]:
    """Conditions before and after a boundary: one side is part of a word (with `negative`: both or none)."""
    return [
        (Look(word, True, not before, node.position), Look(word, False, before != node.negative, node.position))
        for before in (True, False)
    ]


def without_conditions(node: Node) -> Node:
    """Return the pattern with every look-around taken out."""
    return NOTHING if isinstance(node, Look) else with_parts(node, without_conditions)


def first_condition(node: Node) -> Look | None:
    """Return the look-around that stands first, or None."""
    if isinstance(node, Look):
        return node
    return next((found for part in parts_of(node) if (found := first_condition(part))), None)
