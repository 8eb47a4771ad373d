"""Reachability in a graph whose edges a function gives."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

_Node = TypeVar("_Node", bound=Hashable)


def reached(begin: Iterable[_Node], following: Callable[[_Node], Iterable[_Node]]) -> set[_Node]:
    """Return the nodes of `begin` and all that edges lead to from there; each is asked once for what follows it."""
    found = set(begin)
    pending = list(found)
    while pending:
        for node in following(pending.pop()):
            if node not in found:
                found.add(node)
                pending.append(node)
    return found
