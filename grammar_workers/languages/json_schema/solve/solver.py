"""The solver computes which demands have values, and the labels of these values, as a least fixpoint.

A *demand* (`derivatives.Demand`) is a formula that a value must satisfy, with further formulas to test on the value. A
*label* is the tuple of the truth values of the tested formulas. An array or object adds a label to its demand only if
values exist for all its items or properties. Recursive schemas make this definition circular. So the solver adds labels
until nothing changes; a recursion that never ends contributes no value. The computed labels are exactly the labels of
the values that can be generated. Therefore the pushdown automaton has no dead ends.

    {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}

requires another object inside each object. Its demand never gets a label, so it has no values.
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
from grammar_workers.languages.json_schema.solve.text_language import EMPTY, TextLanguage
from grammar_workers.memo import memoized
from grammar_workers.options import GrammarOptions, Limits

# The texts of null, true and false.
Constants: TypeAlias = Mapping[JsonType, bytes]
JSON_CONSTANTS: Constants = {JsonType.NULL: b"null", JsonType.TRUE: b"true", JsonType.FALSE: b"false"}
# Number of distinct items from which the length of an array counts as unlimited.
_MOST_COUNTED = 1 << 30
# Numbers of sets of seen values: the nodes of an array distinguish the first always, and at most the second.
_FEW_SETS, _MOST_SETS = 32, 800
# Maximum nesting of evaluations of demands; demands that are nested deeper are queued.
_MAX_DEPTH = 12


class _OtherOrderError(Exception):
    """Signals that an object was just found to need the declared order."""


class Solver:
    """Computation of the labels of a root demand, and of all demands on values inside it (method `solve`).

    A demand is a formula that a value must satisfy, with further formulas to test. A label is the tuple of the truth
    values of the tested formulas. If the vocabulary cannot encode commas, arrays and objects have at most one item or
    property. If it cannot encode colons, objects are empty.

    Args:
        pool: Table of all formulas.
        options: `whitespace` and `property_order` are read.
        limits: Limits of the compilation.
        spellable: The characters that the vocabulary can encode; None for all.
        permitted: The language of every string and property name; None for any text.
        constants: JSON type -> the text of null, true or false.
        distinct: True to require unique undeclared names if a formula counts properties.

    Attributes:
        notes: Warnings for the user.
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
        # With flexible white space, separators need no space.
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
        # True if texts are not restricted: every text of the constants, and every string, can be generated.
        self.is_free = spellable is None and permitted is None and constants is JSON_CONSTANTS
        self._steps = 0
        self._begin()

    def _begin(self) -> None:
        """Create anew all that depends on the order of properties in objects."""
        self._labels: dict[Demand, set[Label]] = {}
        self._users: dict[Demand, dict[Demand, None]] = {}
        self._fresh: list[Demand] = []
        # A queue in insertion order: demands whose children have gained labels since the demand was evaluated.
        self._again: dict[Demand, None] = {}
        self._depth = 0
        self._objects: dict[Demand, Objects | None] = {}
        self._explored: dict[DerivativeGraph, Exploration] = {}

    def common(self, demand: Demand) -> int | None:
        """Return the index of a demand in `FormulaPool.common`. None if it is not there, or if texts are restricted.

        Args:
            demand: A formula that a value must satisfy, with formulas to test.
        """
        return self.pool.common_of.get(demand.formula) if self.is_free and not demand.questions else None

    def labels(self, demand: Demand) -> Set[Label]:
        """Return the labels (truth values of the tested formulas) of the values of a demand. Empty if it has no value.

        Args:
            demand: The solved root demand (formula for a value), or a demand on a value inside it.
        """
        return self._labels[demand]

    def satisfiable(self, demand: Demand) -> bool:
        """Return whether a value satisfies `demand`, which is the solved root or a demand on a value inside it."""
        return bool(self._labels[demand])

    @property
    def has_doubts(self) -> bool:
        """True if objects are excluded because it is not certain that they satisfy the schema."""
        return any(container is not None and container.has_doubts for container in self._objects.values())

    @property
    def disputed_names(self) -> list[str]:
        """Declared property names that are not generated, because a pattern matches them only in ECMA-262 or Python."""
        found = (container.name_classes.disputed for container in self._objects.values() if container is not None)
        return list(dict.fromkeys(name for names in found for name in names))

    @property
    def doubt(self) -> str | None:
        """Reason why objects that may satisfy the schema are excluded, with advice. None if none are excluded."""
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
        """Compute the labels of a root demand, and of every demand on an item or property inside its values.

        A label is the tuple of the truth values of the tested formulas. LimitExceededError is raised if the computation
        takes too many steps.

        Args:
            root: The demand on the whole value: the formula that it must satisfy, with formulas to test.
        """
        while True:
            try:
                self._find_labels(root)
                break
            except _OtherOrderError:
                # Labels found so far may be wrong.
                self._begin()
        self._steps_for_any_order = self._limits.max_steps

    def _find_labels(self, root: Demand) -> None:
        self._labels[root] = set()
        self._fresh.append(root)
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
            for child in container.plain.children:
                self._ask(demand, child)
            return {container.plain_label} if self.exists(container) else set()
        if container not in self._explored:
            self._explored[container] = Exploration(container)
        explored = self._explored[container]
        explored.go_on(functools.partial(self._ask, demand), self._spend)
        return {label for node in explored.moves if (label := self.endings(demand, container, node)[0]) is not None}

    def endings(
        self, demand: Demand, container: DerivativeGraph, node: Node
    ) -> tuple[Label | None, tuple[Ending, ...]]:
        """Return the label of an array or object that ends at a node, and the conditions for this end.

        Args:
            demand: Demand (formula for a value) of the array or object.
            container: Graph of the arrays or objects of `demand`.
            node: Node of the graph: the formulas that are undecided after some items or properties.

        Returns:
            Label (truth values of the tested formulas), and conditions, at least one of which must hold. (None, ()) if
            the array or object may not end at the node, given the labels found so far.
        """
        label = container.label_at(node)
        if label is None:
            return None, ()
        endings = container.endings(node)
        if any(ending.demands for ending in endings):
            endings = tuple(e for e in endings if all(self._ask(demand, child) for child in e.demands))
        return (label, endings) if endings else (None, ())

    def exists(self, container: Arrays | Objects) -> bool:
        """Return whether there is an array or object, given the labels found so far.

        Args:
            container: Graph of arrays or objects. `is_plain` must be true: each part has one demand.
        """
        if isinstance(container, Arrays):
            longest = self.longest(container)
            return longest is None or longest >= container.plain.minimum
        properties = container.plain.properties
        return all(self.satisfiable(properties[index]) for index in container.plain.required)

    def longest(self, container: Arrays) -> int | None:
        """Return the largest number of items for which values exist. None: no limit.

        Args:
            container: Graph of arrays. `is_plain` must be true: each position has one demand, so only the number of
                items is open.
        """
        plain = container.plain
        limit = plain.maximum
        if container.is_distinct and not plain.prefix:
            known = self._distinct_items(plain.items)
            if known is not None and (limit is None or known < limit):
                limit = known
        for position, child in enumerate(plain.children):
            if not self._labels.get(child):
                return position if limit is None else min(limit, position)
        return limit

    @memoized
    def _distinct_items(self, items: Demand) -> int | None:
        """Return the number of values of a demand; None if there are too many, or containers among them."""
        if self.arrays(items) is not None or self.objects(items) is not None:
            return None
        size = self.size(items)
        return size.least if size.exact and size.least < _MOST_COUNTED else None

    @memoized
    def size(self, demand: Demand, label: Label | None = None) -> Size:
        """Return the number of values of a demand, exactly or as a lower bound.

        If arrays or objects satisfy the demand, `solve` must have finished.

        Args:
            demand: A formula that a value must satisfy, with formulas to test.
            label: Truth values that the tested formulas must have; None counts values with any label.
        """
        return size_of(self, demand, label)

    def explored(self, container: DerivativeGraph) -> dict[Node, list[Move]]:
        """Return the nodes of a graph that existing arrays or objects reach, each with its moves.

        A node has the formulas that are undecided after some items or properties. A move reads one more item or
        property.

        Args:
            container: Graph of the arrays or objects of a demand that `solve` has reached.
        """
        return self._explored[container].moves

    def _ask(self, user: Demand, demand: Demand) -> set[Label]:
        self._spend(4)
        known = self._labels.get(demand)
        if known is None and self.common(demand) is not None:
            known = self._labels[demand] = {()}
        elif known is None:
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
        if not demand.questions:
            return (resolve(demand.formula, type_),)
        return (resolve(demand.formula, type_), *[resolve(formula, type_) for formula in demand.questions])

    @memoized
    def constants(self, demand: Demand) -> dict[JsonType, Label]:
        """Return the constants (null, true, false) that satisfy a demand and that tokens can encode.

        Args:
            demand: A formula that a value must satisfy, with formulas to test.

        Returns:
            JSON type of each of these constants -> its label (truth values of the tested formulas).
        """
        found = {}
        for type_, text in self.constant_texts.items():
            if self.pool.resolve(demand.formula, type_) == TRUE and self.spelling.can_spell(text.decode()):
                found[type_] = tuple(self.pool.resolve(formula, type_) == TRUE for formula in demand.questions)
        return found

    @memoized
    def strings(self, demand: Demand) -> TextLanguage:
        """Return the strings that satisfy a demand, each with its label. The texts are without quotes and escapes.

        Args:
            demand: A formula that a value must satisfy, with formulas to test. A label has the truth values of the
                tested ones.
        """
        formulas = self._resolved(demand, JsonType.STRING)
        if formulas[0] == FALSE:
            return EMPTY
        with located(self.pool.pattern_pointer(demand.formula)):
            return self.string_languages.language(formulas)

    @memoized
    def numbers(self, demand: Demand) -> TextLanguage:
        """Return the texts of the numbers that satisfy a demand, each with its label.

        Args:
            demand: A formula that a value must satisfy, with formulas to test. A label has the truth values of the
                tested ones.
        """
        return self.number_languages.language(self._resolved(demand, JsonType.NUMBER))

    def objects(self, demand: Demand) -> Objects | None:
        """Return the derivative graph of the objects that satisfy a demand. None if there are certainly none.

        In this graph, a node has the formulas that are undecided after some properties.

        Args:
            demand: A formula that a value must satisfy, with formulas to test.
        """
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
        """Return the derivative graph of the arrays that satisfy a demand. None if there are certainly none.

        In this graph, a node has the formulas that are undecided after some items.

        Args:
            demand: A formula that a value must satisfy, with formulas to test.
        """
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
        """Return whether the nodes of an array should distinguish the sets of listed values seen so far.

        They should if the sets are few: the nodes are then cheap, and their masks can be prefetched. They should also,
        up to a maximum, if it is not certain that an unused value is left wherever another item is required.
        """
        if arrays.seen_sets > _FEW_SETS and arrays.is_plain and not arrays.plain.prefix:
            minimum = arrays.plain.minimum
            if minimum < 2 or (self._distinct_items(arrays.plain.items) or 0) >= minimum:
                return False
        return arrays.seen_sets <= _MOST_SETS
