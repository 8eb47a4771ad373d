r"""Patterns as Python's `re` alone reads them: `\w` is any letter, `.` anything but a line feed, `$` may precede one.

Anchors and word boundaries become look-arounds, so that look-arounds are the only conditions that are left.
"""

from __future__ import annotations

from grammar_workers.dfa import charset
from grammar_workers.languages.regex import parse
from grammar_workers.languages.regex.character_class import ANYTHING, agreed
from grammar_workers.languages.regex.written_out import parts_of, with_parts

_ANY = parse.Characters(ANYTHING)
_LINE_FEED = parse.Characters(agreed(charset.of("\n")))
_OTHER = parse.Characters(agreed(charset.complement(charset.of("\n"))))


def as_python(node: parse.Node) -> parse.Node:
    """Return the pattern with classes that both dialects read as Python does, and without anchors."""
    if isinstance(node, parse.Characters):
        return node if node.characters.is_agreed else parse.Characters(agreed(node.characters.python()))
    if isinstance(node, parse.Anchor):
        return _anchor(node)
    if isinstance(node, parse.WordBoundary):
        word = parse.Characters(agreed(node.words.python()))
        return parse.Alternatives(tuple(parse.Sequence(pair) for pair in _boundary(node, word)))
    return with_parts(node, as_python)


def _anchor(node: parse.Anchor) -> parse.Node:
    if node.at_end:
        more = parse.Alternatives((_OTHER, parse.Sequence((_LINE_FEED, _ANY))))
        return parse.Look(more, False, True, node.position)
    return parse.Look(_ANY, True, True, node.position)


def _boundary(node: parse.WordBoundary, word: parse.Characters) -> list[tuple[parse.Node, parse.Node]]:
    """Conditions before and after a boundary: one side is part of a word (with `negative`: both or none)."""
    return [
        (
            parse.Look(word, True, not before, node.position),
            parse.Look(word, False, before != node.negative, node.position),
        )
        for before in (True, False)
    ]


def without_conditions(node: parse.Node) -> parse.Node:
    """Return the pattern with every look-around taken out."""
    return parse.NOTHING if isinstance(node, parse.Look) else with_parts(node, without_conditions)


def first_condition(node: parse.Node) -> parse.Look | None:
    """Return the look-around that stands first, or None."""
    if isinstance(node, parse.Look):
        return node
    return next((found for part in parts_of(node) if (found := first_condition(part))), None)
