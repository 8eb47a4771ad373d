"""The emitter: writes demands (formulas that values must satisfy) as states of a pushdown automaton.

A *label* is the tuple of the truth values of the formulas that a demand tests on a value. A demand is emitted once for
each set of labels that a caller accepts. Its states return the index of the value's label in this set. Each item and
each property value is read by a call.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from grammar_workers.budget import limits_at
from grammar_workers.dfa.dfa import literal_set
from grammar_workers.errors import UnsatisfiableError, UnsupportedFeatureError
from grammar_workers.languages.compilation import located
from grammar_workers.languages.json_schema.emit.common import CommonStates
from grammar_workers.languages.json_schema.emit.distinct import (
    check_items,
    check_labelled_items,
    check_names,
    has_endless_items,
    has_endless_names,
)
from grammar_workers.languages.json_schema.emit.graphs import living_graph, runs_of
from grammar_workers.languages.json_schema.emit.property_names import PropertyNameStates
from grammar_workers.languages.json_schema.emit.property_order import (
    PropertyOrder,
    any_order,
    declared_order,
    order_by_nodes,
)
from grammar_workers.languages.json_schema.labels import Label
from grammar_workers.languages.json_schema.logic import TRUE
from grammar_workers.languages.json_schema.solve.any_order import AnyOrderObjects
from grammar_workers.languages.json_schema.solve.arrays import Arrays
from grammar_workers.languages.json_schema.solve.derivatives import Demand, Node
from grammar_workers.languages.json_schema.solve.number_dfa import MAX_DIGITS
from grammar_workers.languages.json_schema.solve.objects import Objects
from grammar_workers.languages.json_schema.solve.solver import Solver
from grammar_workers.languages.json_schema.solve.text_language import TextLanguage
from grammar_workers.pushdown.automaton import NEVER, UNBOUNDED, Guard, union_guards
from grammar_workers.pushdown.builder import no_moves
from grammar_workers.pushdown.instructions import ENTER_AT_ZERO, ENTER_DEEPER, GOTO, INHERIT
from grammar_workers.pushdown.json_text import encode_string_body
from grammar_workers.pushdown.spans import span_states
from grammar_workers.pushdown.trie import TextTrie

# Maximum nesting depth of JSON values that a schema does not constrain.
MAX_FREE_DEPTH = 64

_ANYTHING = Demand(TRUE)
Labels = tuple[Label, ...]


class Emitter:
    """Writer of the pushdown states of a root demand, and of all demands on values inside it.

    A demand is a formula that a value must satisfy, with further formulas to test. A label is the tuple of the truth
    values of the tested formulas. A demand is written once for each set of labels that its callers accept. Values with
    other labels are excluded, because the caller could not continue after them.

    Args:
        solver: The solver that has solved the root demand. A warning may be appended to its `notes`.
        common: The states that all JSON values of the automaton share. Its builder is extended.
    """

    def __init__(self, solver: Solver, common: CommonStates) -> None:
        self._solver = solver
        self._common = common
        self._builder = common.builder
        self._strings = common.strings
        self._separators = common.separators
        self._names = PropertyNameStates(solver, common)
        self._entries: dict[tuple[Demand, Labels, bool], int] = {}
        self._queue: list[tuple[Demand, Labels, bool]] = []
        # True while states are emitted for a part of a unique item: property names in it must not repeat.
        self._inside_distinct = False
        self._item_or_end: dict[tuple[int, int], int] = {}

    def emit(self, root: Demand) -> int:
        """Append the states of a root demand and of all values inside it, and return the entry state.

        If unique items or names cannot be enforced, NotDistinctError is raised. An exceeded limit raises
        LimitExceededError.

        Args:
            root: Demand on the whole value: the formula that it must satisfy, with formulas to test.

        Returns:
            Number of the entry state in the builder.

        Raises:
            UnsatisfiableError: No value satisfies `root`.
            UnsupportedFeatureError: No value is certain to satisfy `root`.
        """
        if not self._solver.satisfiable(root):
            if doubt := self._solver.doubt:
                raise UnsupportedFeatureError(f"no value is certain to satisfy the schema: {doubt}")
            why = f" ({self._solver.pool.hint})" if self._solver.pool.hint else ""
            if not why and self._solver.number_languages.has_long_numbers:
                why = f" (numbers have at most {MAX_DIGITS} digits before the point)"
            raise UnsatisfiableError(f"no value satisfies the schema{why}")
        entry = self._entry(root, tuple(sorted(self._solver.labels(root))))
        while self._queue:
            demand, labels, self._inside_distinct = self._queue.pop()
            with limits_at(self._solver.pool.pointer(demand.formula)):
                self._emit_demand(demand, labels)
        for (called, label), state in self._item_or_end.items():
            row = self._builder.row_targets(self._builder.row_of(called))
            row[ord("]")] = self._common.return_(label, ())
            self._builder.fill(state, row=self._builder.row(row))
        return entry

    # -- demands -----------------------------------------------------------------------------------------------------

    def _entry(self, demand: Demand, labels: Labels, *, distinct: bool = False) -> int:
        distinct = distinct or self._inside_distinct
        if not distinct and labels == ((),) and self._common.values:
            value = self._solver.common(demand)
            if value is not None and value < len(self._common.values):
                return self._common.values[value]
        key = (demand, labels, distinct)
        known = self._entries.get(key)
        if known is None:
            known = self._entries[key] = self._builder.state()
            self._queue.append(key)
        return known

    def _emit_demand(self, demand: Demand, labels: Labels) -> None:
        row = no_moves()
        solver = self._solver
        for type_, label in solver.constants(demand).items():
            if label in labels:
                text = solver.constant_texts[type_]
                end = self._builder.return_(labels.index(label))
                row[text[0]] = self._builder.literal(text[1:], end_op=end)
        strings = solver.strings(demand).labelled(labels)
        with located(solver.pool.pattern_pointer(demand.formula)):
            row_of_strings = self._string(strings)
        if row_of_strings is not None:
            row[ord('"')] = row_of_strings
        self._number(solver.numbers(demand).labelled(labels), row)
        free = demand == _ANYTHING
        containers = (solver.arrays(demand), solver.objects(demand))
        starts = [self._container(demand, container, labels) for container in containers]
        for symbol, start in zip("[{", starts, strict=True):
            if start is not None:
                deep = [(0, MAX_FREE_DEPTH - 1)]
                row[ord(symbol)] = self._builder.state(op=self._builder.goto(start, guard=deep)) if free else start
        self._builder.fill(self._entries[demand, labels, self._inside_distinct], row=self._builder.row(row))

    def _call(
        self,
        caller: Demand,
        demand: Demand,
        site: Sequence[int],
        labels: Labels,
        end: int | None = None,
        *,
        distinct: bool = False,
        endless: bool = False,
    ) -> int:
        """Return the instruction that calls `demand` from the states of the demand `caller`.

        State `site[i]` follows a return with `labels[i]`. State `end` follows `]`, which may close an array in place of
        the item; None if it may not. If `distinct` is true, the value must differ from others of its container. For
        `endless` see `DISTINCT_ENDLESS`.
        """
        entry = self._entry(demand, labels, distinct=distinct)
        if end is not None:
            entry, site = self._item_or_close(entry, len(labels)), [*site, end]
        if distinct:
            self._builder.distinct(site, len(labels), endless=endless)
        enter = ENTER_DEEPER if caller == demand == _ANYTHING else ENTER_AT_ZERO
        return self._builder.call(entry, site, enter=enter)

    # -- scalars ---------------------------------------------------------------------------------------------------

    def _string(self, language: TextLanguage) -> int | None:
        """Return the state after the opening quote; None if the language is empty."""
        if language.texts is not None:
            entries = [(encode_string_body(text) + b'"', number - 1) for text, number in language.texts.items()]
            return TextTrie(self._builder, self._builder.return_).add(sorted(entries)) if entries else None
        if language.spans is not None:
            guard = () if language.span_lengths == (0, UNBOUNDED) else (language.span_lengths,)
            return span_states(self._builder, language.spans, self._common.return_(0, guard), language.span_lengths)
        automaton = language.automaton
        if automaton is None or automaton.is_empty:
            return None
        if language.is_counted:
            lengths = [language.lengths(label) for label in range(1, len(language.numbers) + 1)]
            by_label = [tuple((number - 1, guard) for number, guard in one.items()) for one in lengths]
            return self._strings.counted_json_string(automaton, *by_label)
        closed = [self._common.return_(label - 1, ()) if label else -1 for label in automaton.accepting]
        return self._strings.json_string(automaton, tuple(closed))

    def _number(self, language: TextLanguage, row: NDArray[np.int32]) -> None:
        """Put the moves over the first byte of a number into `row`."""
        automaton = language.automaton
        if language.texts is not None:
            automaton = literal_set(language.texts)
        if automaton is None or automaton.is_empty:
            return
        moves = self._common.number_moves(automaton)
        np.copyto(row, moves, where=moves >= 0)

    def _container(self, demand: Demand, container: Arrays | Objects | None, labels: Labels) -> int | None:
        """Return the state after `[` or `{`; None if there is no array or object with one of `labels`."""
        if container is None:
            return None
        if not container.is_plain:
            if isinstance(container, Arrays):
                return self._labelled_array(demand, container, labels)
            return self._labelled_object(demand, container, labels)
        if container.plain_label not in labels or not self._solver.exists(container):
            return None
        label = labels.index(container.plain_label)
        if isinstance(container, Arrays):
            return self._plain_array(demand, container, label)
        return self._plain_object(demand, container, label)

    # -- arrays ----------------------------------------------------------------------------------------------------

    def _plain_array(self, demand: Demand, container: Arrays, label: int) -> int:
        """Return the state after `[` of an array whose counter holds the number of complete items."""
        builder, plain, longest = self._builder, container.plain, self._solver.longest(container)
        distinct = container.is_distinct and longest not in (0, 1)
        endless = False
        if distinct:
            check_items(self._solver, demand, plain)
            endless = has_endless_items(self._solver, plain, longest)
        counted = plain.minimum > 0 or longest is not None
        cap = plain.minimum if longest is None else longest
        end = self._common.return_(label, ((plain.minimum, UNBOUNDED),) if plain.minimum else ())
        if longest == 0:
            return self._separators.gap(builder.state(row=builder.row({ord("]"): end})))
        more: Guard = () if longest is None else ((0, longest - 1),)
        # One state per position of the prefix, and one for all later items: `after[i]` follows item i.
        positions = min(len(plain.prefix), UNBOUNDED if longest is None else longest - 1) + 1
        after = [builder.state() for _ in range(positions)]
        landing = [self._separators.gap(state) for state in after]
        if counted:
            # Counting happens on the way to `after`, once per item, before any white space.
            landing = [builder.state(op=builder.op(increment_to=cap, move=GOTO, target=state)) for state in landing]

        def call(position: int, end: int | None = None) -> int:
            item = plain.prefix[position] if position < len(plain.prefix) else plain.items
            site = [landing[min(position, positions - 1)]]
            return self._call(demand, item, site, ((),), end, distinct=distinct, endless=endless)

        for position, state in enumerate(after):
            row = {ord("]"): end}
            following = position + 1
            if longest is None or following < longest or position == positions - 1 > len(plain.prefix) - 1:
                row[ord(",")] = self._separators.comma(call(following), more)
            builder.fill(state, row=builder.row(row))
        return self._separators.gap(self._builder.state(op=call(0, None if plain.minimum else end)))

    def _item_or_close(self, called: int, label: int) -> int:
        """Return an entry like `called` that may instead read `]` and return with `label`."""
        known = self._item_or_end.get((called, label))
        if known is None:
            known = self._item_or_end[called, label] = self._builder.state()
        return known

    def _labelled_array(self, demand: Demand, container: Arrays, labels: Labels) -> int | None:
        builder = self._builder
        graph = living_graph(self._solver, demand, container, labels, builder.spend)
        if graph.is_empty:
            return None
        if container.is_distinct:
            check_labelled_items(self._solver, demand, container, graph)
        closings, edges = graph.closings, graph.edges
        after = {node: builder.state() for node in dict.fromkeys([*closings, *edges])}
        landing = {node: self._separators.gap(state) for node, state in after.items()}

        def call(node: Node, end: int | None = None) -> int:
            ((_, child, _, targets),) = edges[node]
            usable = tuple(sorted(targets))
            site = [landing[targets[label]] for label in usable]
            return self._call(demand, child, site, usable, end, distinct=container.is_distinct)

        for node, state in after.items():
            row = {}
            if node in closings:
                row[ord("]")] = self._common.return_(closings[node][0], ())
            if node in edges:
                row[ord(",")] = self._separators.comma(call(node))
            builder.fill(state, row=builder.row(row))
        start = container.start
        end = self._common.return_(closings[start][0], ()) if start in closings else None
        if start in edges:
            return self._separators.gap(self._builder.state(op=call(start, end)))
        assert end is not None
        return self._separators.gap(builder.state(row=builder.row({ord("]"): end})))

    # -- objects ---------------------------------------------------------------------------------------------------

    def _plain_object(self, demand: Demand, container: Objects, label: int) -> int:
        """Return the state after `{` of an object with one state, in which the counter determines the next names."""
        solver, builder = self._solver, self._builder
        plain = container.plain
        usable = [solver.satisfiable(child) for child in plain.properties]
        if isinstance(container, AnyOrderObjects):
            order = any_order(usable, [plain.required])
        else:
            order = declared_order(usable, frozenset(plain.required))
        after = builder.state()
        landing = [self._separators.gap(after)]
        undeclared = {-1 - number: child for number, child in enumerate(plain.classes)}
        children = undeclared | dict(enumerate(plain.properties))
        calls = {
            part: self._call(demand, child, landing, ((),))
            for part, child in children.items()
            if solver.satisfiable(child)
        }
        row, start = self._object_rows(container, calls, order, {ord("}"): self._common.return_(label, order.complete)})
        builder.fill(after, row=builder.row(row))
        return self._separators.gap(builder.state(row=builder.row(start)))

    def _object_rows(
        self, container: Objects, calls: dict[int, int], order: PropertyOrder, closing: dict[int, int]
    ) -> tuple[dict[int, int], dict[int, int]]:
        """Return the moves after a property, and after `{`: `closing`, and names with values by means of `calls`."""
        builder = self._builder
        many = container.class_count
        site = [-1] * (many + len(container.names))
        for part, call in calls.items():
            mark = order.marks[part] if part >= 0 else order.undeclared_mark
            site[many + part if part >= 0 else -1 - part] = self._separators.colon(call, mark)
        classes = [order.undeclared if -1 - number in calls else NEVER for number in range(many)]
        names = self._names.emit(container, classes, order.windows)
        if (container.is_distinct or self._inside_distinct) and any(guard != NEVER for guard in classes):
            builder.distinct(site, many, names=True, endless=has_endless_names(container))
        after, start = dict(closing), dict(closing)
        if names is not None:
            guard = union_guards([*order.windows, *classes])
            name = builder.call(names, site, guard=guard, enter=INHERIT)
            after[ord(",")] = self._separators.comma(name, guard, b'"')
            start[ord('"')] = self._builder.state(op=name)
        return after, start

    def _labelled_object(self, demand: Demand, container: Objects, labels: Labels) -> int | None:
        """Return the state after `{`. Each run of nodes has one state; the counter is the position among the names."""
        builder = self._builder
        graph = living_graph(self._solver, demand, container, labels, builder.spend)
        if graph.is_empty:
            return None
        if container.is_distinct or self._inside_distinct:
            check_names(container, graph)
        runs, first_of = runs_of(graph)
        after = {node: builder.state() for node in runs}
        landing = {node: self._separators.gap(state) for node, state in after.items()}
        has_runs = any(run.last > run.first for run in runs.values())
        for node, run in runs.items():
            calls = {}
            for part, child, entry, targets in run.edges:
                usable = tuple(sorted(targets))
                site = [landing[first_of[targets[label], entry]] for label in usable]
                calls[part] = self._call(demand, child, site, usable)
            label, endings = graph.closings.get(node, (-1, ()))
            exists = [part in calls for part in range(len(container.names))]
            if isinstance(container, AnyOrderObjects):
                order = any_order(exists, [ending.parts for ending in endings], container.advised(node))
            else:
                order = order_by_nodes(exists, run.last, has_runs=has_runs)
            closing = {ord("}"): self._common.return_(label, order.complete)} if endings else {}
            row, start_row = self._object_rows(container, calls, order, closing)
            builder.fill(after[node], row=builder.row(row))
            if node == container.start:
                start = builder.state(row=builder.row(start_row))
        return self._separators.gap(start)
