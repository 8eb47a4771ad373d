"""Graphs of containers without dead ends, and runs of nodes for which one state of the machine can stand."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import NamedTuple

from grammar_workers.languages.json_schema.labels import Label
from grammar_workers.languages.json_schema.solve.derivatives import Container, Ending, Node, Rule
from grammar_workers.languages.json_schema.solve.nonempty import Rules


class Edge(NamedTuple):
    """A move as far as it leads to an end: reading `part` calls `rule`, whose label picks the one of `targets` that is
    entered at `entry`.
    """

    part: int
    rule: Rule
    entry: int
    targets: dict[Label, Node]


@dataclasses.dataclass(frozen=True)
class Graph:
    """The nodes that can still end: where they may close (number of the label, conditions), the moves between them that
    are not moves of the node that `skips` names, too, and that node, which is entered behind their last position.
    """

    start: Node
    closings: dict[Node, tuple[int, tuple[Ending, ...]]]
    edges: dict[Node, list[Edge]]
    skips: dict[Node, Node]

    @property
    def is_empty(self) -> bool:
        return not any(self.start in table for table in (self.closings, self.edges, self.skips))

    def following(self, node: Node, entry: int) -> Iterator[tuple[Node, int]]:
        """`node`, the node that passes over its last part, and so on, and where they are entered."""
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
    rules: Rules, rule: Rule, container: Container, labels: tuple[Label, ...], spend: Callable[[int], None]
) -> Graph:
    """The graph of a rule's container as far as it can end with one of `labels`; `spend` counts steps."""
    closings: dict[Node, tuple[int, tuple[Ending, ...]]] = {}
    skips: dict[Node, Node] = {}
    # What leads to a node: from which node, at which of its positions at the latest, and where it enters.
    sources: dict[Node, list[tuple[Node, int, int]]] = {}
    cost = 4 * container.width
    explored = rules.explored(container)
    for node, moves in explored.items():
        spend(cost * max(1, len(moves)))
        label, endings = rules.close(rule, container, node)
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
    while pending:
        reached = pending.pop()
        for node, latest, entry in sources.get(reached, ()):
            if entry <= living[reached] and latest > living.get(node, -1):
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
