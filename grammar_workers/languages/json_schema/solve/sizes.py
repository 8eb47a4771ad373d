"""Numbers of values that satisfy a demand (formula), for arrays with unique items and objects with unique names.

An array or object of this kind must never reach a state in which another item or name is required, but all possible
ones have been used.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, NamedTuple

from grammar_workers.budget import budget_of, remembered
from grammar_workers.dfa.dfa import Dfa
from grammar_workers.errors import UnsupportedFeatureError
from grammar_workers.languages.json_schema.labels import Label
from grammar_workers.languages.json_schema.solve.derivatives import Demand
from grammar_workers.languages.json_schema.solve.text_language import TextLanguage
from grammar_workers.options import Limits
from grammar_workers.pushdown.automaton import UNBOUNDED, Interval

if TYPE_CHECKING:
    from grammar_workers.languages.json_schema.solve.solver import Solver

# Stands for more values than fit into any text.
ENOUGH = 1 << 62
# Largest number of moves that one count of an automaton's texts follows.
_MOST_MOVES = 200_000
_MOST_DIGITS = 24
_MOST_TEXTS = 5000
_STEPS_PER_NUMBER = 8
_SURROGATES = (0xD800, 0xE000)


class NotDistinctError(UnsupportedFeatureError):
    """Unique items of an array, or unique names of an object, cannot be enforced exactly."""


class Size(NamedTuple):
    """Number of values, known exactly or by a lower bound.

    Attributes:
        least: Lower bound. ENOUGH (2**62) stands for more values than any text can hold.
        exact: True if there are exactly `least` values.
    """

    least: int
    exact: bool


def size_of(solver: Solver, demand: Demand, label: Label | None = None) -> Size:
    """Return the number of values that satisfy a demand.

    For arrays and objects, the result is a lower bound, which may be far too low.

    Args:
        solver: The solver that has solved `demand`.
        demand: A formula that a value must satisfy, with formulas to test on the value.
        label: Truth values that the tested formulas must have; None counts values with any label.
    """
    return _size(solver, demand, label, set())


def _size(solver: Solver, demand: Demand, label: Label | None, seen: set[Demand]) -> Size:
    constants = [found for found in solver.constants(demand).values() if label in (None, found)]
    strings, numbers = solver.strings(demand), solver.numbers(demand)
    wanted = frozenset(number for number, found in enumerate(strings.labels, 1) if label in (None, found))
    if strings.texts is not None:
        texts = Size(sum(number in wanted for number in strings.texts.values()), True)
    elif strings.spans is not None:
        texts = Size(strings.spans.least(*strings.span_lengths), False)
    elif strings.automaton is not None:
        texts = _count_strings(strings, wanted)
    else:
        texts = Size(0, True)
    wanted = frozenset(number for number, found in enumerate(numbers.labels, 1) if label in (None, found))
    if numbers.texts is not None:
        found = Size(len({Decimal(text) for text, number in numbers.texts.items() if number in wanted}), True)
    else:
        found = Size(0, True) if numbers.automaton is None else _count_numbers(numbers.automaton, wanted)
    held = _containers(solver, demand, label, seen)
    total = len(constants) + texts.least + found.least + held.least
    if not held.exact and any(label in (None, found) for found in solver.labels(demand)):
        total = max(total, 1)
    return Size(total, texts.exact and found.exact and held.exact)


def _containers(solver: Solver, demand: Demand, label: Label | None, seen: set[Demand]) -> Size:
    """Return a lower bound of the number of arrays and objects of a demand: those that one part makes different.

    No demand is examined twice.
    """
    arrays, objects = solver.arrays(demand), solver.objects(demand)
    if arrays is None and objects is None:
        return Size(0, True)
    if demand in seen or not any(label in (None, found) for found in solver.labels(demand)):
        return Size(0, False)
    seen.add(demand)
    least = 0
    if arrays is not None and arrays.is_plain and label in (None, arrays.plain_label) and solver.exists(arrays):
        longest = solver.longest(arrays)
        lengths = ENOUGH if longest is None else longest - arrays.plain.minimum + 1
        least = 1 if longest == 0 else _size(solver, arrays.plain.children[0], None, seen).least
        if not arrays.is_distinct:
            least = max(least, lengths)
    if objects is not None and objects.is_plain and label in (None, objects.plain_label) and solver.exists(objects):
        if any(map(solver.satisfiable, objects.plain.classes)):
            return Size(ENOUGH if objects.name_classes.automaton is None else least + 1, False)
        least += max((_size(solver, child, None, seen).least for child in objects.plain.properties), default=1)
    return Size(least, False)


def _count_strings(language: TextLanguage, wanted: frozenset[int]) -> Size:
    """Count the texts of an automaton whose number (index of the label plus 1) is in `wanted`."""
    assert language.automaton is not None
    if not language.is_counted:
        return count_texts(language.automaton, wanted)
    least, exact = 0, True
    for place, interval in enumerate(language.intervals):
        labels = frozenset(label for label, row in enumerate(language.numbers, 1) if row[place] in wanted)
        size = count_texts(language.automaton, labels, interval)
        least, exact = least + size.least, exact and size.exact
    return Size(least, exact)


@remembered(maxsize=1024)
def count_texts(automaton: Dfa, labels: frozenset[int], lengths: Interval = (0, UNBOUNDED)) -> Size:
    """Return the number of texts that an automaton accepts with given labels and lengths.

    Args:
        automaton: The automaton. Its accepting states have labels.
        labels: Labels of accepting states. Texts that are accepted with another label are not counted.
        lengths: Smallest and largest length in characters, both inclusive.

    Returns:
        The number. ENOUGH (2**62) and not exact if it is unlimited or very large. A lower bound if counting takes too
        long.
    """
    leads = [not labels.isdisjoint(reachable) for reachable in automaton.reachable_labels]
    ends = [*automaton.starts[1:], 0x110000]
    sizes = [
        end - start - max(0, min(end, _SURROGATES[1]) - max(start, _SURROGATES[0]))
        for start, end in zip(automaton.starts, ends, strict=True)
    ]
    budget = budget_of(Limits())
    counts = {0: 1} if leads[0] else {}
    total = moves = length = 0
    while counts and length <= lengths[1]:
        if length >= lengths[0]:
            total += sum(count for state, count in counts.items() if automaton.accepting[state] in labels)
        # A text longer than the number of states passes a cycle, so without a bound there are infinitely many texts.
        if total >= ENOUGH or (length > len(leads) and lengths[1] == UNBOUNDED):
            return Size(ENOUGH, False)
        if moves > _MOST_MOVES:
            return Size(total, False)
        moves += len(counts) * len(sizes)
        budget.spend(len(counts) * len(sizes))
        following: dict[int, int] = {}
        for state, count in counts.items():
            for size, target in zip(sizes, automaton.moves[state], strict=True):
                if target >= 0 and size and leads[target]:
                    following[target] = min(following.get(target, 0) + count * size, ENOUGH)
        counts = following
        length += 1
    return Size(total, True)


@remembered(maxsize=256)
def _count_numbers(automaton: Dfa, labels: frozenset[int]) -> Size:
    """Count the integers without exponent up to a number of digits; other numbers only if there are few texts."""
    # Each positive integer has one text: it has no sign and no leading zeros.
    counts = {target: 1 for digit in "123456789" if (target := automaton.read(0, digit)) >= 0}
    integers = 0
    for _ in range(_MOST_DIGITS):
        integers += sum(count for state, count in counts.items() if automaton.accepting[state] in labels)
        following: dict[int, int] = {}
        for state, count in counts.items():
            for digit in "0123456789":
                target = automaton.read(state, digit)
                if target >= 0:
                    following[target] = following.get(target, 0) + count
        counts = following
    if integers >= ENOUGH:
        return Size(ENOUGH, False)
    found: set[Decimal] = set()
    pending = [("", 0)]
    budget = budget_of(Limits())
    for text, state in pending:
        budget.spend(_STEPS_PER_NUMBER)
        if automaton.accepting[state] in labels:
            found.add(Decimal(text))
        if len(pending) > _MOST_TEXTS:
            return Size(max(len(found), integers), False)
        for character in "-0123456789.eE+":
            target = automaton.read(state, character)
            if target >= 0:
                pending.append((text + character, target))
    return Size(len(found), True)
