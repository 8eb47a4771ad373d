"""Classes of the property names of an object: the declared names, and groups of undeclared ones.

Two undeclared names are in one class if they pass the same tests: patterns of `patternProperties`, and schemas of
`propertyNames`. For example, `{"properties": {"id": ...}, "patternProperties": {"^x-": ...}}` has the declared name
`id`. Class 0 has the names that no pattern matches, and class 1 the names that begin with `x-`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from grammar_workers.dfa.dfa import ANY_TEXT, Dfa, combine, literal_set, restrict
from grammar_workers.languages.json_schema.assertions import (
    Assertion,
    FormulaId,
    JsonType,
    ObjectShape,
    PropertyNames,
    StringPattern,
)
from grammar_workers.languages.json_schema.logic import FormulaPool
from grammar_workers.languages.json_schema.solve.sizes import ENOUGH, Size, count_texts
from grammar_workers.languages.json_schema.solve.strings import Classified, NameTest, Strings
from grammar_workers.memo import memoized

_MOST_FEW = 32


class NameClasses:
    """The names of the properties of one object: the declared names, and classes of undeclared names.

    A class has the undeclared names that pass the same tests: patterns of `patternProperties`, and formulas of
    `propertyNames`. These names are in no class:

    - names that are not permitted,
    - names that the vocabulary cannot encode,
    - names that a pattern matches in only one dialect of regular expressions (ECMA-262 or Python).

    Args:
        names: The declared names, in order.
        assertions: The assertions about the object, which contain the tests.
        strings: Compiles the tests. It also has the permitted strings and a cache of classes.

    Attributes:
        names: The argument `names`.
        classes: For each class, the tests that its names pass.
        automaton: The automaton of all names that can be generated. It accepts names of class c with label 1 + c, and
            the declared name with index i with label `len(classes) + 1 + i`. None if no test divides the undeclared
            names, and all names are permitted.
        disputed: Declared names that a pattern matches in only one dialect. They are not generated.
    """

    def __init__(self, names: tuple[str, ...], assertions: Sequence[Assertion], strings: Strings) -> None:
        self.names = names
        self._permitted = [] if strings.permitted is None else [strings.permitted]
        formulas = dict.fromkeys(test.names for test in assertions if isinstance(test, PropertyNames))
        shapes = [shape for shape in assertions if isinstance(shape, ObjectShape)]
        patterns = dict.fromkeys(source for shape in shapes for source, _ in shape.patterns)
        # The dialects disagree whether a name satisfies `propertyNames` only if they disagree about a pattern in it.
        judging = [source for formula in formulas for source in _patterns(strings.pool, formula)]
        patterns |= dict.fromkeys(source for source in judging if strings.doubtful(source))
        self._tests: dict[NameTest, Dfa] = {source: strings.pattern(source) for source in patterns}
        self._tests |= {formula: strings.texts(formula) for formula in formulas}
        self._doubtful = [(source, found) for source in patterns if (found := strings.doubtful(source)) is not None]
        # One dialect says that a pattern matches these names, and the other does not.
        disputed = [(self._tests[source], found) for source, found in self._doubtful]
        self.disputed = [
            n for n in names if any(found.classify(n) and not test.classify(n) for test, found in disputed)
        ]
        # A test that every name passes distinguishes no names.
        passed = frozenset(test for test, found in self._tests.items() if found == ANY_TEXT)
        deciding = [test for test in self._tests if test not in passed]
        self.classes: list[frozenset[NameTest]] = [passed]
        self.automaton: Dfa | None = None
        if deciding or self._permitted:
            identity = (names, *deciding)
            if identity not in strings.classified:
                strings.classified[identity] = self._classify(deciding, strings)
            self.automaton, classes = strings.classified[identity]
            self.classes = [passed | matched for matched in classes] if passed else classes

    def matches(self, part: int, test: NameTest) -> bool:
        """Return whether the names of a property pass a test.

        Args:
            part: The property: index of a declared name, or -1 - c for the undeclared names of class c.
            test: Regular expression of `patternProperties`, or number of the formula of `propertyNames`.
        """
        if part < 0:
            return test in self.classes[-1 - part]
        return bool(self._tests[test].classify(self.names[part]))

    @memoized
    def size(self, number: int) -> Size:
        """Return the number of undeclared names in a class. It is at least ENOUGH (2**62) if the number is unlimited.

        Args:
            number: Number of the class, from 0.
        """
        return Size(ENOUGH, False) if self.automaton is None else count_texts(self.automaton, frozenset((1 + number,)))

    def few_names(self, most: int) -> list[str]:
        """Return the undeclared names of all small classes, ordered by class and then by name.

        Args:
            most: A class is small if it has at most this number of names, and at most 32.
        """
        found: list[str] = []
        for number in range(len(self.classes)):
            size = self.size(number)
            # If counting has stopped early, the class may be infinite.
            if self.automaton is not None and size.exact and size.least <= min(most, _MOST_FEW):
                found += _texts(self.automaton, 1 + number)
        return found

    def _classify(self, tests: Sequence[NameTest], strings: Strings) -> Classified:
        classes: dict[frozenset[NameTest], int] = {}
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
        automaton = combine([declared, *tested, *doubts, *self._permitted], label, strings.limits)
        automaton = restrict(automaton, strings.spelling.writable)
        # Classes without a name that can be written promise properties that cannot be generated.
        living = set(automaton.accepting)
        used = {matched: number for matched, number in classes.items() if 1 + number in living}
        numbers = {1 + number: index for index, number in enumerate(used.values(), 1)}
        labels = tuple(len(used) - label if label < 0 else numbers.get(label, 0) for label in automaton.accepting)
        return dataclasses.replace(automaton, accepting=labels), list(used)


def _patterns(pool: FormulaPool, formula: FormulaId) -> list[str]:
    """Return the patterns that decide whether a string satisfies a formula."""
    atoms = map(pool.assertion, pool.atoms(pool.resolve(formula, JsonType.STRING)))
    return [atom.pattern for atom in atoms if isinstance(atom, StringPattern)]


def _texts(automaton: Dfa, label: int) -> list[str]:
    """Return the texts with one label, sorted. There must be few of them."""
    pending = [("", 0)]
    found = []
    for text, state in pending:
        if automaton.accepting[state] == label:
            found.append(text)
        pending += [
            (text + chr(character), target)
            for first, last, target in automaton.ranges(state)
            if label in automaton.reachable_labels[target]
            for character in range(first, last + 1)
        ]
    return sorted(found)
