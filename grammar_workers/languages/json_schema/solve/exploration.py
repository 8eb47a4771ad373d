"""The part of a derivative graph that is reached from its start, over parts that exist or are passed over."""

from __future__ import annotations

from collections.abc import Callable, Set

from grammar_workers.languages.json_schema.labels import Label
from grammar_workers.languages.json_schema.solve.any_order import MAX_NODES, AnyOrderObjects, TooManyOrdersError
from grammar_workers.languages.json_schema.solve.derivatives import Demand, DerivativeGraph, Move, Node


class Exploration:
    """The nodes that have been reached, each with its moves in order, from the lowest position where it is entered.

    Parts gain labels while demands are solved: `go_on` follows those that are new since the last time.
    """

    def __init__(self, container: DerivativeGraph) -> None:
        self._container = container
        self.moves: dict[Node, list[Move]] = {}
        self._entered: dict[Node, int] = {}
        self._pending: list[tuple[Node, int]] = []
        self._enter(container.start, 0)

    def go_on(self, ask: Callable[[Demand], Set[Label]], spend: Callable[[int], None]) -> None:
        """Follow all labels that there are by now; `ask` finds those of a demand, `spend` counts steps."""
        for node, moves in list(self.moves.items()):
            for move in moves:
                self._follow(node, move, ask(move.demand))
        container = self._container
        cost = 4 * container.width
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
