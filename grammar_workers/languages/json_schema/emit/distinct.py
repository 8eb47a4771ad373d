"""Checks that arrays with unique items, and objects with unique names, never run out of values or names.

Whenever another item is required in an array with unique items, a value must be left that no earlier item has. The rule
for property names is analogous. The check is made when the array or object is emitted. If it fails, the schema is
rejected, because an output could reach a point where it can neither end nor continue.
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
    """Check that every required item of an array with unique items has an unused value left.

    The item at index i must have more than i possible values. If this is not certain, NotDistinctError is raised with
    the JSON Pointer of `uniqueItems`.

    Args:
        solver: The solver that has solved `array`.
        array: Demand (formula for the array, with formulas to test), for the JSON Pointer of the error.
        plain: Demands of the items, and the bounds of the number of items.
    """
    for position, demand in enumerate(plain.prefix[: plain.minimum]):
        _check_item(solver, array, solver.size(demand).least > position)
    if plain.minimum > len(plain.prefix):
        _check_item(solver, array, solver.size(plain.items).least >= plain.minimum)


def has_endless_items(solver: Solver, plain: PlainArray, longest: int | None) -> bool:
    """Return whether every item after the first one has more values than any output can contain.

    An item with at least ENOUGH (2**62) values meets this condition.

    Args:
        solver: The solver that has solved the items' demands.
        plain: Demands of the items. A demand is a formula that a value must satisfy, with formulas to test.
        longest: Largest number of items; None for no limit.
    """
    items = [*plain.prefix[1:longest]]
    if longest is None or longest > len(plain.prefix):
        items.append(plain.items)
    return all(solver.size(demand).least >= ENOUGH for demand in dict.fromkeys(items))


def has_endless_names(container: Objects) -> bool:
    """Return whether every class of undeclared properties has more names than any output can contain.

    A class contains the undeclared names that pass the same tests. A class with at least ENOUGH (2**62) names meets the
    condition.

    Args:
        container: Graph of the objects, which has the classes.
    """
    return all(container.name_classes.size(number).least >= ENOUGH for number in range(container.class_count))


def _check_item(solver: Solver, array: Demand, holds: bool) -> None:
    if not holds:
        arrays = solver.arrays(array)
        assert arrays is not None
        pointer = solver.pool.keyword_pointer("uniqueItems", arrays.unique[0], (array.formula, *array.questions))
        raise NotDistinctError(_FEW_ITEMS, pointer=pointer)


def check_labelled_items(solver: Solver, array: Demand, container: Arrays, graph: Graph) -> None:
    """Check that an array with unique items and with alternatives (such as `anyOf`) can always end.

    The array is a graph. A node has the formulas that are undecided after some items, and an edge reads one item. Every
    node needs a path to an end. The path may read an item only if the item has more possible values than there can be
    earlier items. If a path is not certain to exist, NotDistinctError is raised with the JSON Pointer of `uniqueItems`.

    Args:
        solver: The solver that has solved `array`.
        array: Demand (formula for the array, with formulas to test), for the JSON Pointer of the error.
        container: Complete graph of the arrays. It limits the number of items before each node.
        graph: The graph without nodes from which the array cannot end.
    """

    def leads_on(node: Node, edge: Edge, label: tuple[bool, ...]) -> bool:
        most = container.most_items(node)
        return most == 0 or solver.size(edge.demand, label).least > most

    _check_item(solver, array, _always_ends(graph, leads_on))


def check_names(container: Objects, graph: Graph) -> None:
    """Check that an object with unique names can always end.

    The object is a graph. A node has the formulas that are undecided after some properties, and an edge reads one
    property. Every node needs a path to an end. The path may read declared names. It may read an undeclared name only
    if an unused name of its class is left. A class contains the undeclared names that pass the same tests.

    Args:
        container: Complete graph of the objects. It limits the number of properties before each node.
        graph: The graph without nodes from which the object cannot end.

    Raises:
        NotDistinctError: It is not certain that the object can always end. The error has the JSON Pointer of a keyword
            that counts properties, if known.
    """

    def leads_on(node: Node, edge: Edge, label: tuple[bool, ...]) -> bool:
        return edge.part >= 0 or container.name_classes.size(-1 - edge.part).least > container.most_properties(node)

    if not _always_ends(graph, leads_on):
        counts = (atom for atom in container.atoms if isinstance(container.pool.assertion(atom), PropertyCount))
        raise NotDistinctError(_FEW_NAMES, pointer=next(map(container.pool.pointer, counts), None))


def _always_ends(graph: Graph, leads_on: Callable[[Node, Edge, tuple[bool, ...]], bool]) -> bool:
    """Return whether from every node some path leads to a node at which the container may end.

    Paths use only edges and labels for which `leads_on` returns true.
    """
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
