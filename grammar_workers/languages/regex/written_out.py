"""The parts of a pattern by their lengths once all counts are written out."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

from grammar_workers.languages.regex.parse import Alternatives, Characters, Look, Node, Repeat, Sequence


def length(node: Node) -> int:
    """Return the number of characters of a part when its counts are written out."""
    if isinstance(node, Repeat):
        return length(node.body) * max(node.low if node.high is None else node.high, 1)
    return sum(map(length, parts_of(node))) if isinstance(node, Sequence | Alternatives) else 1


def width(node: Node) -> tuple[float, float]:
    """Return the least and the largest number of characters that a part reads; conditions read none."""
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
    """Return the position of the repetition that is longest when its counts are written out; None without any."""
    found = _repetitions(node)
    return max(found, key=length).position if found else None


def _repetitions(node: Node) -> list[Repeat]:
    inside = [each for part in parts_of(node) for each in _repetitions(part)]
    return [node, *inside] if isinstance(node, Repeat) else inside


def parts_of(node: Node) -> tuple[Node, ...]:
    """Return the parts that a part consists of; () for what consists of none."""
    if isinstance(node, Sequence):
        return node.parts
    if isinstance(node, Alternatives):
        return node.branches
    return (node.body,) if isinstance(node, Repeat | Look) else ()


def with_parts(node: Node, change: Callable[[Node], Node]) -> Node:
    """Return a part whose parts have been changed."""
    if isinstance(node, Sequence):
        return Sequence(tuple(map(change, node.parts)))
    if isinstance(node, Alternatives):
        return Alternatives(tuple(map(change, node.branches)))
    return dataclasses.replace(node, body=change(node.body)) if isinstance(node, Repeat | Look) else node
