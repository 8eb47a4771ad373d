"""Exploration of the derivative graph of an array or object, from its start node.

A *node* of this graph has the formulas that are undecided after some items or properties. A *move* reads one more item
or property. Exploration follows the moves for which values exist, and the skipping of optional names.
"""

from __future__ import annotations

from collections.abc import Callable, Set

from grammar_workers.languages.json_schema.labels import Label
from grammar_workers.languages.json_schema.solve.any_order import MAX_NODES, AnyOrderObjects, TooManyOrdersError
from grammar_workers.languages.json_schema.solve.derivatives import Demand, DerivativeGraph, Move, Node


class Exploration:
    """The nodes of a derivative graph that have been reached, each with its moves.

    A node has the formulas that are undecided after some items or properties. A move reads one more item or property.
    If a node is entered at several positions, its moves from the lowest of these positions on are kept.

    The values of a move satisfy a demand (formula). While the solver runs, it finds further labels (truth values of
    tested formulas) of these values. `go_on` follows the labels that are new since its last call.

    Args:
        container: The graph of the arrays or of the objects of one demand.

    Attributes:
        moves: Node -> its moves in order. Each move has the targets found so far.
    """

    def __init__(self, container: DerivativeGraph) -> None:
        self._container = container
        self.moves: dict[Node, list[Move]] = {}
        self._entered: dict[Node, int] = {}
        self._pending: list[tuple[Node, int]] = []
        self._enter(container.start, 0)

    def go_on(self, ask: Callable[[Demand], Set[Label]], spend: Callable[[int], None]) -> None:
        """Follow all labels that have been found for demands so far, and update `moves`.

        A demand is a formula that a value must satisfy. A label is the tuple of the truth values of further formulas
        that are tested on the value. TooManyOrdersError is raised if an object with properties in any order has too
        many nodes.

        Args:
            ask: Function that returns the labels that have been found for a demand so far.
            spend: Function that counts steps of work. It may raise LimitExceededError.
        """
        for node, moves in list(self.moves.items()):
            for move in moves:
                self._follow(node, move, ask(move.demand))
        container = self._container
        # The cost of one move is proportional to the number of atoms.
        cost = 4 * len(container.atoms)
        while self._pending:
            node, first = self._pending.pop()
            stop = self._entered.get(node)
            if stop is not None and stop <= first:
                continue
            self._entered[node] = first
            skipped = container.skip(node) if stop is None else None
            if skipped is not None:
                self._enter(skipped, node.last + 1)
            moves = list(container.moves(node, first, stop))
            spend(cost * max(1, len(moves)))
            self.moves[node][:0] = moves
            for move in moves:
                labels = ask(move.demand)
                spend(4 * len(labels))
                self._follow(node, move, labels)

    def _enter(self, node: Node, position: int) -> None:
        self._pending.append((node, position))
        if node not in self.moves:
            self.moves[node] = []
            if len(self.moves) > MAX_NODES and isinstance(self._container, AnyOrderObjects):
                raise TooManyOrdersError(f"its alternatives take more than {MAX_NODES} nodes")

    def _follow(self, node: Node, move: Move, labels: Set[Label]) -> None:
        if len(move.targets) == len(labels):
            return
        for label in labels:
            if label not in move.targets:
                following = move.targets[label] = self._container.follow(node, move, label)
                if following is not None:
                    self._enter(following, move.entry)
