"""States that read property names: a trie of the declared names, combined with states that read undeclared names.

The code calls undeclared names *free*. *Guards* (conditions on the counter of the object) exclude names, for example
names that have already been read.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Hashable, Sequence

from grammar_workers.dfa.dfa import ANY_TEXT, Dfa, relabel, restrict
from grammar_workers.languages.json_schema.emit.common import CommonStates
from grammar_workers.languages.json_schema.logic import TRUE
from grammar_workers.languages.json_schema.solve.derivatives import Demand
from grammar_workers.languages.json_schema.solve.objects import Objects
from grammar_workers.languages.json_schema.solve.solver import Solver
from grammar_workers.memo import memoized
from grammar_workers.pushdown.automaton import NEVER, Guard, union_guards
from grammar_workers.pushdown.builder import Beside
from grammar_workers.pushdown.json_text import encode_string_body
from grammar_workers.pushdown.trie import TextTrie


@dataclasses.dataclass(frozen=True)
class _Tree:
    """The trees of equal names that differ in their guards.

    Attributes:
        numbers: (index of the name, guard) -> number of the trie's entry.
        branches: Branches of the trie that exist already.
    """

    numbers: dict[tuple[int, Guard], int] = dataclasses.field(default_factory=dict)
    branches: dict[Hashable, int] = dataclasses.field(default_factory=dict)


class PropertyNameStates:
    """Writer of the states that read property names. Objects with equal names and guards share these states.

    A guard is a condition on the counter of the object, under which a name is allowed.

    Args:
        solver: Decides which names are permitted and can be encoded by the vocabulary.
        common: The states that all JSON values of the automaton share. Its builder is extended.
    """

    def __init__(self, solver: Solver, common: CommonStates) -> None:
        self._solver = solver
        self._common = common
        self._builder = common.builder
        self._strings = common.names
        self._trees: dict[tuple[tuple[str, ...], Guard], _Tree] = {}

    def emit(self, container: Objects, classes: Sequence[Guard], windows: Sequence[Guard]) -> int | None:
        """Append the states that read a property name after its opening quote.

        Undeclared names belong to classes: a class contains the names that pass the same tests. The states return to
        the caller with a label: c after an undeclared name of class c, `len(classes)` + i after declared name i. A
        guard is a condition on the counter of the object. The guard () always allows a name, and NEVER excludes it.

        Args:
            container: Graph of the objects, which has the declared names and the classes of undeclared names.
            classes: For each class of undeclared names, the guard of reading a name of this class.
            windows: For each declared name, the guard of reading it.

        Returns:
            Number of the first state. None if no name is allowed.
        """
        return self._emit(container.names, container.name_classes.automaton, tuple(classes), tuple(windows))

    @memoized
    def _emit(
        self, names: tuple[str, ...], automaton: Dfa | None, classes: tuple[Guard, ...], windows: tuple[Guard, ...]
    ) -> int | None:
        if all(guard == NEVER for guard in (*classes, *windows)):
            return None
        if automaton is not None:
            return self._classified_keys(automaton, [*classes, *windows])
        builder = self._builder
        free = classes[0]
        beside = None
        if free != NEVER:
            body = self._free_key(free)
            if not names:
                return body
            beside = functools.partial(self._beside, body)
        entries = []
        tree = self._trees.setdefault((names, free), _Tree())
        for data, index in self._encoded_names(names):
            if free != NEVER or windows[index] != NEVER:
                entries.append((data, tree.numbers.setdefault((index, windows[index]), len(tree.numbers))))
        if not entries:
            return self._free_key(free) if free != NEVER else None
        guarded = list(tree.numbers)

        def guard(numbers: Sequence[int]) -> int:
            parts = [free, *[guarded[number][1] for number in numbers]]
            return 0 if () in parts else builder.op(guard=union_guards(parts))

        def end_op(number: int) -> int:
            index, window = guarded[number]
            return builder.return_(index + 1, guard=window)

        guarding = None if free == () else guard
        return TextTrie(builder, end_op, beside=beside, guard=guarding, known=tree.branches).add(entries)

    def _beside(self, body: int, name: bytes) -> list[Beside]:
        """Return how each byte of a declared name can deviate to a free name.

        Returns:
            For each byte, the row of all other bytes, and the loop that the state resembles: `body`, which begins a
            free name, or none inside a character or an escape.
        """
        outside = self._builder.row_of(body)
        loop = self._loop_like(body)
        if name.isascii() and b"\\" not in name:
            return [(outside, loop)] * len(name)
        rows = self._strings.rows_beside(self._any_name, body, name)
        return [(row, loop if row == outside else 0) for row in rows]

    @memoized
    def _loop_like(self, body: int) -> int:
        # If the vocabulary cannot encode every character, a free name is not a free string.
        return self._builder.loop(base=body) if self._any_name == ANY_TEXT else 0

    @memoized
    def _encoded_names(self, names: tuple[str, ...]) -> list[tuple[bytes, int]]:
        """Return the declared names that can be encoded, with closing quote, sorted by their bytes."""
        # Names that the vocabulary cannot encode are not free names either.
        return sorted(
            (encode_string_body(name) + b'"', index)
            for index, name in enumerate(names)
            if self._solver.string_languages.can_name(name)
        )

    def _classified_keys(self, automaton: Dfa, guards: Sequence[Guard]) -> int | None:
        """Return the state that reads a name, if tests distinguish undeclared names.

        `guards[label - 1]` is the guard of the names that `automaton` labels `label`.
        """
        usable = automaton
        if NEVER in guards:
            labels = [0, *(label + 1 if guard != NEVER else 0 for label, guard in enumerate(guards))]
            usable = relabel(automaton, labels)
        usable = restrict(usable, self._solver.spelling.writable)
        if usable.is_empty:
            return None
        closed = [self._common.return_(label - 1, guards[label - 1]) if label else -1 for label in usable.accepting]
        reachable = [
            union_guards([guards[label - 1] for label in labels]) if all(guards[i - 1] for i in labels) else ()
            for labels in usable.reachable_labels
        ]
        return self._strings.json_string(usable, tuple(closed), tuple(reachable))

    @memoized
    def _free_key(self, guard: Guard) -> int:
        if guard and self._any_name == ANY_TEXT:
            return self._strings.guarded(self._free_key(()), guard)
        return self._strings.json_string(self._any_name, (self._common.return_(0, ()),), (guard,))

    @functools.cached_property
    def _any_name(self) -> Dfa:
        language = self._solver.strings(Demand(TRUE))
        return ANY_TEXT if language.automaton is None else language.automaton
