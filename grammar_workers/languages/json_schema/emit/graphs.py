"""Derivative graphs without dead ends, and runs of nodes for which one state of the pushdown automaton can stand.

    {"type": "object", "properties": {"a": X, "b": Y, "c": Z}, "required": ["b"], "minProperties": 2}

A required name that is passed over leaves nothing to be satisfied, so the node at position 0 lives up to position 1:
it can be entered before "a" or before "b", and still end. Both positions are one run, of one state, whose counter tells
which of the names may still come.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import NamedTuple

from grammar_workers.languages.json_schema.labels import Label
from grammar_workers.languages.json_schema.solve.derivatives import Demand, DerivativeGraph, Ending, Node
from grammar_workers.languages.json_schema.solve.solver import Solver


class Edge(NamedTuple):
    """A move without dead ends: `part` calls `demand`, whose label picks one of `targets`, entered at `entry`."""

    part: int
    demand: Demand
    entry: int
    targets: dict[Label, Node]


@dataclasses.dataclass(frozen=True)
class Graph:
    """The nodes of a container from which it can still end, beginning at `start` in position 0.

    `closings`: the nodes at which it may end, with the index of the label and the conditions, of which one must hold.
    `edges`: the moves of each node, in order.
    `skips`: the node that is left when the part at a node's last position is passed over. It is entered behind that
    position; its moves may follow the node, too, and are not repeated among the `edges` of the node.
    """

    start: Node
    closings: dict[Node, tuple[int, tuple[Ending, ...]]]
    edges: dict[Node, list[Edge]]
    skips: dict[Node, Node]

    @property
    def is_empty(self) -> bool:
        return not any(self.start in table for table in (self.closings, self.edges, self.skips))

    def following(self, node: Node, entry: int) -> Iterator[tuple[Node, int]]:
        """`node`, the node that passing over its last part leaves, and so on, each with its entry."""
        yield node, entry
        while (skipped := self.skips.get(node)) is not None:
            entry = node.last + 1
            node = skipped
            yield node, entry


@dataclasses.dataclass
class Run:
    """Nodes that differ only in which declared names have been passed over, entered at `first` to `last`.

    All that may follow any of them is in `edges`; part i may follow where the position is at most i.
    """

    edges: list[Edge]
    first: int
    last: int


def living_graph(
    solver: Solver, demand: Demand, container: DerivativeGraph, labels: tuple[Label, ...], spend: Callable[[int], None]
) -> Graph:
    """The graph of a demand's container as far as it can end with one of `labels`; `spend` counts steps."""
    closings: dict[Node, tuple[int, tuple[Ending, ...]]] = {}
    skips: dict[Node, Node] = {}
    # What leads to a node: from which node, at which of its positions at the latest, and where it enters.
    sources: dict[Node, list[tuple[Node, int, int]]] = {}
    cost = 4 * container.width
    explored = solver.explored(container)
    for node, moves in explored.items():
        spend(cost * max(1, len(moves)))
        label, endings = solver.endings(demand, container, node)
        if label is not None and label in labels:
            closings[node] = labels.index(label), endings
        skipped = container.skip(node)
        if skipped is not None:
            skips[node] = skipped
            sources.setdefault(skipped, []).append((node, node.last, node.last + 1))
        for move in moves:
            latest = node.last if move.part < 0 else min(move.part, node.last)
            for following in move.targets.values():
                if following is not None and following is not node:
                    sources.setdefault(following, []).append((node, latest, move.entry))
    # Until which position each node can be entered and still end: what may follow later may follow earlier, too.
    living = {node: node.last for node in closings}
    pending = list(closings)
    # In the order of the positions where they enter, so that each is looked at once however often its target changes.
    for waiting in sources.values():
        waiting.sort(key=lambda source: -source[2])
    while pending:
        reached = pending.pop()
        waiting = sources.get(reached, [])
        while waiting and waiting[-1][2] <= living[reached]:
            node, latest, _ = waiting.pop()
            if latest > living.get(node, -1):
                living[node] = latest
                pending.append(node)
    edges: dict[Node, list[Edge]] = {}
    for node, moves in explored.items():
        kept = []
        for part, child, entry, _, _, targets in moves:
            alive = {label: to for label, to in targets.items() if to is not None and entry <= living.get(to, -1)}
            if alive:
                kept.append(Edge(part, child, entry, alive))
        if kept:
            edges[node] = kept
    skips = {node: skipped for node, skipped in skips.items() if node.last < living.get(skipped, -1)}
    return Graph(container.start, closings, edges, skips)


def runs_of(graph: Graph) -> tuple[dict[Node, Run], dict[tuple[Node, int], Node]]:
    """Runs by their first node, and the first node of the run of every node and position at which a move enters it."""
    entered: dict[Node, dict[int, None]] = {graph.start: {0: None}}
    for edges in graph.edges.values():
        for edge in edges:
            for target in edge.targets.values():
                entered.setdefault(target, {})[edge.entry] = None
    runs: dict[Node, Run] = {}
    first_of: dict[tuple[Node, int], Node] = {}
    # A run begins as early as possible, so that it is as long as possible.
    for node, first in sorted(((node, min(found)) for node, found in entered.items()), key=lambda item: item[1]):
        if (node, first) in first_of:
            continue
        run = runs[node] = Run([], first, first)
        for reached, entry in graph.following(node, first):
            run.edges += [edge for edge in graph.edges.get(reached, ()) if edge.part < 0 or edge.part >= entry]
            for position in entered.get(reached, ()):
                if position >= entry and (reached, position) not in first_of:
                    first_of[reached, position] = node
                    run.last = max(run.last, position)
    return runs, first_of
