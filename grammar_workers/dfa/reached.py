"""Reachability in a graph whose edges a function gives."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence, Set
from typing import TypeVar

_Node = TypeVar("_Node", bound=Hashable)


def reached(begin: Iterable[_Node], following: Callable[[_Node], Iterable[_Node]]) -> Set[_Node]:
    """Return the nodes of `begin` and all that edges lead to from there, in the order in which they are found.

    Each is asked once for what follows it.
    """
    found = dict.fromkeys(begin)
    pending = list(found)
    while pending:
        for node in following(pending.pop()):
            if node not in found:
                found[node] = None
                pending.append(node)
    return found.keys()


def sources_of(targets: Sequence[Iterable[int]]) -> list[list[int]]:
    """Return per node the nodes from which an edge leads there, given per node those that its edges lead to."""
    sources: list[list[int]] = [[] for _ in targets]
    for node, following in enumerate(targets):
        for target in following:
            sources[target].append(node)
    return sources
