"""Property names as states of a pushdown automaton: one tree of declared names, beside it what reads free ones.

A name comes as far as its guard lets it: a name that has been read before must not come again.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Hashable, Sequence

from grammar_workers.dfa.dfa import ANY_TEXT, Dfa, relabel, restrict
from grammar_workers.languages.json_schema.logic import TRUE
from grammar_workers.languages.json_schema.solve.derivatives import Demand
from grammar_workers.languages.json_schema.solve.objects import Objects
from grammar_workers.languages.json_schema.solve.solver import Solver
from grammar_workers.memo import memoized
from grammar_workers.pushdown.automaton import NEVER, Guard, union_guards
from grammar_workers.pushdown.builder import Beside, PushdownBuilder
from grammar_workers.pushdown.json_text import encode_string_body
from grammar_workers.pushdown.strings import StringLowering
from grammar_workers.pushdown.trie import trie_of_texts


@dataclasses.dataclass(frozen=True)
class _Tree:
    """The trees of equal names, which differ in what may come: `numbers` of (name, guard), and known `branches`."""

    numbers: dict[tuple[int, Guard], int] = dataclasses.field(default_factory=dict)
    branches: dict[Hashable, int] = dataclasses.field(default_factory=dict)


class PropertyNameStates:
    """The states of property names in one builder: objects of equal names and guards share them."""

    def __init__(self, solver: Solver, builder: PushdownBuilder, strings: StringLowering) -> None:
        self._solver = solver
        self._builder = builder
        self._strings = strings
        self._trees: dict[tuple[tuple[str, ...], Guard], _Tree] = {}

    def emit(self, container: Objects, classes: Sequence[Guard], windows: Sequence[Guard]) -> int | None:
        """States that read a property name after its quote; None when none is allowed.

        They return with c for an undeclared name of class c, and with len(classes) + i for the declared name i, as far
        as the guards `classes[c]` and `windows[i]` let them.
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
            parts = [free, *(guarded[number][1] for number in numbers)]
            return 0 if () in parts else builder.op(guard=union_guards(parts))

        def end_op(number: int) -> int:
            index, window = guarded[number]
            return builder.return_(index + 1, guard=window)

        return trie_of_texts(
            builder, entries, end_op, beside=beside, guard=None if free == () else guard, known=tree.branches
        )

    def _beside(self, body: int, name: bytes) -> list[Beside]:
        """For each byte of a declared name where others lead in its place, and what the states that read it resemble:
        `body`, which begins a free name, but not inside of a character or an escape.
        """
        outside = self._builder.row_of(body)
        # Where the vocabulary cannot spell every character, a free name is no free string.
        loop = self._builder.loop(base=body) if self._any_name == ANY_TEXT else 0
        if name.isascii() and b"\\" not in name:
            return [(outside, loop)] * len(name)
        rows = self._strings.rows_beside(self._any_name, body, name)
        return [(row, loop if row == outside else 0) for row in rows]

    @memoized
    def _encoded_names(self, names: tuple[str, ...]) -> list[tuple[bytes, int]]:
        """The declared names that can be written, up to the closing quote, in the order of their bytes."""
        # What the vocabulary cannot write is no free name either.
        return sorted(
            (encode_string_body(name) + b'"', index)
            for index, name in enumerate(names)
            if self._solver.string_languages.can_name(name)
        )

    def _classified_keys(self, automaton: Dfa, guards: Sequence[Guard]) -> int | None:
        """The same where patterns tell names apart; `guards[label - 1]` guards what the automaton labels so."""
        usable = automaton
        if NEVER in guards:
            labels = [0, *(label + 1 if guard != NEVER else 0 for label, guard in enumerate(guards))]
            usable = relabel(automaton, labels)
        usable = restrict(usable, self._solver.spelling.writable)
        if usable.is_empty:
            return None
        closed = [self._return(label - 1, guards[label - 1]) if label else -1 for label in usable.accepting]
        reachable = [
            union_guards([guards[label - 1] for label in labels]) if all(guards[i - 1] for i in labels) else ()
            for labels in usable.reachable_labels
        ]
        return self._strings.json_string(usable, tuple(closed), tuple(reachable))

    @memoized
    def _free_key(self, guard: Guard) -> int:
        return self._strings.json_string(self._any_name, (self._return(0, ()),), (guard,))

    @functools.cached_property
    def _any_name(self) -> Dfa:
        language = self._solver.strings(Demand(TRUE))
        return ANY_TEXT if language.automaton is None else language.automaton

    @memoized
    def _return(self, label: int, guard: Guard) -> int:
        return self._builder.state(op=self._builder.return_(label, guard=guard))
