"""Sizes of the parts of a regular expression, and functions that traverse its syntax tree."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

from grammar_workers.languages.regex.parse import Alternatives, Characters, Look, Node, Repeat, Sequence


def length(node: Node) -> int:
    """Return the number of characters, classes and conditions in a part of a pattern with repetitions written out.

    `x{2,5}` counts as five copies of `x`, and `x{3,}` as three. At least one copy is counted.
    """
    if isinstance(node, Repeat):
        return length(node.body) * max(node.low if node.high is None else node.high, 1)
    return sum(map(length, parts_of(node))) if isinstance(node, Sequence | Alternatives) else 1


def width(node: Node) -> tuple[float, float]:
    """Return the minimum and maximum number of characters that a part of a pattern reads. The maximum may be infinite.

    Look-arounds, anchors and word boundaries read no characters.
    """
    if isinstance(node, Characters):
        return 1, 1
    if isinstance(node, Look):
        return 0, 0
    lows, highs = zip((0, 0), *map(width, parts_of(node)), strict=True)
    if isinstance(node, Alternatives):
        return min(lows[1:]), max(highs)
    if isinstance(node, Repeat):
        most = math.inf if node.high is None else node.high
        return sum(lows) * node.low, sum(highs) * most if sum(highs) else 0
    return sum(lows), sum(highs)


def largest_part(node: Node) -> int | None:
    """Return the offset of the repetition with the largest `length`, for error messages.

    Args:
        node: The syntax tree of a pattern.

    Returns:
        Offset in the pattern. None if the pattern has no repetition.
    """
    found = _repetitions(node)
    return max(found, key=length).position if found else None


def _repetitions(node: Node) -> list[Repeat]:
    inside = [each for part in parts_of(node) for each in _repetitions(part)]
    return [node, *inside] if isinstance(node, Repeat) else inside


def parts_of(node: Node) -> tuple[Node, ...]:
    """Return the direct children of a node of a pattern's syntax tree, in order; () if there are none."""
    if isinstance(node, Sequence):
        return node.parts
    if isinstance(node, Alternatives):
        return node.branches
    return (node.body,) if isinstance(node, Repeat | Look) else ()


def with_parts(node: Node, change: Callable[[Node], Node]) -> Node:
    """Return a copy of a node of a pattern's syntax tree in which each direct child is replaced.

    Args:
        node: The node; not changed. A node without children is returned unchanged.
        change: Function from a child to its replacement.
    """
    if isinstance(node, Sequence):
        return Sequence(tuple(map(change, node.parts)))
    if isinstance(node, Alternatives):
        return Alternatives(tuple(map(change, node.branches)))
    return dataclasses.replace(node, body=change(node.body)) if isinstance(node, Repeat | Look) else node
