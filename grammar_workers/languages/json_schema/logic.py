"""Boolean formulas over assertions: the meaning of a JSON Schema. Each formula has a number (hash consing).

A schema becomes a formula over *type tests* and *atoms*. An atom is an assertion about one JSON type. It is true of
every value of another type. A *literal* is an atom or its negation. Only atoms and references are negated. A formula is
*resolved* if it is reduced to values of one JSON type, so that it contains only constants and literals. A `FormulaPool`
numbers formulas. Equal formulas have equal numbers, so their automata can be shared. For example, this schema becomes
four formulas. For strings, number 5 is resolved to number 4:

    {"type": "string", "not": {"maxLength": 2}}

    2: type test {string}   3: atom (string, lengths 0..2)   4: not 3   5: all of 2, 4
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from grammar_workers.budget import budget_of
from grammar_workers.errors import InvalidSpecificationError
from grammar_workers.languages.json_schema.assertions import (
    ALL_TYPES,
    Assertion,
    FormulaId,
    IsInteger,
    JsonType,
    ObjectShape,
)
from grammar_workers.memo import memoized
from grammar_workers.options import Limits


@dataclasses.dataclass(frozen=True, slots=True)
class TypeTest:
    """Formula that is true if the JSON type of a value is among the flags `types`.

    No flag makes the constant FALSE, and all flags make the constant TRUE.
    """

    types: JsonType


@dataclasses.dataclass(frozen=True, slots=True)
class Atom:
    """Formula that is true if a value satisfies `assertion`, or if its JSON type is not `type`."""

    type: JsonType
    assertion: Assertion


@dataclasses.dataclass(frozen=True, slots=True)
class AllOf:
    """Conjunction of formulas, which are given by their numbers in the `FormulaPool`."""

    parts: tuple[FormulaId, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class AnyOf:
    """Disjunction of formulas, which are given by their numbers in the `FormulaPool`."""

    parts: tuple[FormulaId, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Not:
    """Negation of the formula with the number `part`, which is an atom (single assertion) or a reference."""

    part: FormulaId


@dataclasses.dataclass(frozen=True, slots=True)
class Reference:
    """Placeholder for the formula of a subschema. `FormulaPool.define` sets this formula under the name `location`."""

    location: str


@dataclasses.dataclass(frozen=True, slots=True)
class Noted:
    """Schema from which a formula was made, for messages.

    Attributes:
        pointer: JSON Pointer of the schema.
        keywords: The keywords of the schema that its dialect defines, with their values.
    """

    pointer: str
    keywords: Mapping[str, Any]


Formula: TypeAlias = TypeTest | Atom | AllOf | AnyOf | Not | Reference

FALSE: FormulaId = 0
TRUE: FormulaId = 1
# Marks a formula that is being resolved: if it is reached again, references form a cycle.
_OPEN: FormulaId = -1


# Tuples made once: a union of types in a call of `isinstance` would be built anew in each of many thousand calls.
_LITERALS = (Atom, Not)
_JOINS = (AllOf, AnyOf)
_TYPES = tuple(JsonType)


# (types, formula about numbers): the formulas of the most frequent schemas. Every pool gives the numbers 2 and 3 to the
# assertions of integers.
_COMMON = [(ALL_TYPES, TRUE), (JsonType.STRING, TRUE), (JsonType.TRUE | JsonType.FALSE, TRUE)]
_COMMON += [(JsonType.NUMBER, about_numbers) for about_numbers in (TRUE, 2, 3)]
# The formulas of each type, as for `canonical` -> index in `_COMMON`.
_COMMON_MEANINGS = {
    tuple([(about if type_ is JsonType.NUMBER else TRUE) if types & type_ else FALSE for type_ in _TYPES]): index
    for index, (types, about) in enumerate(_COMMON)
}


class FormulaPool:
    """Table of all formulas of a compilation. Each formula is stored once and identified by its number.

    Constants and repeated operands are removed. Most methods raise LimitExceededError if the limit of steps is reached.

    Args:
        limits: `max_steps` limits the steps of the compilation.

    Attributes:
        hint: Likely reason, for the error message if no value satisfies the schema; "" for none.
        common: Formulas of the most frequent schemas, such as `true` and `{"type": "string"}`.
        common_of: Canonical formula (see `canonical`) -> index of the formula in `common` that has the same meaning.
    """

    def __init__(self, limits: Limits) -> None:
        self.hint = ""
        self._budget = budget_of(limits)
        self._formulas: list[Formula] = []
        self._negations: set[FormulaId] = set()
        # The constants have the numbers FALSE and TRUE.
        for types in (JsonType(0), ALL_TYPES):
            self.types(types)
        self._definitions: dict[str, FormulaId] = {}
        self._definition_pointers: dict[str, str] = {}
        self._pointers: dict[FormulaId, list[str]] = {}
        self._schemas: dict[FormulaId, Noted] = {}
        self._resolved: dict[tuple[FormulaId, JsonType], FormulaId] = {}
        self._meanings: dict[tuple[FormulaId, ...], FormulaId] = {(TRUE,) * len(_TYPES): TRUE}
        for by_spelling in (False, True):
            self.atom(JsonType.NUMBER, IsInteger(by_spelling))
        self.common = [self.all_of([self.types(types), about_numbers]) for types, about_numbers in _COMMON]
        self.common_of: dict[FormulaId, int] = {TRUE: 0}

    def spend(self, steps: int) -> None:
        """Count steps of work.

        Args:
            steps: Number of steps. LimitExceededError is raised if the total exceeds the limit `max_steps`.
        """
        self._budget.spend(steps)

    def __getitem__(self, formula: FormulaId) -> Formula:
        return self._formulas[formula]

    # -- construction --------------------------------------------------------------------------------------------

    def types(self, types: JsonType) -> FormulaId:
        """Return the number of the formula "a value has one of `types`". FALSE for no type, TRUE for all types."""
        return self._make(TypeTest, types)

    def atom(self, type_: JsonType, assertion: Assertion) -> FormulaId:
        """Return the number of the formula "a value satisfies `assertion`, or its type is not `type_`"."""
        return self._make(Atom, type_, assertion)

    def reference(self, location: str) -> FormulaId:
        """Return the number of a formula that stands for the schema `location`. `define` may set its meaning later."""
        return self._make(Reference, location)

    def define(self, location: str, formula: FormulaId, pointer: str) -> None:
        """Set the formula for which `reference(location)` stands. `pointer` is the JSON Pointer of its schema."""
        self._definitions[location] = formula
        self._definition_pointers[location] = pointer

    def note_pointer(self, formula: FormulaId, pointer: str) -> None:
        """Record the JSON Pointer of a schema or keyword from which `formula` was made, for messages."""
        self._pointers.setdefault(formula, []).append(pointer)

    def note_schema(self, formula: FormulaId, pointer: str, keywords: Mapping[str, Any]) -> None:
        """Record a schema from which `formula` was made: its JSON Pointer and its known `keywords`, for messages."""
        self.note_pointer(formula, pointer)
        self._schemas.setdefault(formula, Noted(pointer, keywords))

    def schema(self, formula: FormulaId) -> Noted | None:
        """Return the first schema recorded for a formula, or for the target of a reference. None if there is none."""
        node = self._formulas[formula]
        return self._schemas.get(self._definitions[node.location] if isinstance(node, Reference) else formula)

    def pointer(self, formula: FormulaId) -> str | None:
        """Return the first JSON Pointer recorded for a formula or reference, for messages. None if there is none."""
        node = self._formulas[formula]
        if isinstance(node, Reference):
            return self._definition_pointers[node.location]
        return self._pointers[formula][0] if formula in self._pointers else None

    def pattern_pointer(self, formula: FormulaId) -> str:
        """Return the JSON Pointer of `pattern` in the schema recorded for `formula`. "" if there is no such keyword."""
        noted = self.schema(formula)
        return f"{noted.pointer}/pattern" if noted is not None and "pattern" in noted.keywords else ""

    def keyword_pointer(self, keyword: str, part: FormulaId, formulas: Iterable[FormulaId]) -> str | None:
        """Return the JSON Pointer of a keyword from which a formula was made. None if none is recorded.

        If several pointers are recorded for `part`, the schemas of `formulas` are searched in order, and then the
        schemas of their operands and references. The result is the shortest pointer inside the first of these schemas
        that contains a recorded pointer. If no schema contains one, the result is the first recorded pointer.

        Args:
            keyword: Name of the keyword, the last token of the pointer.
            part: Number of the formula.
            formulas: Numbers of formulas that contain `part`.
        """
        places = [place for place in self._pointers.get(part, ()) if place.endswith(f"/{keyword}")]
        pending = list(formulas)
        seen = set(pending)
        for one in pending:
            around = self.pointer(one)
            inside = [place for place in places if around is not None and place.startswith(f"{around}/")]
            if inside:
                return min(inside, key=len)
            node = self._formulas[one]
            parts = (self._definitions[node.location],) if isinstance(node, Reference) else getattr(node, "parts", ())
            pending += [found for found in parts if found not in seen]
            seen.update(parts)
        return places[0] if places else None

    def all_of(self, parts: Iterable[FormulaId]) -> FormulaId:
        """Return the number of the conjunction of `parts`, with the operands in this order. TRUE if there are none."""
        return self._join(parts, AllOf, TRUE, FALSE)

    def any_of(self, parts: Iterable[FormulaId]) -> FormulaId:
        """Return the number of the disjunction of `parts`, with the operands in this order. FALSE if there are none."""
        return self._join(parts, AnyOf, FALSE, TRUE)

    @memoized
    def not_(self, part: FormulaId) -> FormulaId:
        """Return the number of the negation of `part`. Negations are moved inward to atoms and references."""
        formula = self._formulas[part]
        if isinstance(formula, Not):
            return formula.part
        if isinstance(formula, TypeTest):
            return self.types(ALL_TYPES & ~formula.types)
        # Negations stand only before atoms and references.
        if isinstance(formula, AllOf):
            return self.any_of(map(self.not_, formula.parts))
        if isinstance(formula, AnyOf):
            return self.all_of(map(self.not_, formula.parts))
        negation = self._make(Not, part)
        self._negations.add(negation)
        return negation

    def _joined(self, node: AllOf | AnyOf, parts: Iterable[FormulaId]) -> FormulaId:
        return self.all_of(parts) if isinstance(node, AllOf) else self.any_of(parts)

    def _join(
        self, parts: Iterable[FormulaId], kind: type[AllOf] | type[AnyOf], neutral: FormulaId, absorbing: FormulaId
    ) -> FormulaId:
        # Order is kept, because it determines the order of properties.
        flat: dict[FormulaId, None] = {}
        for part in parts:
            formula = self._formulas[part]
            if type(formula) is kind:
                flat.update(dict.fromkeys(formula.parts))
            elif part != neutral:
                flat[part] = None
        if len(flat) <= 1:
            return next(iter(flat), neutral)
        self._budget.spend(6 + len(flat))
        if absorbing in flat:
            return absorbing
        if not self._negations.isdisjoint(flat):
            for part in flat:
                formula = self._formulas[part]
                if type(formula) is Not and formula.part in flat:
                    return absorbing
        return self._make(kind, tuple(flat))

    @memoized
    def _make(self, kind: Callable[..., Formula], *values: Any) -> FormulaId:
        self._formulas.append(kind(*values))
        return len(self._formulas) - 1

    # -- taking apart --------------------------------------------------------------------------------------------

    def resolve(self, formula: FormulaId, type_: JsonType) -> FormulaId:
        """Return a formula that equals `formula` for values of one JSON type, without type tests and references.

        Args:
            formula: Number of any formula.
            type_: The type, a single flag.

        Raises:
            InvalidSpecificationError: References form a cycle that describes no value.
        """
        known = self._resolved.get((formula, type_))
        if known is not None:
            if known == _OPEN:
                raise InvalidSpecificationError("a cycle of references that describes no value")
            return known
        self._resolved[formula, type_] = _OPEN
        node = self._formulas[formula]
        if isinstance(node, TypeTest):
            # The operator `&` of flags would take as long as the rest of this call.
            result = TRUE if int.__and__(node.types, type_) else FALSE
        elif isinstance(node, Atom):
            result = formula if node.type is type_ else TRUE
        elif isinstance(node, Reference):
            try:
                result = self.resolve(self._definitions[node.location], type_)
            except InvalidSpecificationError as error:
                # The error keeps the pointer of the innermost reference: outer references only lead to the cycle.
                error.pointer = self._definition_pointers[node.location] if error.pointer is None else error.pointer
                raise
        elif isinstance(node, Not):
            result = self.not_(self.resolve(node.part, type_))
        else:
            self._budget.spend(4 * len(node.parts))
            parts = []
            for part in node.parts:
                # Most parts are atoms. To resolve them takes less time than to look them up.
                inside = self._formulas[part]
                if type(inside) is Atom:
                    parts.append(part if inside.type is type_ else TRUE)
                else:
                    parts.append(self.resolve(part, type_))
                # All alternatives are resolved: a cycle in one of them is an error even if another one is true.
                if parts[-1] == FALSE and isinstance(node, AllOf):
                    break
            result = formula if tuple(parts) == node.parts else self._joined(node, parts)
        self._resolved[formula, type_] = result
        return result

    @memoized
    def canonical(self, formula: FormulaId) -> FormulaId:
        """Return the number of one representative for all formulas that are equal to `formula` for every JSON type.

        The representative is the first of these formulas that was passed to this method.
        """
        meaning = tuple([self.resolve(formula, type_) for type_ in _TYPES])
        first = self._meanings.setdefault(meaning, formula)
        if first == formula and meaning in _COMMON_MEANINGS:
            self.common_of[formula] = _COMMON_MEANINGS[meaning]
        return first

    def rewrite(self, formula: FormulaId, changes: Mapping[FormulaId, FormulaId]) -> FormulaId:
        """Return `formula` (reduced to one JSON type) with literals replaced: each key of `changes` by its value."""
        return self._rewrite(formula, changes, {})

    def substitute(self, formula: FormulaId, values: Mapping[FormulaId, FormulaId]) -> FormulaId:
        """Return `formula` (reduced to one JSON type) with atoms replaced: each key of `values` by its value.

        A negated atom is replaced by the negation of the atom's value.
        """
        negated = {self.not_(atom): self.not_(value) for atom, value in values.items()}
        return self.rewrite(formula, {**values, **negated})

    def _rewrite(
        self, formula: FormulaId, changes: Mapping[FormulaId, FormulaId], known: dict[FormulaId, FormulaId]
    ) -> FormulaId:
        # Parts are shared: written as a tree, a formula may be exponentially larger.
        if formula in known:
            return known[formula]
        node = self._formulas[formula]
        if not isinstance(node, _JOINS):
            return changes.get(formula, formula)
        result = formula
        if not changes.keys().isdisjoint(self.literals(formula)):
            self._budget.spend(12 * len(node.parts))
            absorbing = FALSE if isinstance(node, AllOf) else TRUE
            parts = []
            for part in node.parts:
                changed = changes.get(part)
                if changed is None:
                    changed = self._rewrite(part, changes, known)
                parts.append(changed)
                if changed == absorbing:
                    break
            result = absorbing if changed == absorbing else self._joined(node, parts)
        known[formula] = result
        return result

    def holds(self, formula: FormulaId, truth: Callable[[FormulaId], bool]) -> bool:
        """Return whether `formula` (reduced to one JSON type) is true. `truth` returns the truth value of a literal."""
        return self._holds(formula, truth, {})

    def _holds(self, formula: FormulaId, truth: Callable[[FormulaId], bool], known: dict[FormulaId, bool]) -> bool:
        if formula in known:
            return known[formula]
        node = self._formulas[formula]
        if isinstance(node, _JOINS):
            self._budget.spend(4 * len(node.parts))
            decisive = isinstance(node, AnyOf)
            result = not decisive
            for part in node.parts:
                if self._holds(part, truth, known) == decisive:
                    result = decisive
                    break
        else:
            result = formula == TRUE if formula in (FALSE, TRUE) else truth(formula)
        known[formula] = result
        return result

    @memoized
    def literals(self, formula: FormulaId) -> tuple[FormulaId, ...]:
        """Return the literals (atoms and negated atoms) of a formula reduced to one JSON type, in order, each once."""
        node = self._formulas[formula]
        if isinstance(node, _JOINS):
            return tuple(dict.fromkeys(literal for part in node.parts for literal in self.literals(part)))
        return (formula,) if isinstance(node, _LITERALS) else ()

    def conjuncts(self, formula: FormulaId) -> tuple[FormulaId, ...]:
        """Return the operands of `formula` (reduced to one JSON type) if it is a conjunction, else only `formula`."""
        node = self._formulas[formula]
        return node.parts if isinstance(node, AllOf) else (formula,)

    def atoms(self, *formulas: FormulaId) -> tuple[FormulaId, ...]:
        """Return the atoms (single assertions) in formulas that are reduced to one JSON type, in order, each once."""
        return tuple(dict.fromkeys(self.split(literal)[0] for one in formulas for literal in self.literals(one)))

    def split(self, literal: FormulaId) -> tuple[FormulaId, bool]:
        """Return the atom (single assertion) of a literal, and a flag.

        The flag is True if the literal is the atom itself, and False if it is the negation of the atom.
        """
        node = self._formulas[literal]
        return (node.part, False) if isinstance(node, Not) else (literal, True)

    def asserted(self, literal: FormulaId) -> tuple[FormulaId, bool, Assertion]:
        """Return the atom of a literal, False if the literal is its negation, and the assertion of the atom.

        Args:
            literal: Number of an atom or of its negation.
        """
        atom, positive = self.split(literal)
        return atom, positive, self.assertion(atom)

    def conjunction(self, formula: FormulaId) -> tuple[FormulaId, ...] | None:
        """Return the atoms (single assertions) of a conjunction whose operands are all atoms.

        For a single atom, return only this atom. For TRUE, return (). For any other formula, return None.
        """
        parts = () if formula == TRUE else self.conjuncts(formula)
        return parts if all(isinstance(self._formulas[part], Atom) for part in parts) else None

    def assertion(self, atom: FormulaId) -> Assertion:
        """Return the assertion of `atom`, which must be the number of an `Atom`."""
        node = self._formulas[atom]
        assert isinstance(node, Atom)
        return node.assertion


def requires(pool: FormulaPool, names: tuple[str, ...]) -> FormulaId:
    """Return the number of the formula "an object has properties with all `names`". TRUE if `names` is empty."""
    return pool.atom(JsonType.OBJECT, ObjectShape((), (), TRUE, names)) if names else TRUE
