"""Graphs of arrays and objects without dead ends, and groups of nodes that share one state of the pushdown automaton.

A *node* has the formulas that are undecided after some properties of an object, or some items of an array. A *position*
is the index of the next declared name. A node covers a range of positions.

    {"type": "object", "properties": {"a": X, "b": Y, "c": Z}, "required": ["b"], "minProperties": 2}

Property "a" may be skipped. If "b" is skipped, the object can no longer end. So the first node covers positions 0 and
1, before "a" and before "b". Both positions form one *run* with one state. In this state, the counter determines which
names may follow.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from grammar_workers.languages.json_schema.labels import Label
from grammar_workers.languages.json_schema.solve.derivatives import Demand, DerivativeGraph, Ending, Node
from grammar_workers.languages.json_schema.solve.solver import Solver


class Edge(NamedTuple):
    """Move of a `Graph`: it reads one item or property, after which the array or object can still end.

    A node has the formulas that are undecided after some items or properties.

    Attributes:
        part: Index of the item or of the declared property. -1 - c for an undeclared property with a name of class c.
        demand: The demand (formula to satisfy, and formulas to test) on the value.
        entry: Position (index of the next item or declared name) at which the next nodes are entered.
        targets: Label of the value (truth values of the tested formulas) -> next node.
    """

    part: int
    demand: Demand
    entry: int
    targets: dict[Label, Node]


@dataclasses.dataclass(frozen=True)
class Graph:
    """Graph of the arrays or objects that satisfy one demand (formula that a value must satisfy).

    Nodes from which the array or object cannot end are left out.

    A node has the formulas that are undecided after some items or properties. It covers a range of positions (indices
    of the next item or declared name).

    Attributes:
        start: The node before all items or properties, entered at position 0.
        closings: Node at which the array or object may end -> pair (index, conditions). The index is a position in the
            list of allowed labels: the array or object gets this label, which has the truth values of the formulas that
            are tested in it. It may end there if at least one of the conditions holds for its items or properties.
        edges: Node -> its moves (each reads one item or property), in order.
        skips: Node -> next node, if the declared name at the node's last position may be skipped. The next node is
            entered at the position after the skipped name. Its moves are also possible from the skipping node, but
            `edges` lists them only under the next node.
    """

    start: Node
    closings: dict[Node, tuple[int, tuple[Ending, ...]]]
    edges: dict[Node, list[Edge]]
    skips: dict[Node, Node]

    @property
    def is_empty(self) -> bool:
        """True if no array or object exists, because no path leads from the start node to an end."""
        return not any(self.start in table for table in (self.closings, self.edges, self.skips))

    def following(self, node: Node, entry: int) -> Iterator[tuple[Node, int]]:
        """Yield a node, and then each node that is reached from it by skipping declared names.

        A node has the formulas that are undecided after some items or properties. It covers a range of positions
        (indices of the next item or declared name). The skipped name is always the one at the last position of a node.

        Args:
            node: The first node.
            entry: Position at which `node` is entered.

        Yields:
            Pairs (node, position at which the node is entered).
        """
        yield node, entry
        while (skipped := self.skips.get(node)) is not None:
            entry = node.last + 1
            node = skipped
            yield node, entry


@dataclasses.dataclass
class Run:
    """Chain of nodes, each reached from the one before it by skipping a declared name. They share one pushdown state.

    A node has the formulas that are undecided after some properties. A position is the index of the next declared name.
    To skip a name means that the object has no property with this name.

    Attributes:
        edges: The moves (each reads one property) of all nodes in the chain. The move that reads declared name i is
            possible while the position is at most i.
        first: First position at which a node of the chain is entered.
        last: Last position at which a node of the chain is entered.
    """

    edges: list[Edge]
    first: int
    last: int


def living_graph(
    solver: Solver, demand: Demand, container: DerivativeGraph, labels: tuple[Label, ...], spend: Callable[[int], None]
) -> Graph:
    """Return the graph of the arrays or objects of a demand, without nodes that cannot end with one of `labels`.

    A node has the formulas that are undecided after some items or properties. Moves to removed nodes are removed, too.

    Args:
        solver: The solver that has solved `demand`.
        demand: A formula that a value must satisfy, with formulas to test.
        container: The unrestricted graph of the arrays or objects of `demand`.
        labels: Allowed labels. A label is the tuple of the truth values of the tested formulas.
        spend: Counts steps of work; may raise LimitExceededError.
    """
    closings: dict[Node, tuple[int, tuple[Ending, ...]]] = {}
    skips: dict[Node, Node] = {}
    # Moves to each node: (source node, the latest of its positions that allows the move, entry position).
    sources: dict[Node, list[tuple[Node, int, int]]] = {}
    cost = 4 * len(container.atoms)
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
    living = _living(closings, sources)
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


def _living(endings: Iterable[Node], sources: dict[Node, list[tuple[Node, int, int]]]) -> dict[Node, int]:
    """Return the last position at which each node can be entered and still end. All earlier positions can end as well.

    `sources` has the moves to each node, and is used up: source node, latest position for the move, entry position.
    """
    living = {node: node.last for node in endings}
    pending = list(living)
    # Sorted by entry position, so that each move is examined once, however often the limit of its target rises.
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
    return living


def runs_of(graph: Graph) -> tuple[dict[Node, Run], dict[tuple[Node, int], Node]]:
    """Group the nodes of a graph into runs, each of which can share one pushdown state.

    A run is a chain of nodes, each reached from the one before it by skipping a declared name.

    Args:
        graph: Graph of the objects of a demand, without dead ends.

    Returns:
        Two dicts: first node of a run -> run, and (node, position) -> first node of the run that contains the node. The
        position is the one at which a move enters the node. The start node is entered at position 0.
    """
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
