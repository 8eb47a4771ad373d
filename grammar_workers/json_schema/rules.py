"""Which rules have anything in them: the least fixpoint over everything that a root rule can call.

A value exists for a rule with a label if a scalar does, or a container all of whose parts exist. Recursive schemas make
this circular; labels are added until nothing changes, so a recursion that never ends contributes nothing. What is left
is exactly what can be generated, which is why the machine has no dead ends.
"""

from __future__ import annotations

import functools

from grammar_workers.charset import Charset
from grammar_workers.errors import LimitExceededError
from grammar_workers.json_schema.arrays import Arrays, PlainArray
from grammar_workers.json_schema.containers import Container, Node, Rule
from grammar_workers.json_schema.formula import FALSE, TRUE, FormulaId, FormulaPool, JsonType
from grammar_workers.json_schema.objects import Objects
from grammar_workers.json_schema.scalars import Label, Scalars, TextLanguage
from grammar_workers.json_text import encode_string_body
from grammar_workers.options import Limits

CONSTANTS = {JsonType.NULL: b"null", JsonType.TRUE: b"true", JsonType.FALSE: b"false"}
_ARRAY_SYMBOLS = "[], "
_OBJECT_SYMBOLS = '{}",: '


class Rules:
    """Answers questions about rules; `solve` must have seen the root first."""

    def __init__(self, pool: FormulaPool, limits: Limits, spellable: frozenset[str] | None) -> None:
        self.pool = pool
        self._limits = limits
        self.spellable = spellable
        self._scalars = Scalars(pool, limits, spellable)
        self._labels: dict[Rule, set[Label]] = {}
        self._users: dict[Rule, dict[Rule, None]] = {}
        self._fresh: list[Rule] = []
        self._steps = 0
        self.strings = functools.cache(self._strings)
        self.numbers = functools.cache(self._numbers)
        self.objects = functools.cache(self._objects)
        self.arrays = functools.cache(self._arrays)

    @property
    def writable(self) -> Charset:
        """The characters that the vocabulary can write inside a JSON string."""
        return self._scalars.writable

    def labels(self, rule: Rule) -> frozenset[Label]:
        """The labels with which some value satisfies `rule`; empty when nothing does."""
        return frozenset(self._labels[rule])

    def satisfiable(self, rule: Rule) -> bool:
        return bool(self._labels[rule])

    def constant(self, rule: Rule, type_: JsonType) -> Label | None:
        """The label of null, true or false, None when it does not satisfy the rule or cannot be spelled."""
        formulas = self._resolved(rule, type_)
        if formulas[0] != TRUE or not self._can_spell(CONSTANTS[type_].decode()):
            return None
        return tuple(formula == TRUE for formula in formulas[1:])

    # -- the fixpoint ----------------------------------------------------------------------------------------------

    def solve(self, root: Rule) -> None:
        """Find the labels of `root` and of every rule that it may call."""
        self._labels[root] = set()
        self._fresh = [root]
        # Insertion order makes this a queue: rules whose children have gained labels since they were evaluated.
        again: dict[Rule, None] = {}
        while self._fresh or again:
            rule = self._fresh.pop() if self._fresh else next(iter(again))
            again.pop(rule, None)
            known = self._labels[rule]
            before = len(known)
            known |= self._evaluate(rule)
            if len(known) > before:
                again.update(self._users.get(rule, {}))

    def _evaluate(self, rule: Rule) -> set[Label]:
        labels: set[Label] = set(self.strings(rule).labels) | set(self.numbers(rule).labels)
        for type_ in CONSTANTS:
            label = self.constant(rule, type_)
            if label is not None:
                labels.add(label)
        containers: tuple[Arrays | None, Objects | None] = (self.arrays(rule), self.objects(rule))
        for container in containers:
            if container is not None:
                labels |= self._container_labels(rule, container)
        return labels

    def _container_labels(self, rule: Rule, container: Arrays | Objects) -> set[Label]:
        if container.is_plain:
            if isinstance(container, Objects):
                exists = self._object_exists(rule, container)
            else:
                exists = self._array_exists(rule, container)
            return {container.plain_label} if exists else set()
        return {label for node in self.reachable(rule, container) if (label := container.close(node)) is not None}

    def _object_exists(self, rule: Rule, container: Objects) -> bool:
        plain = container.plain()
        for child in plain.classes:
            self._ask(rule, child)
        found = [bool(self._ask(rule, child)) for _, child in plain.properties]
        return all(found[index] for index in plain.required)

    def _array_exists(self, rule: Rule, container: Arrays) -> bool:
        plain = container.plain()
        for child in (*plain.prefix, plain.items):
            self._ask(rule, child)
        longest = self.longest(plain)
        return longest is None or longest >= plain.minimum

    def longest(self, plain: PlainArray) -> int | None:
        """How many items a plain array can have at most, given which of them exist; None when unlimited."""
        limit = plain.maximum
        for position, child in enumerate((*plain.prefix, plain.items)):
            if not self._labels.get(child):
                return position if limit is None else min(limit, position)
        return limit

    def reachable(self, rule: Rule, container: Container) -> list[Node]:
        """The nodes reached from the start over parts that exist, as far as is known."""
        found = {container.start: None}
        pending = [container.start]
        while pending:
            node = pending.pop()
            self._spend(4 * container.width)
            for move in container.moves(node):
                for label in tuple(self._ask(rule, move.rule)):
                    following = move.follow(label)
                    if following is not None and following not in found:
                        found[following] = None
                        pending.append(following)
                self._spend(4 * len(self._labels.get(move.rule, ())))
        return list(found)

    def _ask(self, user: Rule, rule: Rule) -> set[Label]:
        self._users.setdefault(rule, {}).setdefault(user)
        self._spend(1)
        known = self._labels.get(rule)
        if known is None:
            known = self._labels[rule] = set()
            self._fresh.append(rule)
        return known

    def _spend(self, steps: int) -> None:
        self._steps += steps
        if self._steps > self._limits.max_steps:
            raise LimitExceededError(f"compiling takes more than {self._limits.max_steps} steps (limit max_steps)")

    # -- by type ---------------------------------------------------------------------------------------------------

    def _resolved(self, rule: Rule, type_: JsonType) -> tuple[FormulaId, ...]:
        return tuple(self.pool.resolve(formula, type_) for formula in (rule.formula, *rule.classifiers))

    def _strings(self, rule: Rule) -> TextLanguage:
        return self._scalars.strings(self._resolved(rule, JsonType.STRING))

    def _numbers(self, rule: Rule) -> TextLanguage:
        return self._scalars.numbers(self._resolved(rule, JsonType.NUMBER))

    def _objects(self, rule: Rule) -> Objects | None:
        formulas = self._resolved(rule, JsonType.OBJECT)
        if formulas[0] == FALSE or not self._can_spell(_OBJECT_SYMBOLS):
            return None
        scalars = self._scalars
        return Objects(
            self.pool, formulas, scalars.pattern, scalars.doubtful, scalars.texts, self._can_write, self._limits
        )

    def _arrays(self, rule: Rule) -> Arrays | None:
        formulas = self._resolved(rule, JsonType.ARRAY)
        return None if formulas[0] == FALSE or not self._can_spell(_ARRAY_SYMBOLS) else Arrays(self.pool, formulas)

    def _can_write(self, name: str) -> bool:
        return self._can_spell(encode_string_body(name).decode())

    def _can_spell(self, text: str) -> bool:
        return self.spellable is None or self.spellable.issuperset(text)
