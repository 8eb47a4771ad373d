"""Which demands have values, and with which labels: the least fixpoint over everything that a root demand can call.

A value of a demand exists with a label if a scalar does, or a container all of whose parts exist. Recursive schemas
make this circular: labels are added until nothing changes, so a recursion that never ends contributes nothing. What is
left is exactly what can be generated, which is why the pushdown automaton has no dead ends.

    {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}

asks of every list that another one is inside of it: nothing ever gives it a label, so it has no values.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Set
from typing import TypeAlias

from grammar_workers.budget import limits_at
from grammar_workers.dfa.dfa import Dfa
from grammar_workers.languages.compilation import located
from grammar_workers.languages.json_schema.assertions import ArrayShape, FormulaId, JsonType, PropertyCount
from grammar_workers.languages.json_schema.labels import Label
from grammar_workers.languages.json_schema.logic import FALSE, TRUE, FormulaPool
from grammar_workers.languages.json_schema.solve.any_order import AnyOrderObjects, TooManyOrdersError
from grammar_workers.languages.json_schema.solve.arrays import Arrays
from grammar_workers.languages.json_schema.solve.derivatives import Demand, DerivativeGraph, Ending, Move, Node
from grammar_workers.languages.json_schema.solve.disjoint import Disjointness
from grammar_workers.languages.json_schema.solve.exploration import Exploration
from grammar_workers.languages.json_schema.solve.numbers import Numbers
from grammar_workers.languages.json_schema.solve.objects import Objects
from grammar_workers.languages.json_schema.solve.sizes import Size, size_of
from grammar_workers.languages.json_schema.solve.spelling import Spelling
from grammar_workers.languages.json_schema.solve.strings import Strings
from grammar_workers.languages.json_schema.solve.text_language import TextLanguage
from grammar_workers.memo import memoized
from grammar_workers.options import GrammarOptions, Limits

Constants: TypeAlias = Mapping[JsonType, bytes]
JSON_CONSTANTS: Constants = {JsonType.NULL: b"null", JsonType.TRUE: b"true", JsonType.FALSE: b"false"}
_MOST_COUNTED = 1 << 30
_FEW_SETS, _MOST_SETS = 32, 800
_MAX_DEPTH = 12
"""How deep demands are evaluated within each other; deeper ones wait for their turn."""


class _OtherOrderError(Exception):
    """Some object has just been found to need the declared order."""


class Solver:
    """What is known of the values of demands, once `solve` has seen the root. Labels are only ever added.

    `distinct`: whether undeclared names may be told apart, where their number matters.
    `permitted` restricts every string and property name (None: any text). `constants` is how null, true and false are
    written. Where the vocabulary cannot spell commas or colons, containers hold one part at most, or none.
    """

    def __init__(
        self,
        pool: FormulaPool,
        options: GrammarOptions,
        limits: Limits,
        spellable: frozenset[str] | None,
        permitted: Dfa | None,
        constants: Constants = JSON_CONSTANTS,
        *,
        distinct: bool = False,
    ) -> None:
        # Where white space may vary, it need not be there.
        space = " " if options.whitespace == "compact" else ""
        self._comma, self._colon = "," + space, ":" + space
        self.pool = pool
        self.constant_texts = constants
        self.notes: list[str] = []
        self._limits = limits
        self._distinct = distinct
        self._any_order = self._alternatives_in_any_order = options.property_order == "any"
        self._steps_for_any_order = limits.max_steps // 4
        self._in_declared_order: set[tuple[FormulaId, ...]] = set()
        self._disjointness = Disjointness(pool)
        self.spelling = Spelling(spellable)
        self.string_languages = Strings(pool, limits, self.spelling, permitted)
        self.number_languages = Numbers(pool, limits, self.spelling)
        self._labels: dict[Demand, set[Label]] = {}
        self._users: dict[Demand, dict[Demand, None]] = {}
        self._fresh: list[Demand] = []
        # Insertion order makes this a queue: demands whose children have gained labels since they were evaluated.
        self._again: dict[Demand, None] = {}
        self._depth = 0
        self._steps = 0
        self._objects: dict[Demand, Objects | None] = {}
        self._explored: dict[DerivativeGraph, Exploration] = {}

    def labels(self, demand: Demand) -> Set[Label]:
        """The labels with which some value satisfies `demand`; empty when nothing does."""
        return self._labels[demand]

    def satisfiable(self, demand: Demand) -> bool:
        return bool(self._labels[demand])

    @property
    def has_doubts(self) -> bool:
        """True if some objects are left out because it is not certain that they satisfy what they should."""
        return any(container is not None and container.has_doubts for container in self._objects.values())

    @property
    def disputed_names(self) -> list[str]:
        """Declared names that are not generated, because some pattern matches them in one dialect alone."""
        found = (container.name_classes.disputed for container in self._objects.values() if container is not None)
        return list(dict.fromkeys(name for names in found for name in names))

    @property
    def doubt(self) -> str | None:
        """Why some objects that may satisfy the schema are left out, and what to change; None where none are."""
        if self.has_doubts:
            return (
                "undeclared properties may repeat a name, so their number is not known, nor whether a later one "
                "replaces an earlier one; declare these properties"
            )
        if disputed := self.disputed_names:
            return (
                f"ECMA-262 and Python disagree whether a pattern matches the property name {disputed[0]!a}; write the "
                "pattern so that both read it alike"
            )
        return None

    # -- the fixpoint ----------------------------------------------------------------------------------------------

    def solve(self, root: Demand) -> None:
        """Find the labels of `root` and of every demand that it may call."""
        while True:
            try:
                self._find_labels(root)
                break
            except _OtherOrderError:
                self._depth = 0
                # Labels found so far may be wrong.
                self._labels.clear()
                self._users.clear()
                self._objects.clear()
                self._explored.clear()
        self._steps_for_any_order = self._limits.max_steps

    def _find_labels(self, root: Demand) -> None:
        self._labels[root] = set()
        self._fresh = [root]
        self._again = {}
        while self._fresh or self._again:
            self._add_labels(self._fresh.pop() if self._fresh else next(iter(self._again)))

    def _add_labels(self, demand: Demand) -> None:
        self._again.pop(demand, None)
        known = self._labels[demand]
        before = len(known)
        try:
            with limits_at(self.pool.pointer(demand.formula)):
                known |= self._evaluate(demand)
        except TooManyOrdersError as error:
            if self._steps > self._steps_for_any_order:
                self._only_plain_in_any_order(error)
            else:
                self._keep_declared_order(self._object_formulas(demand), error)
            raise _OtherOrderError from error
        if len(known) > before:
            self._again.update(self._users.get(demand, {}))

    def _evaluate(self, demand: Demand) -> set[Label]:
        labels: set[Label] = {
            *self.strings(demand).labels,
            *self.numbers(demand).labels,
            *self.constants(demand).values(),
        }
        containers: tuple[Arrays | None, Objects | None] = (self.arrays(demand), self.objects(demand))
        for container in containers:
            if container is not None:
                labels |= self._container_labels(demand, container)
        return labels

    def _container_labels(self, demand: Demand, container: Arrays | Objects) -> set[Label]:
        if container.is_plain:
            if isinstance(container, Objects):
                exists = self._object_exists(demand, container)
            else:
                exists = self._array_exists(demand, container)
            return {container.plain_label} if exists else set()
        if container not in self._explored:
            self._explored[container] = Exploration(container)
        explored = self._explored[container]
        explored.go_on(functools.partial(self._ask, demand), self._spend)
        return {label for node in explored.moves if (label := self.endings(demand, container, node)[0]) is not None}

    def endings(
        self, demand: Demand, container: DerivativeGraph, node: Node
    ) -> tuple[Label | None, tuple[Ending, ...]]:
        """The label with which the container may end at `node`, and the conditions of which one must hold then.

        None and no condition where it may not end there, as far as demands have values by now.
        """
        label = container.label_at(node)
        if label is None:
            return None, ()
        endings = container.endings(node)
        if any(ending.demands for ending in endings):
            endings = tuple(e for e in endings if all(self._ask(demand, child) for child in e.demands))
        return (label, endings) if endings else (None, ())

    def _object_exists(self, demand: Demand, container: Objects) -> bool:
        plain = container.plain
        for child in plain.classes:
            self._ask(demand, child)
        found = [bool(self._ask(demand, child)) for _, child in plain.properties]
        return all(found[index] for index in plain.required)

    def _array_exists(self, demand: Demand, container: Arrays) -> bool:
        plain = container.plain
        for child in (*plain.prefix, plain.items):
            self._ask(demand, child)
        longest = self.longest(container)
        return longest is None or longest >= plain.minimum

    def longest(self, container: Arrays) -> int | None:
        """The most items that a plain array can have, given which of them exist; None when unlimited."""
        plain = container.plain
        limit = plain.maximum
        if container.is_distinct and not plain.prefix:
            known = self._distinct_items(plain.items)
            if known is not None and (limit is None or known < limit):
                limit = known
        for position, child in enumerate((*plain.prefix, plain.items)):
            if not self._labels.get(child):
                return position if limit is None else min(limit, position)
        return limit

    @memoized
    def _distinct_items(self, items: Demand) -> int | None:
        """How many values a demand has, None for too many to count and where containers are among them."""
        if self.arrays(items) is not None or self.objects(items) is not None:
            return None
        size = self.size(items)
        return size.least if size.exact and size.least < _MOST_COUNTED else None

    @memoized
    def size(self, demand: Demand, label: Label | None = None) -> Size:
        """How many values a demand has, with one label or with any. For containers, `solve` must be through."""
        return size_of(self, demand, label)

    def explored(self, container: DerivativeGraph) -> dict[Node, list[Move]]:
        """The nodes reached from the start over parts that exist or are skipped, with the moves that part from them."""
        return self._explored[container].moves

    def _ask(self, user: Demand, demand: Demand) -> set[Label]:
        self._spend(4)
        known = self._labels.get(demand)
        if known is None:
            known = self._labels[demand] = set()
            # Children first, as far as the stack allows: `user` is then evaluated once, not after each of them.
            if self._depth < _MAX_DEPTH:
                self._depth += 1
                self._add_labels(demand)
                self._depth -= 1
            else:
                self._fresh.append(demand)
        self._users.setdefault(demand, {}).setdefault(user)
        return known

    def _spend(self, steps: int) -> None:
        self._steps += steps
        if self._alternatives_in_any_order and self._steps > self._steps_for_any_order:
            raise TooManyOrdersError("to tell apart which properties have been seen takes too many steps")
        self.pool.spend(steps)

    # -- by type ---------------------------------------------------------------------------------------------------

    def _resolved(self, demand: Demand, type_: JsonType) -> tuple[FormulaId, ...]:
        resolve = self.pool.resolve
        return (resolve(demand.formula, type_), *[resolve(formula, type_) for formula in demand.questions])

    @memoized
    def constants(self, demand: Demand) -> dict[JsonType, Label]:
        """The labels of null, true and false, as far as they satisfy the demand and can be spelled."""
        found = {}
        for type_, text in self.constant_texts.items():
            if self.pool.resolve(demand.formula, type_) == TRUE and self.spelling.can_spell(text.decode()):
                found[type_] = tuple(self.pool.resolve(formula, type_) == TRUE for formula in demand.questions)
        return found

    @memoized
    def strings(self, demand: Demand) -> TextLanguage:
        """The strings that satisfy a demand, as texts without quotes and escapes."""
        with located(self.pool.pattern_pointer(demand.formula)):
            return self.string_languages.language(self._resolved(demand, JsonType.STRING))

    @memoized
    def numbers(self, demand: Demand) -> TextLanguage:
        """The numbers that satisfy a demand, as they are spelled."""
        return self.number_languages.language(self._resolved(demand, JsonType.NUMBER))

    def objects(self, demand: Demand) -> Objects | None:
        """The objects that satisfy a demand, None when there are none."""
        if demand not in self._objects:
            self._objects[demand] = self._find_objects(demand)
        return self._objects[demand]

    def _find_objects(self, demand: Demand) -> Objects | None:
        formulas = self._object_formulas(demand)
        if formulas[0] == FALSE or not self.spelling.can_spell("{}"):
            return None
        if self._any_order and formulas not in self._in_declared_order:
            container = AnyOrderObjects(self.pool, formulas, self.string_languages, distinct=self._distinct)
            try:
                container.check()
                if container.is_plain or self._alternatives_in_any_order:
                    return container
            except TooManyOrdersError as error:
                self._keep_declared_order(formulas, error)
        return Objects(self.pool, formulas, self.string_languages, distinct=self._distinct)

    def _object_formulas(self, demand: Demand) -> tuple[FormulaId, ...]:
        demanded, *asked = map(self._disjointness.simplify, self._resolved(demand, JsonType.OBJECT))
        if not self.spelling.can_spell(f'"{self._comma}{self._colon}'):
            most = PropertyCount(0, int(self.spelling.can_spell(f'"{self._colon}')))
            demanded = self.pool.all_of([demanded, self.pool.atom(JsonType.OBJECT, most)])
        return (demanded, *asked)

    def _only_plain_in_any_order(self, reason: TooManyOrdersError) -> None:
        self._steps = 0
        self._alternatives_in_any_order = False
        self.notes.append(f"objects with alternatives keep the declared order: {reason.message}")

    def _keep_declared_order(self, formulas: tuple[FormulaId, ...], reason: TooManyOrdersError) -> None:
        self._in_declared_order.add(formulas)
        names = Objects.declared_names(self.pool, formulas)
        listed = ", ".join(map(repr, names[:3])) + (", ..." if len(names) > 3 else "")
        self.notes.append(f"an object of {listed} keeps the declared order: {reason.message}")

    @memoized
    def arrays(self, demand: Demand) -> Arrays | None:
        """The arrays that satisfy a demand, None when there are none."""
        demanded, *asked = self._resolved(demand, JsonType.ARRAY)
        if not self.spelling.can_spell(self._comma):
            demanded = self.pool.all_of([demanded, self.pool.atom(JsonType.ARRAY, ArrayShape((), TRUE, 0, 1))])
        if demanded == FALSE or not self.spelling.can_spell("[]"):
            return None
        within = (demand.formula, *demand.questions)
        arrays = Arrays(self.pool, (demanded, *asked), within=within)
        if arrays.once is not None and self._tells_sets_apart(arrays):
            return Arrays(self.pool, (demanded, *asked), within=within, listed=True)
        return arrays

    def _tells_sets_apart(self, arrays: Arrays) -> bool:
        """True if nodes for the sets of listed values that have come are few, or needed and not too many.

        They are needed where it is not certain that another value is left wherever an item must come. Few nodes are
        soon made, and their masks can be computed ahead.
        """
        if arrays.seen_sets > _FEW_SETS and arrays.is_plain and not arrays.plain.prefix:
            minimum = arrays.plain.minimum
            if minimum < 2 or (self._distinct_items(arrays.plain.items) or 0) >= minimum:
                return False
        return arrays.seen_sets <= _MOST_SETS
