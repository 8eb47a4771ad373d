"""Objects: properties in declared order, undeclared ones last, told apart by what their names match.

`any_order` has those whose properties come in any order.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from typing import TypeAlias

from grammar_workers.dfa.charset import ALL, Charset
from grammar_workers.dfa.dfa import ANY_TEXT, CharacterAutomaton, combine, literal_set, restrict
from grammar_workers.errors import LimitExceededError
from grammar_workers.languages.json_schema.labels import Label
from grammar_workers.languages.json_schema.logic import (
    FALSE,
    TRUE,
    Broken,
    FormulaId,
    FormulaPool,
    JsonType,
    ObjectShape,
    PropertyCount,
    PropertyNames,
    StringPattern,
)
from grammar_workers.languages.json_schema.solve.derivatives import Container, Move, Node, Rule, Step, Tally, negated
from grammar_workers.options import Limits

_MAX_UNROLLED = 1000
"""Numbers of properties that are told apart."""


@dataclasses.dataclass(frozen=True, slots=True)
class PlainObject:
    """An object about which nothing is left to decide but which property comes next.

    `properties` (name, rule) in declared order, a rule per class of undeclared names, the indices of required ones.
    """

    properties: tuple[tuple[str, Rule], ...]
    classes: tuple[Rule, ...]
    required: tuple[int, ...]


Classified: TypeAlias = tuple[CharacterAutomaton, list[frozenset[str | FormulaId]]]
"""An automaton of property names, and which tests the undeclared names of each class pass."""


class Objects(Container):
    """The declared order is that in which the parts of the schema first name the properties.

    Undeclared names fall into classes by the patterns that they match. Without patterns there is one class, and
    `names_automaton` is None; else it labels a declared name `len(classes) + 1 + index` and others 1 + class. Names
    outside of `permitted`, or of other characters than `writable`, are in no class. `classified` remembers the classes
    by names and tests: alternatives of one schema make many objects that differ in values alone.
    Part i of a move is declared property i, part -1 - c an undeclared property of class c.
    """

    def __init__(
        self,
        pool: FormulaPool,
        formulas: tuple[FormulaId, ...],
        pattern: Callable[[str], CharacterAutomaton],
        doubtful: Callable[[str], CharacterAutomaton | None],
        texts: Callable[[FormulaId], CharacterAutomaton],
        can_spell: Callable[[str], bool],
        writable: Charset,
        limits: Limits,
        permitted: CharacterAutomaton | None,
        classified: dict[Hashable, Classified],
    ) -> None:
        # What is not surely true of an object is not surely false, either, where undeclared names may repeat.
        uncertain = [index for index, asked in enumerate(formulas[1:]) if _is_uncertain(pool, asked)]
        super().__init__(pool, (*formulas, *(pool.not_(formulas[1 + index]) for index in uncertain)))
        self._label_size = len(formulas) - 1
        self._uncertain = list(enumerate(uncertain, self._label_size))
        self.has_doubts = False
        """Whether something has been left out because it is not certain how many undeclared properties there are."""
        self._permitted = [] if permitted is None else [permitted]
        self._writable = writable
        assertions = {leaf: pool.assertion(leaf) for leaf in self.leaves}
        self._shapes = {leaf: shape for leaf, shape in assertions.items() if isinstance(shape, ObjectShape)}
        self.names = self.declared_names(pool, formulas)
        self._order = order = {name: index for index, name in enumerate(self.names)}
        self._unusable = frozenset(i for i, name in enumerate(self.names) if not can_spell(name))
        self._properties = {leaf: dict(shape.properties) for leaf, shape in self._shapes.items()}
        self._required = {leaf: sorted(order[name] for name in shape.required) for leaf, shape in self._shapes.items()}
        self._open_leaves = frozenset(leaf for leaf in self.leaves if self._is_shape(leaf))
        self._known_asked: dict[tuple[FormulaId, int], FormulaId] = {}
        self._asking: dict[tuple[FormulaId, ...], list[FormulaId]] = {}
        self._known_concerned: dict[FormulaId, frozenset[int]] = {}
        self._known_read: dict[tuple[FormulaId, ...], tuple[tuple[FormulaId, ...], frozenset[int]]] = {}
        self._ends: dict[tuple[FormulaId, ...], list[int]] = {}
        self._mere_rules: dict[tuple[tuple[FormulaId, ...], int], Rule] = {}
        self._passed: dict[tuple[FormulaId, int], FormulaId] = {}
        self._closed: dict[Node, Label | None] = {}
        self._steps: dict[tuple[FormulaId, int], Step] = {}
        tests = dict.fromkeys(test.names for test in assertions.values() if isinstance(test, PropertyNames))
        patterns = dict.fromkeys(source for shape in self._shapes.values() for source, _ in shape.patterns)
        # The dialects disagree about what `propertyNames` says of a name only where they do about a pattern in it.
        judging = [source for formula in tests for source in _patterns(pool, formula)]
        patterns |= dict.fromkeys(source for source in judging if doubtful(source))
        # A test is a pattern's source or the formula of `propertyNames`.
        self._tests: dict[str | FormulaId, CharacterAutomaton] = {source: pattern(source) for source in patterns}
        self._tests |= {formula: texts(formula) for formula in tests}
        self._doubtful = [(source, found) for source in patterns if (found := doubtful(source)) is not None]
        self.disputed = [name for name in self.names if self._is_disputed(name)]
        """Declared names on which the dialects of patterns disagree; like undeclared ones they are not generated."""
        self._unusable |= frozenset(order[name] for name in self.disputed)
        # A test that every name passes tells no names apart.
        passed = frozenset(test for test, found in self._tests.items() if found == ANY_TEXT)
        deciding = [test for test in self._tests if test not in passed]
        self._classes: list[frozenset[str | FormulaId]] = [passed]
        self.names_automaton: CharacterAutomaton | None = None
        if deciding or self._permitted:
            identity = (self.names, *deciding)
            if identity not in classified:
                classified[identity] = self._classify(deciding, limits)
            self.names_automaton, classes = classified[identity]
            self._classes = [passed | matched for matched in classes] if passed else classes
        self._all_parts = frozenset(range(-self.class_count, len(self.names)))

    @staticmethod
    def declared_names(pool: FormulaPool, formulas: tuple[FormulaId, ...]) -> tuple[str, ...]:
        """The names that the formulas mention, in declared order; those that are only required come last."""
        shapes = [shape for leaf in pool.leaves(*formulas) if isinstance(shape := pool.assertion(leaf), ObjectShape)]
        declared = dict.fromkeys(name for shape in shapes for name, _ in shape.properties)
        declared.update(dict.fromkeys(name for shape in shapes for name in shape.required))
        return tuple(declared)

    @property
    def class_count(self) -> int:
        """How many classes of undeclared names there are."""
        return len(self._classes)

    @functools.cached_property
    def plain(self) -> PlainObject:
        """The object as a plain one; only where `is_plain`."""
        required = {index for indices in self._required.values() for index in indices}
        return PlainObject(
            tuple((name, self._plain_property(index)) for index, name in enumerate(self.names)),
            tuple(self._every(self._asked, -1 - c) for c in range(self.class_count)),
            tuple(sorted(required)),
        )

    def _plain_property(self, index: int) -> Rule:
        if index in self._unusable:
            return Rule(FALSE)
        return self._every(self._asked, index)

    def node(self, formulas: tuple[FormulaId, ...], position: int, tally: Tally) -> Node:
        """It stands for the positions up to the first name that cannot be passed over without changing a formula."""
        return super().node(formulas, self._last(formulas, position), tally)

    def _last(self, formulas: tuple[FormulaId, ...], position: int) -> int:
        ends = self._ends.get(formulas)
        if ends is None:
            leaves = {self.pool.split(literal)[0] for literal in self._literals(formulas)}
            required = {index for leaf in leaves for index in self._required.get(leaf, ())}
            ends = self._ends[formulas] = [*sorted(required), len(self.names)]
        return ends[bisect.bisect_left(ends, position)]

    def moves(self, node: Node, first: int, stop: int | None) -> Iterator[Move]:
        many = len(self.names)
        for part in range(first, min(many, node.last + 1) if stop is None else stop):
            move = self._move(node, part, part + 1, self._counted(node, part))
            if move is not None:
                yield move
        if stop is None and node.last == many:
            yield from self._undeclared_moves(node)

    def _undeclared_moves(self, node: Node) -> Iterator[Move]:
        for part in range(-1, -1 - self.class_count, -1):
            move = self._move(node, part, node.last, self._counted(node, part))
            if move is not None:
                yield move

    def skip(self, node: Node) -> Node | None:
        """What is left once the declared name at its last position has been passed over."""
        position = node.last
        if position == len(self.names):
            return None
        formulas = tuple([self._without(formula, position) for formula in node.formulas])
        return None if formulas[0] == FALSE else self.node(formulas, position + 1, node.tally)

    def close(self, node: Node) -> Label | None:
        """As where all later names have been passed over, which is what closing does with them."""
        passed = [node]
        while passed[-1] not in self._closed:
            skipped = self.skip(passed[-1])
            if skipped is None:
                last = passed[-1]
                # Where a name cannot be passed over, the container cannot end either.
                self._closed[last] = None if last.last < len(self.names) else self._close(last)
            else:
                passed.append(skipped)
        label = self._closed[passed[-1]]
        self._closed.update(dict.fromkeys(passed, label))
        return label

    def _close(self, node: Node) -> Label | None:
        """None, too, where it is not certain what the object satisfies: that is not generated."""
        truths = super().close(node)
        if truths is None:
            return None
        if any(truths[index] == truths[negated] for negated, index in self._uncertain):
            self.has_doubts = True
            return None
        return truths[: self._label_size]

    # -- names -----------------------------------------------------------------------------------------------------

    def _classify(self, tests: Sequence[str | FormulaId], limits: Limits) -> Classified:
        classes: dict[frozenset[str | FormulaId], int] = {}
        declared = literal_set({name: index + 1 for index, name in enumerate(self.names)})

        def label(found: tuple[int, ...]) -> int:
            if found[0]:
                return -found[0]
            matched = frozenset(test for test, hit in zip(tests, found[1:], strict=False) if hit)
            if self._permitted and not found[-1]:
                return 0
            doubtful = found[1 + len(tests) : 1 + len(tests) + len(self._doubtful)]
            if any(hit and source not in matched for (source, _), hit in zip(self._doubtful, doubtful, strict=True)):
                # The dialects disagree about this name, so it is not generated.
                return 0
            return 1 + classes.setdefault(matched, len(classes))

        doubts = [found for _, found in self._doubtful]
        tested = [self._tests[test] for test in tests]
        automaton = combine([declared, *tested, *doubts, *self._permitted], label, limits)
        if self._writable != ALL:
            automaton = restrict(automaton, self._writable)
        # Classes without a name that can be written promise properties that cannot be generated.
        living = set(automaton.accepting)
        used = {matched: number for matched, number in classes.items() if 1 + number in living}
        numbers = {1 + number: index for index, number in enumerate(used.values(), 1)}
        labels = tuple(len(used) - label if label < 0 else numbers.get(label, 0) for label in automaton.accepting)
        return dataclasses.replace(automaton, accepting=labels), list(used)

    def _is_disputed(self, name: str) -> bool:
        """Whether one dialect says that a pattern matches the name, and the other does not."""
        return any(found.classify(name) and not self._tests[source].classify(name) for source, found in self._doubtful)

    def _matches(self, part: int, test: str | FormulaId) -> bool:
        if part < 0:
            return test in self._classes[-1 - part]
        return bool(self._tests[test].classify(self.names[part]))

    # -- steps -----------------------------------------------------------------------------------------------------

    def _is_shape(self, leaf: FormulaId) -> bool:
        return isinstance(self.pool.assertion(leaf), ObjectShape | PropertyNames)

    def _asked(self, leaf: FormulaId, part: int) -> FormulaId:
        """What a shape or a test of names asks of the value of a property."""
        known = self._known_asked.get((leaf, part))
        if known is None:
            known = self._known_asked[leaf, part] = self._find_asked(leaf, part)
        return known

    def _find_asked(self, leaf: FormulaId, part: int) -> FormulaId:
        assertion = self.pool.assertion(leaf)
        if isinstance(assertion, PropertyNames):
            return TRUE if self._matches(part, assertion.names) else FALSE
        assert isinstance(assertion, ObjectShape)
        declared = self._properties[leaf].get(self.names[part]) if part >= 0 else None
        if not assertion.patterns:
            return assertion.additional if declared is None else declared
        asked = [formula for source, formula in assertion.patterns if self._matches(part, source)]
        if declared is not None:
            asked.insert(0, declared)
        return self.pool.all_of(asked) if asked else assertion.additional

    def _kind(self, formulas: tuple[FormulaId, ...], part: int) -> Hashable:
        leaves = self._asking.get(formulas)
        if leaves is None:
            named = self.pool.leaves(*formulas)
            broken = [found.leaf for leaf in named if isinstance(found := self.pool.assertion(leaf), Broken)]
            leaves = self._asking[formulas] = [leaf for leaf in (*named, *broken) if leaf in self._open_leaves]
        return (part < 0, *[self._asked(leaf, part) for leaf in leaves])

    def _move(self, node: Node, part: int, entry: int, tally: Tally) -> Move | None:
        """Most properties concern mere conjuncts alone, which stay as they are: no formula needs to be rewritten."""
        if part in self._unusable:
            return None
        mere, concerned = self._read(node.formulas)
        if part in concerned:
            return super()._move(node, part, entry, tally)
        rule = self._mere_rules.get((mere, part))
        if rule is None:
            wanted = self.pool.all_of(self._asked(leaf, part) for leaf in mere)
            rule = self._mere_rules[mere, part] = Rule(self.pool.canonical(wanted))
        return None if rule.formula == FALSE else Move(part, rule, entry, tally, None, {})

    def _read(self, formulas: tuple[FormulaId, ...]) -> tuple[tuple[FormulaId, ...], frozenset[int]]:
        """The open leaves that are mere conjuncts of the demanded formula, and the parts that concern other leaves."""
        known = self._known_read.get(formulas)
        if known is None:
            conjuncts = self._open_leaves.intersection(self.pool.conjuncts(formulas[0]))
            literals = self._literals(formulas)
            others = {self.pool.split(literal)[0] for literal in literals if literal not in conjuncts}
            concerned = frozenset().union(*map(self._concerned, others))
            mere = tuple([literal for literal in literals if literal in conjuncts])
            known = self._known_read[formulas] = mere, concerned
        return known

    def _concerned(self, leaf: FormulaId) -> frozenset[int]:
        """The parts of which a leaf asks something, or all if reading any of them may change it."""
        known = self._known_concerned.get(leaf)
        if known is None:
            known = self._known_concerned[leaf] = self._find_concerned(leaf)
        return known

    def _find_concerned(self, leaf: FormulaId) -> frozenset[int]:
        if leaf not in self._open_leaves:
            return self._all_parts
        shape = self._shapes.get(leaf)
        parts: Collection[int] = self._all_parts
        if shape is not None and not shape.patterns:
            parts = [self._order[name] for name in self._properties[leaf]]
        self.pool.spend(len(parts) + 1)
        free = [part for part in parts if self._asked(leaf, part) == TRUE]
        if shape is not None and not shape.patterns and shape.additional == TRUE:
            return frozenset(parts).difference(free)
        if not free:
            # Mostly one and the same set: thousands of shapes must not have one of thousands of parts each.
            return self._all_parts
        self.pool.spend(len(self._all_parts))
        return self._all_parts.difference(free)

    def _step(self, literal: FormulaId, part: int, tally: Tally) -> Step:
        known = self._steps.get((literal, part))
        if known is not None:
            return known
        leaf, positive = self.pool.split(literal)
        assertion = self.pool.assertion(leaf)
        if isinstance(assertion, PropertyCount):
            exceeded = assertion.maximum is not None and tally.certain > assertion.maximum
            too_many = assertion.maximum is not None and tally.total > assertion.maximum
            if positive:
                return Step(TRUE, FALSE, FALSE) if too_many else Step(TRUE, leaf, leaf)
            return Step(TRUE, TRUE, TRUE) if exceeded else Step(TRUE, literal, literal)
        # Only counts look at what follows.
        known = self._steps[literal, part] = self._uncounted_step(literal, part)
        return known

    def _uncounted_step(self, literal: FormulaId, part: int) -> Step:
        leaf, positive = self.pool.split(literal)
        assertion = self.pool.assertion(leaf)
        if isinstance(assertion, Broken):
            asked = self._asked(assertion.leaf, part) if part < 0 else TRUE
            if asked == TRUE:
                # What keeps to the shape under every value has another name than what has broken it.
                return Step(TRUE, literal, literal)
            self.has_doubts |= asked != FALSE
            return Step(asked, FALSE, literal)
        step = Step(self._asked(leaf, part), leaf, FALSE)
        if positive:
            return step
        if part < 0 and isinstance(assertion, ObjectShape) and step.asked != FALSE:
            return Step(step.asked, literal, self.pool.leaf(JsonType.OBJECT, Broken(leaf)))
        return negated(self.pool, step)

    def _without(self, formula: FormulaId, index: int) -> FormulaId:
        """What is left of a formula when a declared name is passed over: whatever requires it can no longer hold."""
        known = self._passed.get((formula, index))
        if known is None:
            changes = {}
            for literal in self.pool.literals(formula):
                leaf, positive = self.pool.split(literal)
                if index in self._required.get(leaf, ()):
                    changes[literal] = FALSE if positive else TRUE
            known = self._passed[formula, index] = self.pool.rewrite(formula, changes)
        return known

    # -- counts ----------------------------------------------------------------------------------------------------

    @functools.cached_property
    def _horizon(self) -> int:
        """The number of properties from which on more make no difference."""
        bounds = [0]
        for leaf in self.leaves:
            count = self.pool.assertion(leaf)
            if isinstance(count, PropertyCount):
                bounds += [count.minimum, 0 if count.maximum is None else count.maximum + 1]
        if max(bounds) > _MAX_UNROLLED:
            raise LimitExceededError(f"counts of up to {max(bounds)} properties (at most {_MAX_UNROLLED})")
        return max(bounds)

    def _counted(self, node: Node, part: int) -> Tally:
        """The tally after one more property. Undeclared names may repeat, so only the first of them surely counts."""
        tally, horizon = node.tally, self._horizon
        if not horizon:
            return tally
        certain = tally.certain + (part >= 0 or not tally.undeclared)
        undeclared = tally.undeclared or part < 0
        return Tally(min(certain, horizon), min(tally.total + 1, horizon), undeclared, tally.seen)

    def _closes(self, literal: FormulaId, node: Node) -> bool:
        leaf, positive = self.pool.split(literal)
        assertion = self.pool.assertion(leaf)
        if isinstance(assertion, PropertyCount):
            # A maximum that is exceeded has already become a constant, one that perhaps is has not.
            certain, total = node.tally.certain, node.tally.total
            holds = assertion.minimum <= certain if positive else total < assertion.minimum
            too_few = certain < assertion.minimum <= total
            self.has_doubts |= too_few or (not positive and not holds and total > certain)
            return holds
        # Shapes that require a name which has been passed over have already become constants.
        return positive


def _patterns(pool: FormulaPool, formula: FormulaId) -> list[str]:
    """The patterns by which a formula judges strings."""
    leaves = map(pool.assertion, pool.leaves(pool.resolve(formula, JsonType.STRING)))
    return [leaf.pattern for leaf in leaves if isinstance(leaf, StringPattern)]


def _is_uncertain(pool: FormulaPool, formula: FormulaId) -> bool:
    """Whether undeclared properties of one name may leave open if an object satisfies a resolved formula."""
    for leaf in pool.leaves(formula):
        assertion = pool.assertion(leaf)
        if isinstance(assertion, PropertyCount):
            return True
        if isinstance(assertion, ObjectShape):
            asked = [assertion.additional, *(value for _, value in assertion.patterns)]
            if not all(value in (TRUE, FALSE) for value in asked):
                return True
    return False
