"""Graphs of containers without dead ends, and runs of nodes for which one state of the machine can stand."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from grammar_workers.json_schema.containers import Container, Edge, Ending, Node, Rule
from grammar_workers.json_schema.rules import Rules
from grammar_workers.json_schema.verdicts import Label


@dataclasses.dataclass(frozen=True)
class Graph:
    """The nodes that can still end: where they may close (number of the label, conditions), the moves between them that
    are not moves of the node that `skips` names, too, and that node.
    """

    start: Node
    closings: dict[Node, tuple[int, tuple[Ending, ...]]]
    edges: dict[Node, list[Edge]]
    skips: dict[Node, Node]

    @property
    def is_empty(self) -> bool:
        return not any(self.start in table for table in (self.closings, self.edges, self.skips))

    def following(self, node: Node) -> Iterator[Node]:
        """`node`, the node that skips its part, and so on."""
        yield node
        while (skipped := self.skips.get(node)) is not None:
            node = skipped
            yield node


@dataclasses.dataclass
class Run:
    """Nodes that differ only in how many declared names have been passed over.

    All that may follow any of them is in `edges`; part i may follow those whose position is at most i. `last` is the
    position of the last of them.
    """

    edges: list[Edge]
    last: int


def living_graph(
    rules: Rules, rule: Rule, container: Container, labels: tuple[Label, ...], spend: Callable[[int], None]
) -> Graph:
    """The graph of a rule's container as far as it can end with one of `labels`; `spend` counts steps."""
    closings: dict[Node, tuple[int, tuple[Ending, ...]]] = {}
    moves: dict[Node, list[Edge]] = {}
    skips: dict[Node, Node] = {}
    sources: dict[Node, list[Node]] = {}
    cost = 4 * container.width
    for node, edges in rules.explored(container).items():
        spend(cost)
        label, endings = rules.close(rule, container, node)
        if label is not None and label in labels:
            closings[node] = labels.index(label), endings
        skipped = container.skip(node)
        if skipped is not None:
            skips[node] = skipped
            sources.setdefault(skipped, []).append(node)
        moves[node] = edges
        for edge in edges:
            for following in edge.targets.values():
                sources.setdefault(following, []).append(node)
    alive = set(closings)
    pending = list(closings)
    while pending:
        for node in sources.get(pending.pop(), ()):
            if node not in alive:
                alive.add(node)
                pending.append(node)
    living_edges = {}
    for node, options in moves.items():
        kept = []
        for edge in options:
            living = edge.targets
            if not alive.issuperset(living.values()):
                living = {label: following for label, following in living.items() if following in alive}
            if living:
                kept.append(edge if living is edge.targets else edge._replace(targets=living))
        if kept:
            living_edges[node] = kept
    skips = {node: skipped for node, skipped in skips.items() if skipped in alive}
    return Graph(container.start, closings, living_edges, skips)


def runs_of(graph: Graph) -> tuple[dict[Node, Run], dict[Node, Node]]:
    """Runs by their first node, and the first node of the run of every node that a move leads to."""
    entered = dict.fromkeys([graph.start])
    pending = [graph.start]
    seen = {graph.start}
    while pending:
        node = pending.pop()
        targets = [target for edge in graph.edges.get(node, ()) for target in edge.targets.values()]
        entered.update(dict.fromkeys(targets))
        for target in (*targets, *([graph.skips[node]] if node in graph.skips else [])):
            if target not in seen:
                seen.add(target)
                pending.append(target)
    runs: dict[Node, Run] = {}
    first_of: dict[Node, Node] = {}
    # A run begins as early as possible, so that it is as long as possible.
    for first in sorted(entered, key=lambda node: node.place.position):
        if first in first_of:
            continue
        run = runs[first] = Run([], first.place.position)
        is_new = True
        for node in graph.following(first):
            run.edges += graph.edges.get(node, ())
            is_new = is_new and node not in first_of
            if is_new and node in entered:
                run.last = node.place.position
            if is_new:
                first_of[node] = first
    return runs, first_of
