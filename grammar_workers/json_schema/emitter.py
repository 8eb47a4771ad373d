"""Writes rules as machine states: one entry state per rule, parts of containers as calls."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from grammar_workers.character_automaton import CharacterAutomaton, literal_set, relabel, restrict
from grammar_workers.errors import UnsatisfiableError
from grammar_workers.json_schema.arrays import Arrays, PlainArray
from grammar_workers.json_schema.containers import Node, Rule
from grammar_workers.json_schema.formula import TRUE
from grammar_workers.json_schema.number_machine import number_moves
from grammar_workers.json_schema.objects import Objects
from grammar_workers.json_schema.rules import CONSTANTS, Rules
from grammar_workers.json_schema.scalars import Label, TextLanguage
from grammar_workers.json_text import encode_string_body
from grammar_workers.kernels import CALL, ENTER_AT_ZERO, ENTER_DEEPER, GOTO, INHERIT
from grammar_workers.literal_tree import literal_tree
from grammar_workers.machine import NEVER, UNBOUNDED, Interval, MachineBuilder, union_guards
from grammar_workers.number_automaton import MAX_DIGITS
from grammar_workers.options import GrammarOptions
from grammar_workers.string_machine import ANY_TEXT, StringMachine

MAX_FREE_DEPTH = 64
"""How deep JSON values nest about which a schema says nothing."""

_ANYTHING = Rule(TRUE)
Labels = tuple[Label, ...]
_Guard = tuple[Interval, ...]


class Emitter:
    """Emits every rule that the root calls, each once per set of labels that its callers can use."""

    def __init__(self, rules: Rules, builder: MachineBuilder, options: GrammarOptions) -> None:
        self._rules = rules
        self._builder = builder
        self._options = options
        self._strings = StringMachine(builder)
        self._entries: dict[tuple[Rule, Labels], int] = {}
        self._queue: list[tuple[Rule, Labels]] = []
        self._return_states: dict[tuple[int, _Guard], int] = {}
        self._free_keys: dict[_Guard, int] = {}
        self._item_or_end: dict[tuple[int, int], int] = {}
        self._whitespace: int | None = None

    def emit(self, root: Rule) -> int:
        """The entry state of `root`; raises UnsatisfiableError when nothing satisfies it."""
        if not self._rules.satisfiable(root):
            raise UnsatisfiableError(
                f"no value satisfies the schema (numbers have at most {MAX_DIGITS} digits)", pointer=""
            )
        entry = self._entry(root, tuple(sorted(self._rules.labels(root))))
        while self._queue:
            self._emit_rule(*self._queue.pop())
        for (called, label), state in self._item_or_end.items():
            row = self._builder.row_targets(self._builder.row_of(called))
            row[ord("]")] = self._return(label)
            self._builder.fill(state, row=self._builder.row(row))
        return entry

    # -- rules -----------------------------------------------------------------------------------------------------

    def _entry(self, rule: Rule, labels: Labels) -> int:
        known = self._entries.get((rule, labels))
        if known is None:
            known = self._entries[rule, labels] = self._builder.state()
            self._queue.append((rule, labels))
        return known

    def _emit_rule(self, rule: Rule, labels: Labels) -> None:
        row = np.full(256, -1, np.int32)
        rules = self._rules
        for type_, text in CONSTANTS.items():
            label = rules.constant(rule, type_)
            if label in labels:
                row[text[0]] = self._builder.literal(text[1:])
                self._builder.state(op=self._builder.return_(labels.index(label)))
        row_of_strings = self._string(rules.strings(rule), labels)
        if row_of_strings is not None:
            row[ord('"')] = row_of_strings
        self._number(rules.numbers(rule), labels, row)
        free = rule == _ANYTHING
        for symbol, start in (("[", self._array(rule, labels)), ("{", self._object(rule, labels))):
            if start is not None:
                deep = [(0, MAX_FREE_DEPTH - 1)]
                row[ord(symbol)] = self._state(self._builder.goto(start, guard=deep)) if free else start
        self._builder.fill(self._entries[rule, labels], row=self._builder.row(row))

    def _call(self, caller: Rule, rule: Rule, site: Sequence[int], labels: Labels, guard: _Guard = ()) -> int:
        """The op that calls `rule`; `site[i]` is where `labels[i]` leads."""
        enter = ENTER_DEEPER if caller == rule == _ANYTHING else ENTER_AT_ZERO
        return self._builder.call(self._entry(rule, labels), site, guard=guard, enter=enter)

    def _state(self, op: int) -> int:
        return self._builder.state(op=op)

    def _return(self, label: int, guard: _Guard = ()) -> int:
        known = self._return_states.get((label, guard))
        if known is None:
            known = self._return_states[label, guard] = self._state(self._builder.return_(label, guard=guard))
        return known

    # -- scalars ---------------------------------------------------------------------------------------------------

    def _string(self, language: TextLanguage, labels: Labels) -> int | None:
        """The state after the opening quote."""
        if language.texts is not None:
            entries = [
                (encode_string_body(text) + b'"', labels.index(language.labels[number]))
                for text, number in language.texts.items()
                if language.labels[number] in labels
            ]
            if not entries:
                return None
            finish = self._builder.return_
            return literal_tree(self._builder, sorted(entries), lambda label: self._discard(self._state(finish(label))))
        automaton = self._usable(language, labels)
        if automaton is None:
            return None
        closed = [self._return(label - 1) if label else -1 for label in automaton.accepting]
        return self._strings.json_string(automaton, closed, language.lengths)

    def _number(self, language: TextLanguage, labels: Labels, row: NDArray[np.int32]) -> None:
        """Put the moves over the first byte of a number into `row`."""
        if language.texts is not None:
            spelled = {
                text: labels.index(language.labels[number]) + 1
                for text, number in language.texts.items()
                if language.labels[number] in labels
            }
            if spelled:
                number_moves(self._builder, literal_set(spelled), row)
            return
        automaton = self._usable(language, labels)
        if automaton is not None:
            number_moves(self._builder, automaton, row)

    @staticmethod
    def _usable(language: TextLanguage, labels: Labels) -> CharacterAutomaton | None:
        """The automaton with its labels numbered as in `labels`, without those that the caller cannot use."""
        if language.automaton is None:
            return None
        numbers = [labels.index(label) + 1 if label in labels else 0 for label in language.labels]
        if numbers == list(range(1, len(numbers) + 1)):
            return language.automaton
        automaton = relabel(language.automaton, [0, *numbers])
        return None if automaton.is_empty else automaton

    @staticmethod
    def _discard(_: int) -> None:
        return None

    # -- separators ------------------------------------------------------------------------------------------------

    def _gap(self, following: int) -> int:
        """`following`, with optional white space before it when that is allowed."""
        if self._options.whitespace == "compact":
            return following
        return self._state(self._gap_call(following))

    def _gap_call(self, following: int, guard: _Guard = (), assign: int | None = None) -> int:
        if self._whitespace is None:
            builder = self._builder
            again = builder.state()
            row = builder.row(dict.fromkeys(b" \t\n\r", again))
            limit = self._options.whitespace_limit
            builder.fill(again, row=row, exit_label=0, op=builder.op(guard=[(0, limit - 1)], increment_to=limit))
            self._whitespace = builder.state(row=row, exit_label=0)
        return self._builder.op(move=CALL, target=self._whitespace, site=[following], guard=guard, assign=assign)

    def _comma(self, following_op: int, guard: _Guard = (), literal: bytes = b"") -> int:
        """The state after a comma: the separator, `literal`, then a state with `following_op`."""
        if self._options.whitespace == "compact":
            start = self._builder.literal(b" " + literal, op=self._builder.op(guard=guard) if guard else 0)
            self._state(following_op)
            return start
        start = self._builder.state()
        after = self._builder.literal(literal) if literal else self._builder.next_state
        self._state(following_op)
        self._builder.set_op(start, self._gap_call(after, guard=guard))
        return start

    def _colon(self, call: int, guard: _Guard = (), assign: int | None = None) -> int:
        """The state after a property name: the separator, then a state with the op `call`."""
        if self._options.whitespace == "compact":
            plain = not guard and assign is None
            start = self._builder.literal(b": ", op=0 if plain else self._builder.op(guard=guard, assign=assign))
            self._state(call)
            return start
        value = self._gap(self._state(call))
        colon = self._builder.literal(b":")
        self._state(self._builder.goto(value))
        return self._state(self._gap_call(colon, guard=guard, assign=assign))

    # -- arrays ----------------------------------------------------------------------------------------------------

    def _array(self, rule: Rule, labels: Labels) -> int | None:
        """The state after `[`."""
        container = self._rules.arrays(rule)
        if container is None:
            return None
        if not container.is_plain:
            return self._labelled_array(rule, container, labels)
        plain = container.plain()
        longest = self._rules.longest(plain)
        if container.plain_label not in labels or (longest is not None and longest < plain.minimum):
            return None
        return self._plain_array(rule, plain, longest, labels.index(container.plain_label))

    def _plain_array(self, rule: Rule, plain: PlainArray, longest: int | None, label: int) -> int:
        """Counts items in the register: it holds how many are complete."""
        builder = self._builder
        counted = plain.minimum > 0 or longest is not None
        cap = plain.minimum if longest is None else longest
        end = self._return(label, ((plain.minimum, UNBOUNDED),) if plain.minimum else ())
        if longest == 0:
            return self._gap(builder.state(row=builder.row({ord("]"): end})))
        more: _Guard = () if longest is None else ((0, longest - 1),)
        # One state per position of the prefix, and one for all later items: `after[i]` follows item i.
        positions = min(len(plain.prefix), UNBOUNDED if longest is None else longest - 1) + 1
        after = [builder.state() for _ in range(positions)]
        landing = [self._gap(state) for state in after]
        if counted:
            # Counting happens on the way to `after`, once per item, before any white space.
            landing = [builder.state(op=builder.op(increment_to=cap, move=GOTO, target=state)) for state in landing]

        def child(position: int) -> Rule:
            return plain.prefix[position] if position < len(plain.prefix) else plain.items

        def call(position: int, extra: Sequence[int] = ()) -> int:
            item = child(position)
            site = [landing[min(position, positions - 1)]]
            if not extra:
                return self._call(rule, item, site, ((),))
            called = self._item_or_close(self._entry(item, ((),)), 1)
            enter = ENTER_DEEPER if rule == item == _ANYTHING else ENTER_AT_ZERO
            return builder.call(called, [*site, *extra], enter=enter)

        for position, state in enumerate(after):
            row = {ord("]"): end}
            following = position + 1
            if longest is None or following < longest or position == positions - 1 > len(plain.prefix) - 1:
                row[ord(",")] = self._comma(call(following), more)
            builder.fill(state, row=builder.row(row))
        return self._gap(self._state(call(0, () if plain.minimum else [end])))

    def _item_or_close(self, called: int, label: int) -> int:
        """An entry like `called` that may instead read `]` and return with `label`."""
        known = self._item_or_end.get((called, label))
        if known is None:
            known = self._item_or_end[called, label] = self._builder.state()
        return known

    def _labelled_array(self, rule: Rule, container: Arrays, labels: Labels) -> int | None:
        builder = self._builder
        closings, edges = self._graph(rule, container, labels)
        if container.start not in closings and container.start not in edges:
            return None
        after = {node: builder.state() for node in closings.keys() | edges.keys()}
        landing = {node: self._gap(state) for node, state in after.items()}

        def call(node: Node, end: int | None) -> int:
            ((_, child, targets),) = edges[node]
            usable = tuple(sorted(targets))
            site = [landing[targets[label]] for label in usable]
            if end is None:
                return self._call(rule, child, site, usable)
            called = self._item_or_close(self._entry(child, usable), len(usable))
            return builder.call(called, [*site, end])

        for node, state in after.items():
            row = {}
            if node in closings:
                row[ord("]")] = self._return(closings[node])
            if node in edges:
                row[ord(",")] = self._comma(call(node, None))
            builder.fill(state, row=builder.row(row))
        start = container.start
        end = self._return(closings[start]) if start in closings else None
        if start in edges:
            return self._gap(self._state(call(start, end)))
        assert end is not None
        return self._gap(builder.state(row=builder.row({ord("]"): end})))

    # -- objects ---------------------------------------------------------------------------------------------------

    def _object(self, rule: Rule, labels: Labels) -> int | None:
        """The state after `{`."""
        container = self._rules.objects(rule)
        if container is None:
            return None
        if not container.is_plain:
            return self._labelled_object(rule, container, labels)
        if container.plain_label not in labels:
            return None
        return self._plain_object(rule, container, labels.index(container.plain_label))

    def _plain_object(self, rule: Rule, container: Objects, label: int) -> int | None:
        """Keeps the position among the declared names in the register: names before it may not come any more."""
        rules, builder = self._rules, self._builder
        plain = container.plain()
        exists = [rules.satisfiable(child) for _, child in plain.properties]
        if not all(exists[index] for index in plain.required):
            return None
        # Name i may come while the register is between the last required name before it, exclusive, and i.
        windows: list[_Guard] = []
        first = 0
        required = set(plain.required)
        for index, possible in enumerate(exists):
            windows.append(((first, index),) if possible else NEVER)
            if index in required:
                first = index + 1
        complete: _Guard = ((first, UNBOUNDED),) if first else ()
        many = len(windows)
        classes = [complete if rules.satisfiable(child) else NEVER for child in plain.classes]
        end = self._return(label, complete)
        after = builder.state()
        landing = self._gap(after)
        site = []
        for guard, child in zip(classes, plain.classes, strict=True):
            if guard == NEVER:
                site.append(-1)
                continue
            call = self._call(rule, child, [landing], ((),))
            site.append(self._colon(call, complete, many if many else None))
        for index, (_, child) in enumerate(plain.properties):
            if not exists[index]:
                site.append(-1)
                continue
            call = self._call(rule, child, [landing], ((),))
            site.append(self._colon(call, assign=index + 1))
        keys = self._keys(container, classes, windows)
        if keys is None:
            return self._gap(builder.state(row=builder.row({ord("}"): end})))
        any_key = () if () in classes else union_guards([*windows, *classes])
        key_op = builder.call(keys, site, guard=any_key, enter=INHERIT)
        row = {ord("}"): end, ord(","): self._comma(key_op, any_key, b'"')}
        builder.fill(after, row=builder.row(row))
        start = builder.state(row=builder.row({ord("}"): end, ord('"'): self._state(key_op)}))
        return self._gap(start)

    def _keys(self, container: Objects, classes: Sequence[_Guard], windows: Sequence[_Guard]) -> int | None:
        """States that read a property name after its quote; None when none is allowed.

        They return with c for an undeclared name of class c, and with len(classes) + i for the declared name i, as far
        as the guards `classes[c]` and `windows[i]` let them.
        """
        if all(guard == NEVER for guard in (*classes, *windows)):
            return None
        if container.names_automaton is not None:
            return self._classified_keys(container.names_automaton, [*classes, *windows])
        builder = self._builder
        free = classes[0]
        names = container.names
        row, loop = -1, 0
        if free != NEVER:
            body = self._free_key(free)
            if not names:
                return body
            row, loop = builder.row_of(body), builder.loop(base=body)
        entries = [(encode_string_body(name) + b'"', index) for index, name in enumerate(names)]
        if free == NEVER:
            entries = [entry for entry in entries if windows[entry[1]] != NEVER]

        def guard(indices: Sequence[int]) -> int:
            parts = [free, *(windows[index] for index in indices)]
            return 0 if () in parts else builder.op(guard=union_guards(parts))

        def finish(index: int) -> None:
            builder.state(op=builder.return_(index + 1, guard=windows[index]))

        return literal_tree(builder, sorted(entries), finish, row=row, loop=loop, guard=guard)

    def _classified_keys(self, automaton: CharacterAutomaton, guards: Sequence[_Guard]) -> int | None:
        """The same where patterns tell names apart; `guards[label - 1]` guards what the automaton labels so."""
        usable = relabel(automaton, [0, *(label + 1 if guard != NEVER else 0 for label, guard in enumerate(guards))])
        if self._rules.spellable is not None:
            usable = restrict(usable, self._rules.writable)
        if usable.is_empty:
            return None
        closed = [self._return(label - 1, guards[label - 1]) if label else -1 for label in usable.accepting]
        reachable = [
            union_guards([guards[label - 1] for label in labels]) if all(guards[i - 1] for i in labels) else ()
            for labels in usable.reachable_labels()
        ]
        return self._strings.json_string(usable, closed, guards=reachable)

    def _free_key(self, guard: _Guard) -> int:
        known = self._free_keys.get(guard)
        if known is None:
            known = self._strings.json_string(self._any_key(), [self._return(0)], guards=[guard])
            self._free_keys[guard] = known
        return known

    def _any_key(self) -> CharacterAutomaton:
        language = self._rules.strings(_ANYTHING)
        return ANY_TEXT if language.automaton is None else language.automaton

    def _labelled_object(self, rule: Rule, container: Objects, labels: Labels) -> int | None:
        builder = self._builder
        closings, edges = self._graph(rule, container, labels)
        if container.start not in closings and container.start not in edges:
            return None
        after = {node: builder.state() for node in closings.keys() | edges.keys()}
        landing = {node: self._gap(state) for node, state in after.items()}
        for node, state in after.items():
            row = {}
            if node in closings:
                row[ord("}")] = self._return(closings[node])
            start_row = dict(row)
            if node in edges:
                many = container.class_count
                site = [-1] * (many + len(container.names))
                for part, child, targets in edges[node]:
                    usable = tuple(sorted(targets))
                    call = self._call(rule, child, [landing[targets[label]] for label in usable], usable)
                    site[many + part if part >= 0 else -1 - part] = self._colon(call)
                guards = [() if target >= 0 else NEVER for target in site]
                keys = self._keys(container, guards[:many], guards[many:])
                if keys is not None:
                    key_op = builder.call(keys, site)
                    row[ord(",")] = self._comma(key_op, literal=b'"')
                    start_row[ord('"')] = self._state(key_op)
            builder.fill(state, row=builder.row(row))
            if node == container.start:
                start = builder.state(row=builder.row(start_row))
        return self._gap(start)

    def _graph(
        self, rule: Rule, container: Objects | Arrays, labels: Labels
    ) -> tuple[dict[Node, int], dict[Node, list[tuple[int, Rule, dict[Label, Node]]]]]:
        """The nodes that can still end with one of `labels`: where they may close, and the moves between them."""
        closings: dict[Node, int] = {}
        moves: dict[Node, list[tuple[int, Rule, dict[Label, Node]]]] = {}
        sources: dict[Node, list[Node]] = {}
        for node in self._rules.reachable(rule, container):
            self._builder.spend(4 * container.width)
            label = container.close(node)
            if label is not None and label in labels:
                closings[node] = labels.index(label)
            for move in container.moves(node):
                targets = {
                    label: following
                    for label in self._rules.labels(move.rule)
                    if (following := move.follow(label)) is not None
                }
                moves.setdefault(node, []).append((move.part, move.rule, targets))
                for following in targets.values():
                    sources.setdefault(following, []).append(node)
        alive = set(closings)
        pending = list(closings)
        while pending:
            for node in sources.get(pending.pop(), ()):
                if node not in alive:
                    alive.add(node)
                    pending.append(node)
        edges = {}
        for node, options in moves.items():
            kept = []
            for part, child, targets in options:
                living = {label: following for label, following in targets.items() if following in alive}
                if living:
                    kept.append((part, child, living))
            if node in alive and kept:
                edges[node] = kept
        return closings, edges
