"""Reachability in a graph whose edges are given by a function."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence, Set
from typing import TypeVar

_Node = TypeVar("_Node", bound=Hashable)


def reached(begin: Iterable[_Node], following: Callable[[_Node], Iterable[_Node]]) -> Set[_Node]:
    """Return the nodes of `begin` and all nodes that are reachable from them, as a set in the order of discovery.

    Args:
        begin: Nodes of a graph.
        following: Returns the nodes to which the edges of a node lead. It is called once for each reachable node.
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
    """Return for each node of a graph the nodes with an edge to it, ascending. A node occurs once per edge.

    Args:
        targets: `targets[node]` has the targets of the node's edges. Nodes are numbered from 0.
    """
    sources: list[list[int]] = [[] for _ in targets]
    for node, following in enumerate(targets):
        for target in following:
            sources[target].append(node)
    return sources
