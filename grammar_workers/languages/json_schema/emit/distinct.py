"""Containers whose parts must differ: at no time may the only parts that can come be those that have come before.

Wherever a container may not end, enough values, or names, must be left for another part. This is checked when it is
emitted: what cannot be shown is refused, for the text would have no end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from grammar_workers.dfa.reached import reached
from grammar_workers.languages.json_schema.assertions import PropertyCount
from grammar_workers.languages.json_schema.emit.graphs import Edge, Graph
from grammar_workers.languages.json_schema.solve.arrays import Arrays, PlainArray
from grammar_workers.languages.json_schema.solve.derivatives import Demand, Node
from grammar_workers.languages.json_schema.solve.objects import Objects
from grammar_workers.languages.json_schema.solve.sizes import ENOUGH, NotDistinctError
from grammar_workers.languages.json_schema.solve.solver import Solver

_FEW_ITEMS = "it is not certain that another item is left wherever one must come: uniqueItems beside these keywords"
_FEW_NAMES = "it is not certain that another property name is left wherever one must come"


def check_items(solver: Solver, array: Demand, plain: PlainArray) -> None:
    """Raise NotDistinctError unless each item of a plain array that must come has more values than there are items
    before it."""
    for position, demand in enumerate(plain.prefix[: plain.minimum]):
        _check_item(solver, array, solver.size(demand).least > position)
    if plain.minimum > len(plain.prefix):
        _check_item(solver, array, solver.size(plain.items).least >= plain.minimum)


def has_endless_items(solver: Solver, plain: PlainArray, longest: int | None) -> bool:
    """Whether all items of a plain array behind the first one have more values than any text has room for."""
    items = [*plain.prefix[1:longest]]
    if longest is None or longest > len(plain.prefix):
        items.append(plain.items)
    return all(solver.size(demand).least >= ENOUGH for demand in dict.fromkeys(items))


def has_endless_names(container: Objects) -> bool:
    """Whether each class of free names has more than any text has room for."""
    return all(container.name_classes.size(number).least >= ENOUGH for number in range(container.class_count))


def _check_item(solver: Solver, array: Demand, holds: bool) -> None:
    if not holds:
        arrays = solver.arrays(array)
        assert arrays is not None
        pointer = solver.pool.keyword_pointer("uniqueItems", arrays.unique[0], (array.formula, *array.questions))
        raise NotDistinctError(_FEW_ITEMS, pointer=pointer)


def check_labelled_items(solver: Solver, array: Demand, container: Arrays, graph: Graph) -> None:
    """The same of an array with alternatives."""

    def leads_on(node: Node, edge: Edge, label: tuple[bool, ...]) -> bool:
        most = container.most_items(node)
        return most == 0 or solver.size(edge.demand, label).least > most

    _check_item(solver, array, _always_ends(graph, leads_on))


def check_names(container: Objects, graph: Graph) -> None:
    """Raise NotDistinctError unless, wherever an object may not end, another name can come that leads to its end."""

    def leads_on(node: Node, edge: Edge, label: tuple[bool, ...]) -> bool:
        return edge.part >= 0 or container.name_classes.size(-1 - edge.part).least > container.most_properties(node)

    if not _always_ends(graph, leads_on):
        counts = (atom for atom in container.atoms if isinstance(container.pool.assertion(atom), PropertyCount))
        raise NotDistinctError(_FEW_NAMES, pointer=next(map(container.pool.pointer, counts), None))


def _always_ends(graph: Graph, leads_on: Callable[[Node, Edge, tuple[bool, ...]], bool]) -> bool:
    """Whether from every node a way leads to one at which the container may end, over edges that `leads_on` approves of
    for a label."""
    sources: dict[Node, list[tuple[Node, Edge | None, tuple[bool, ...]]]] = {}
    for node, skipped in graph.skips.items():
        sources.setdefault(skipped, []).append((node, None, ()))
    for node, edges in graph.edges.items():
        for edge in edges:
            for label, target in edge.targets.items():
                sources.setdefault(target, []).append((node, edge, label))

    def good_before(node: Node) -> Iterator[Node]:
        return (of for of, edge, label in sources.get(node, ()) if edge is None or leads_on(of, edge, label))

    return reached(graph.closings, good_before) == {*graph.closings, *graph.edges, *graph.skips}
