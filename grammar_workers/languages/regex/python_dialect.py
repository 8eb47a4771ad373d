r"""Patterns as Python's `re` alone reads them: `\w` is any letter, `.` anything but a line feed, `$` may precede one.

Anchors and word boundaries become look-arounds, so that look-arounds are the only conditions that are left.
"""

from __future__ import annotations

import dataclasses

from grammar_workers.dfa import charset
from grammar_workers.languages.regex.character_class import ANYTHING, agreed
from grammar_workers.languages.regex.parse import (
    NOTHING,
    Alternatives,
    Anchor,
    Characters,
    Look,
    Node,
    Repeat,
    Sequence,
    WordBoundary,
)
from grammar_workers.languages.regex.written_out import parts_of

_ANY = Characters(ANYTHING)
_LINE_FEED = Characters(agreed(charset.of("\n")))
_OTHER = Characters(agreed(charset.complement(charset.of("\n"))))


def as_python(node: Node) -> Node:
    """Return the pattern with classes that both dialects read as Python does, and without anchors."""
    if isinstance(node, Characters):
        return node if node.characters.is_agreed else Characters(agreed(node.characters.python()))
    if isinstance(node, Sequence):
        return Sequence(tuple(map(as_python, node.parts)))
    if isinstance(node, Alternatives):
        return Alternatives(tuple(map(as_python, node.branches)))
    if isinstance(node, Repeat):
        return dataclasses.replace(node, body=as_python(node.body))
    if isinstance(node, Look):
        return Look(as_python(node.body), node.behind, node.negative, node.position)
    if isinstance(node, Anchor):
        return _anchor(node)
    word = Characters(agreed(node.words.python()))
    return Alternatives(tuple(Sequence(pair) for pair in _boundary(node, word)))


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
    if isinstance(node, Look):
        return NOTHING
    if isinstance(node, Sequence):
        return Sequence(tuple(map(without_conditions, node.parts)))
    if isinstance(node, Alternatives):
        return Alternatives(tuple(map(without_conditions, node.branches)))
    if isinstance(node, Repeat):
        return dataclasses.replace(node, body=without_conditions(node.body))
    return node


def first_condition(node: Node) -> Look | None:
    """Return the look-around that stands first, or None."""
    if isinstance(node, Look):
        return node
    return next((found for part in parts_of(node) if (found := first_condition(part))), None)
