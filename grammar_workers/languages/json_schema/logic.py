"""Boolean formulas over assertions: what a JSON Schema means, hash-consed to integers.

A schema becomes a formula over *type tests* and *atoms*. An atom is an assertion about one JSON type, which holds of
every value of another type, as keywords do. A *literal* is an atom or its negation: nothing else is negated but
references. Formulas are numbers handed out by a `FormulaPool`: equal numbers mean equal formulas, which is what lets
sub-automata be shared. `{"type": "string", "not": {"maxLength": 2}}` becomes

    2: type test {string}   3: atom (string, lengths 0..2)   4: not 3   5: all of 2, 4    5 resolved for strings: 4
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from grammar_workers.budget import budget_of
from grammar_workers.errors import InvalidSpecificationError
from grammar_workers.languages.json_schema.assertions import ALL_TYPES, Assertion, FormulaId, JsonType, ObjectShape
from grammar_workers.memo import memoized
from grammar_workers.options import Limits


@dataclasses.dataclass(frozen=True, slots=True)
class Constant:
    value: bool


@dataclasses.dataclass(frozen=True, slots=True)
class TypeTest:
    types: JsonType


@dataclasses.dataclass(frozen=True, slots=True)
class Atom:
    type: JsonType
    assertion: Assertion


@dataclasses.dataclass(frozen=True, slots=True)
class AllOf:
    parts: tuple[FormulaId, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class AnyOf:
    parts: tuple[FormulaId, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Not:
    part: FormulaId


@dataclasses.dataclass(frozen=True, slots=True)
class Reference:
    """Another schema, by the absolute location that `FormulaPool.define` gives a meaning to."""

    location: str


@dataclasses.dataclass(frozen=True, slots=True)
class Noted:
    """A schema that a formula was made of: its JSON Pointer and the keywords in it that mean anything."""

    pointer: str
    keywords: Mapping[str, Any]


Formula: TypeAlias = Constant | TypeTest | Atom | AllOf | AnyOf | Not | Reference

FALSE: FormulaId = 0
TRUE: FormulaId = 1
_OPEN: FormulaId = -1
"""Marks what is being resolved: meeting it again is a cycle."""


# Tuples made once: a union of types written where it is asked for would be built on each of many thousand calls.
_LITERALS = (Atom, Not)
_JOINS = (AllOf, AnyOf)
_TYPES = tuple(JsonType)


class FormulaPool:
    """All formulas of a compilation, each made once and simplified: constants vanish, and so do parts that repeat.

    Raises LimitExceededError when that takes too many steps.
    """

    def __init__(self, limits: Limits) -> None:
        self.hint = ""  # for messages, about a schema that nothing may satisfy
        self._budget = budget_of(limits)
        self._formulas: list[Formula] = [Constant(False), Constant(True)]
        self._definitions: dict[str, FormulaId] = {}
        self._definition_pointers: dict[str, str] = {}
        self._pointers: dict[FormulaId, list[str]] = {}
        self._schemas: dict[FormulaId, Noted] = {}
        self._resolved: dict[tuple[FormulaId, JsonType], FormulaId] = {}
        self._meanings: dict[tuple[FormulaId, ...], FormulaId] = {(TRUE,) * len(_TYPES): TRUE}

    def spend(self, steps: int) -> None:
        """Count steps of whoever works with formulas; raises LimitExceededError."""
        self._budget.spend(steps)

    def __getitem__(self, formula: FormulaId) -> Formula:
        return self._formulas[formula]

    # -- construction --------------------------------------------------------------------------------------------

    def types(self, types: JsonType) -> FormulaId:
        if types == ALL_TYPES:
            return TRUE
        return self._make(TypeTest, types) if types else FALSE

    def atom(self, type_: JsonType, assertion: Assertion) -> FormulaId:
        return self._make(Atom, type_, assertion)

    def reference(self, location: str) -> FormulaId:
        return self._make(Reference, location)

    def define(self, location: str, formula: FormulaId, pointer: str) -> None:
        """Say what `reference(location)` means; `pointer` is where that stands, for messages."""
        self._definitions[location] = formula
        self._definition_pointers[location] = pointer

    def note_pointer(self, formula: FormulaId, pointer: str) -> None:
        """Remember a place where the schema of a formula stands, for messages."""
        self._pointers.setdefault(formula, []).append(pointer)

    def note_schema(self, formula: FormulaId, pointer: str, keywords: Mapping[str, Any]) -> None:
        """Remember a schema of a formula, for messages."""
        self.note_pointer(formula, pointer)
        self._schemas.setdefault(formula, Noted(pointer, keywords))

    def schema(self, formula: FormulaId) -> Noted | None:
        """The first schema that a formula, or what it refers to, was made of; None where of no whole one."""
        node = self._formulas[formula]
        return self._schemas.get(self._definitions[node.location] if isinstance(node, Reference) else formula)

    def pointer(self, formula: FormulaId) -> str | None:
        """The JSON Pointer of the first schema that a formula was made of, for messages; None where of no whole one."""
        node = self._formulas[formula]
        if isinstance(node, Reference):
            return self._definition_pointers[node.location]
        return self._pointers[formula][0] if formula in self._pointers else None

    def pattern_pointer(self, formula: FormulaId) -> str:
        """Return the JSON Pointer of the `pattern` in the schema of a formula, for messages; "" where it has none."""
        noted = self.schema(formula)
        return f"{noted.pointer}/pattern" if noted is not None and "pattern" in noted.keywords else ""

    def keyword_pointer(self, keyword: str, part: FormulaId, formulas: Iterable[FormulaId]) -> str | None:
        """Of the places where the keyword of `part` stands, the outermost one within the schema of one of `formulas`.

        The first of all where none is known to be in it.

        Parts of a formula without a place of its own, and references, are looked into.
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
        return self._join(parts, AllOf, TRUE, FALSE)

    def any_of(self, parts: Iterable[FormulaId]) -> FormulaId:
        return self._join(parts, AnyOf, FALSE, TRUE)

    @memoized
    def not_(self, part: FormulaId) -> FormulaId:
        formula = self._formulas[part]
        if isinstance(formula, Constant):
            return FALSE if formula.value else TRUE
        if isinstance(formula, Not):
            return formula.part
        if isinstance(formula, TypeTest):
            return self.types(ALL_TYPES & ~formula.types)
        # Negations stand only before atoms and references.
        if isinstance(formula, AllOf):
            return self.any_of(map(self.not_, formula.parts))
        if isinstance(formula, AnyOf):
            return self.all_of(map(self.not_, formula.parts))
        return self._make(Not, part)

    def _joined(self, node: AllOf | AnyOf, parts: Iterable[FormulaId]) -> FormulaId:
        return self.all_of(parts) if isinstance(node, AllOf) else self.any_of(parts)

    def _join(
        self, parts: Iterable[FormulaId], kind: type[AllOf] | type[AnyOf], neutral: FormulaId, absorbing: FormulaId
    ) -> FormulaId:
        # Order is kept: it decides in which order properties come.
        flat: dict[FormulaId, None] = {}
        for part in parts:
            formula = self._formulas[part]
            if isinstance(formula, kind):
                flat.update(dict.fromkeys(formula.parts))
            elif part != neutral:
                flat[part] = None
        if len(flat) <= 1:
            return next(iter(flat), neutral)
        self._budget.spend(6 + len(flat))
        if absorbing in flat:
            return absorbing
        for part in flat:
            formula = self._formulas[part]
            if isinstance(formula, Not) and formula.part in flat:
                return absorbing
        return self._make(kind, tuple(flat))

    @memoized
    def _make(self, kind: Callable[..., Formula], *values: Any) -> FormulaId:
        self._formulas.append(kind(*values))
        return len(self._formulas) - 1

    # -- taking apart --------------------------------------------------------------------------------------------

    def resolve(self, formula: FormulaId, type_: JsonType) -> FormulaId:
        """The meaning of `formula` for values of one type: only constants and literals of this type remain.

        Raises InvalidSpecificationError for a cycle of references that consumes nothing.
        """
        known = self._resolved.get((formula, type_))
        if known is not None:
            if known == _OPEN:
                raise InvalidSpecificationError("a cycle of references that describes no value")
            return known
        self._resolved[formula, type_] = _OPEN
        node = self._formulas[formula]
        if isinstance(node, TypeTest):
            # The flag that `&` would make of it costs as much as all the rest.
            result = TRUE if int.__and__(node.types, type_) else FALSE
        elif isinstance(node, Atom):
            result = formula if node.type == type_ else TRUE
        elif isinstance(node, Reference):
            try:
                result = self.resolve(self._definitions[node.location], type_)
            except InvalidSpecificationError as error:
                # The innermost reference of a cycle; those outside only lead to it.
                error.pointer = self._definition_pointers[node.location] if error.pointer is None else error.pointer
                raise
        elif isinstance(node, Not):
            result = self.not_(self.resolve(node.part, type_))
        elif isinstance(node, _JOINS):
            self._budget.spend(4 * len(node.parts))
            parts = []
            for part in node.parts:
                parts.append(self.resolve(part, type_))
                # Of alternatives all are looked at: a circle in one of them is an error whatever the others allow.
                if parts[-1] == FALSE and isinstance(node, AllOf):
                    break
            result = formula if tuple(parts) == node.parts else self._joined(node, parts)
        else:
            result = formula
        self._resolved[formula, type_] = result
        return result

    @memoized
    def canonical(self, formula: FormulaId) -> FormulaId:
        """The first of the formulas that mean the same by what is left of them for each type."""
        return self._meanings.setdefault(tuple([self.resolve(formula, type_) for type_ in _TYPES]), formula)

    def rewrite(self, formula: FormulaId, changes: Mapping[FormulaId, FormulaId]) -> FormulaId:
        """A resolved formula with every literal (an atom or a negated atom) that `changes` names replaced."""
        return self._rewrite(formula, changes, {})

    def _rewrite(
        self, formula: FormulaId, changes: Mapping[FormulaId, FormulaId], known: dict[FormulaId, FormulaId]
    ) -> FormulaId:
        # Parts are shared: as a tree, a formula may be exponentially larger.
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
                parts.append(self._rewrite(part, changes, known))
                if parts[-1] == absorbing:
                    break
            result = self._joined(node, parts)
        known[formula] = result
        return result

    def holds(self, formula: FormulaId, truth: Callable[[FormulaId], bool]) -> bool:
        """The truth of a resolved formula, given which of its literals are true."""
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
            result = node.value if isinstance(node, Constant) else truth(formula)
        known[formula] = result
        return result

    @memoized
    def literals(self, formula: FormulaId) -> tuple[FormulaId, ...]:
        """The distinct atoms and negated atoms of a resolved formula, in order."""
        node = self._formulas[formula]
        if isinstance(node, _JOINS):
            return tuple(dict.fromkeys(literal for part in node.parts for literal in self.literals(part)))
        return (formula,) if isinstance(node, _LITERALS) else ()

    def conjuncts(self, formula: FormulaId) -> tuple[FormulaId, ...]:
        """The parts of a resolved formula that is an `and`; the formula itself if it is none."""
        node = self._formulas[formula]
        return node.parts if isinstance(node, AllOf) else (formula,)

    def atoms(self, *formulas: FormulaId) -> tuple[FormulaId, ...]:
        """The distinct atoms of resolved formulas, negated or not, in order."""
        return tuple(dict.fromkeys(self.split(literal)[0] for one in formulas for literal in self.literals(one)))

    def split(self, literal: FormulaId) -> tuple[FormulaId, bool]:
        """The atom of a literal, and whether it stands unnegated."""
        node = self._formulas[literal]
        return (node.part, False) if isinstance(node, Not) else (literal, True)

    def conjunction(self, formula: FormulaId) -> tuple[FormulaId, ...] | None:
        """The atoms of a resolved formula that is a plain conjunction of atoms, else None."""
        node = self._formulas[formula]
        if formula == TRUE:
            return ()
        if isinstance(node, Atom):
            return (formula,)
        if isinstance(node, AllOf) and all(isinstance(self._formulas[part], Atom) for part in node.parts):
            return node.parts
        return None

    def assertion(self, atom: FormulaId) -> Assertion:
        node = self._formulas[atom]
        assert isinstance(node, Atom)
        return node.assertion


def requires(pool: FormulaPool, names: tuple[str, ...]) -> FormulaId:
    """That an object has properties of these names."""
    return pool.atom(JsonType.OBJECT, ObjectShape((), (), TRUE, names)) if names else TRUE
