"""Conversion of the deterministic automata of a structural tag to states of the pushdown automaton.

A value (a JSON value, or a rule of a grammar) is a rule that states call. If a state allows a value or other text, the
first byte decides. The state after the first byte of the value calls the rest of its rule.

    text or a value   s -'a'-> s ;  s -'{'-> t ;  t calls the state of the rule after '{', returns to r

So the tag must be LL(1) where it calls values: the next byte or token decides what is read, and whether a rule ends.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from graphlib import TopologicalSorter
from typing import TypeAlias

import numpy as np

from grammar_workers.dfa import charset
from grammar_workers.dfa.charset import Charset
from grammar_workers.dfa.row_hash import DEAD
from grammar_workers.errors import GrammarError, UnsupportedFeatureError
from grammar_workers.languages.cfg.rule_nfa import RuleNfa, text_moves
from grammar_workers.languages.cfg.syntax import PlacedFormat, RuleName
from grammar_workers.languages.tags.automaton import FormatNfa, State, Value
from grammar_workers.memo import memoized
from grammar_workers.pushdown.builder import PushdownBuilder
from grammar_workers.pushdown.strings import StringLowering
from grammar_workers.types import TokenId
from grammar_workers.vocabulary.vocabulary import Vocabulary

# Bytes that may follow a digit in a number.
_GOES_ON = frozenset(b"0123456789.eE")
_NUMBER_BEGINS = frozenset(b"-0123456789")
# What may come next: a byte, or the token with this number less 256.
_Symbol = int
# The first and the last of consecutive token IDs, and the state after one of them.
_Run: TypeAlias = tuple[TokenId, TokenId, int]


@dataclasses.dataclass(frozen=True)
class ValueRule:
    """Rule of the pushdown automaton that a structural tag calls: a JSON value.

    Attributes:
        entry: Number of the state in which the rule begins.
        pointer: JSON Pointer of the value in the specification, for errors.
        is_open: True if the tag has no end text after the value. A number then includes all characters that can
            continue it.
    """

    entry: int
    pointer: str
    is_open: bool = False


@dataclasses.dataclass(frozen=True)
class GrammarRule:
    """Rule of a grammar that a structural tag calls.

    Attributes:
        name: Name and position of the rule, for errors.
        pointer: JSON Pointer of the grammar in the specification, for errors.
        automaton: Deterministic automaton. The code point `FIRST_FORMAT + i` is a placeholder for `formats[i]`.
        formats: Formats (nodes of structural tags) in the grammar.
    """

    name: RuleName
    pointer: str
    automaton: RuleNfa
    formats: tuple[PlacedFormat, ...]

    def error(self, message: str) -> UnsupportedFeatureError:
        """Return an error at the position of the rule.

        Args:
            message: Predicate of the sentence whose subject is the rule.
        """
        name = self.name.name.lstrip("%")
        return UnsupportedFeatureError(
            f"next to JSON or tokens, the grammar rule {name!r} {message}",
            pointer=self.pointer or None,
            position=self.name.position,
        )


def first_bytes(
    rules: Sequence[ValueRule | GrammarRule], automata: Mapping[Value, FormatNfa], builder: PushdownBuilder
) -> dict[Value, frozenset[int]]:
    """Return the bytes with which each value may begin, for values that begin with text.

    Args:
        rules: JSON values and rules of grammars.
        automata: The automaton of each rule of a grammar. No rule begins with itself.
        builder: The pushdown automaton that contains the JSON values.

    Returns:
        Value -> bytes. A value comes after the values with which it may begin.
    """
    begun = {
        value: [label for state in nfa.closure([0]) for label, _ in nfa.edges[state]] for value, nfa in automata.items()
    }
    called = {value: [label for label in labels if isinstance(label, int)] for value, labels in begun.items()}
    order = TopologicalSorter({value: called.get(value, []) for value in range(len(rules))}).static_order()
    found: dict[Value, frozenset[int]] = {}
    for value in order:
        rule, values = rules[value], set[int]()
        if isinstance(rule, ValueRule):
            values.update(_row(builder, rule.entry))
        for label in begun.get(value, ()):
            values.update(found[label] if isinstance(label, int) else _leads(label))
        found[value] = frozenset(values)
    return found


def _leads(characters: Charset) -> Iterator[int]:
    """Yield the first bytes of characters in UTF-8."""
    for span in characters:
        low, high = (chr(code_point).encode("utf-8", "surrogatepass")[0] for code_point in span)
        yield from range(low, high + 1)


def _row(builder: PushdownBuilder, state: int) -> dict[int, int]:
    row = builder.row_targets(builder.row_of(state))
    return {byte: int(row[byte]) for byte in np.flatnonzero(row != DEAD).tolist()}


class Lowering:
    """Converter of the automata of a structural tag to states of a pushdown automaton.

    Args:
        rules: JSON values and rules of grammars. `builder` already contains the JSON values.
        automata: Deterministic automaton of each rule of a grammar, and last of the tag itself, as `len(rules)`.
        order: The values. A value comes after the values with which it may begin.
        vocabulary: The tokens of the model.
        builder: The pushdown automaton to extend.
    """

    def __init__(
        self,
        rules: Sequence[ValueRule | GrammarRule],
        automata: Mapping[Value, FormatNfa],
        order: Sequence[Value],
        vocabulary: Vocabulary,
        builder: PushdownBuilder,
    ) -> None:
        self._rules = rules
        self._automata = automata
        self._order = order
        self._vocabulary = vocabulary
        self._builder = builder
        self._states: dict[Value, dict[State, int]] = {}
        # For each value: the state after each possible first byte, and after each run of tokens that may begin it.
        self._moves: dict[Value, dict[int, int]] = {}
        self._tokens: dict[Value, tuple[_Run, ...]] = {}

    def run(self) -> int:
        """Append the states of all automata. Call this method once.

        UnsupportedFeatureError is raised if two alternatives, one of them a value, may begin with the same byte or
        token; if what follows a number or a rule of a grammar could also continue it; or if text with a maximum number
        of tokens follows one of them.

        The tag becomes a rule. In states in which the text may end, a rule returns to its caller with label 0.

        Returns:
            Number of the first state of the tag.
        """
        for number, automaton in self._automata.items():
            self._states[number] = states = _text_states(automaton, self._builder)
            for state in automaton.tokens:
                for run in self._runs(number, state):
                    self._builder.token_edge(states[state], *run)
            for state, target in automaton.boundaries.items():
                self._builder.boundary(states[state], states[target])
        # The moves of a first state lead into the values with which it may begin, so these come first.
        for value in self._order:
            rule = self._rules[value]
            if isinstance(rule, ValueRule):
                self._moves[value], self._tokens[value] = _row(self._builder, rule.entry), ()
            else:
                self._begin(value)
        tag = len(self._rules)
        for number, automaton in self._automata.items():
            for state in range(int(number != tag), len(automaton)):
                self._call_values(number, state)
        follows = self._follows()
        for number in self._automata:
            self._check_numbers(number, follows)
            if number != tag:
                self._check_end(number, follows[number])
        return self._states[tag][0]

    def _begin(self, number: Value) -> None:
        """Add the calls of the first state of a rule, and its moves to `_moves` and `_tokens`."""
        automaton, states = self._automata[number], self._states[number]
        begun = self._call_values(number, 0, alone=False)
        only = _only_letter(automaton, 0)
        self._moves[number] = _row(self._builder, states[0]) if only is None else {only[0]: states[only[1]]}
        self._tokens[number] = (*self._runs(number, 0), *begun)

    def _call_values(self, number: Value, state: State, *, alone: bool = True) -> list[_Run]:
        """Add the calls of one state.

        If a state only calls one value, and `alone` is true, it becomes a call and keeps no moves of its own.

        Returns:
            The runs of tokens that begin values, with the states after them.
        """
        automaton, states, builder = self._automata[number], self._states[number], self._builder
        following, runs = automaton.values(state), list[_Run]()
        own = self._runs(number, state)
        if alone and following and len(automaton.edges[state]) == 1 and not (own or state in automaton.finals):
            ((value, target),) = following.items()
            rule = self._rules[value]
            entry = rule.entry if isinstance(rule, ValueRule) else self._states[value][0]
            builder.set_op(states[state], builder.call(entry, [states[target]]))
        elif following:
            begun = builder.row_targets(builder.row_of(states[state]))
            for value, target in following.items():
                for byte, inside in self._moves[value].items():
                    if begun[byte] != DEAD:
                        raise self._ambiguous(value, chr(byte))
                    begun[byte] = builder.state(op=builder.call(inside, [states[target]]))
            taken = set(np.flatnonzero(begun != DEAD).tolist())
            if any(map(self._tokens.get, following)):
                taken |= self._token_symbols(own)
            for value, target in following.items():
                symbols = self._token_symbols(self._tokens[value])
                if clash := symbols & taken:
                    raise self._ambiguous(value, _named(min(clash)))
                taken |= symbols
                for first, last, inside in self._tokens[value]:
                    runs.append((first, last, builder.state(op=builder.call(inside, [states[target]]))))
                    builder.token_edge(states[state], *runs[-1])
            builder.fill(states[state], row=builder.row(begun), exit_label=0 if state in automaton.finals else -1)
        return runs

    def _runs(self, number: Value, state: State) -> tuple[_Run, ...]:
        """Return the tokens that a state of an automaton reads."""
        states = self._states[number]
        tokens = self._automata[number].tokens.get(state, ())
        return tuple((first, last, states[target]) for runs, target in tokens for first, last in runs)

    @memoized
    def _token_symbols(self, tokens: tuple[_Run, ...]) -> frozenset[_Symbol]:
        """Return tokens as symbols, together with the first bytes of their texts."""
        found = {256 + token for first, last, _ in tokens for token in range(first, last + 1)}
        self._builder.spend(len(found))
        texts = (self._vocabulary.token_bytes(symbol - 256) for symbol in found)
        return frozenset(found).union(text[0] for text in texts if text)

    def _begins(self, number: Value, state: State, *, tokens: bool = True) -> set[_Symbol]:
        """Return what may come in a state of an automaton."""
        automaton, values = self._automata[number], self._automata[number].values(state)
        found = set().union(*map(self._moves.__getitem__, values))
        if (only := _only_letter(automaton, state)) is not None:
            found.add(only[0])
        elif len(automaton.edges[state]) > len(values):
            found.update(_row(self._builder, self._states[number][state]))
        if tokens:
            found |= self._token_symbols(self._runs(number, state))
            for value in values:
                found |= self._token_symbols(self._tokens[value])
        return found

    def _follows(self) -> dict[Value, set[_Symbol]]:
        """Return what may come after each rule of a grammar (the set FOLLOW of an LL(1) parser)."""
        tag, found = len(self._rules), {number: set[_Symbol]() for number in self._automata}
        sites: list[tuple[Value, Value, bool, set[_Symbol]]] = []
        for number, automaton in self._automata.items():
            for state in range(len(automaton)):
                for value, target in automaton.values(state).items():
                    rule = self._rules[value]
                    if isinstance(rule, GrammarRule):
                        if target in automaton.boundaries:
                            raise rule.error(
                                "stands directly before text with a limit in tokens; put a fixed text between them"
                            )
                        ends = target in automaton.finals and number != tag
                        sites.append((value, number, ends, self._begins(number, target)))
        changed = True
        while changed:
            changed = False
            for value, number, ends, begun in sites:
                before = len(found[value])
                self._builder.spend(1 + len(begun) // 64)
                found[value] |= begun | (found[number] if ends else set())
                changed |= len(found[value]) > before
        return found

    def _check_end(self, number: Value, follows: set[_Symbol]) -> None:
        """Raise UnsupportedFeatureError if what follows a rule of a grammar could also continue it."""
        for state in sorted(self._automata[number].finals):
            if clash := self._begins(number, state) & follows:
                rule = self._rules[number]
                assert isinstance(rule, GrammarRule)
                symbol = _named(min(clash))
                raise rule.error(
                    f"has no clear end: {symbol!r} may follow it, and also continue it; change one of the two"
                )

    def _check_numbers(self, number: Value, follows: Mapping[Value, set[_Symbol]]) -> None:
        """Raise UnsupportedFeatureError if text after a number could continue it, or if a token limit follows."""
        automaton = self._automata[number]
        for state in range(len(automaton)):
            for value, target in automaton.values(state).items():
                rule = self._rules[value]
                if isinstance(rule, GrammarRule) or _NUMBER_BEGINS.isdisjoint(self._moves[value]):
                    continue
                if target in automaton.boundaries:
                    raise UnsupportedFeatureError(
                        "a value that may be a number, before text with a limit in tokens", pointer=rule.pointer
                    )
                if rule.is_open:
                    continue
                begins = self._begins(number, target, tokens=False)
                if target in automaton.finals:
                    begins |= follows[number]
                if found := sorted(begins & _GOES_ON):
                    raise UnsupportedFeatureError(
                        f"a value that may be a number, before what a number could go on with ({chr(found[0])!r})",
                        pointer=rule.pointer,
                    )

    def _ambiguous(self, value: Value, begin: str) -> GrammarError:
        rule = self._rules[value]
        what = f"begins like something else that may come in its place ({begin!r}); begin them differently"
        if isinstance(rule, GrammarRule):
            return rule.error(what)
        return UnsupportedFeatureError(f"a value that {what}, or make one JSON Schema of both", pointer=rule.pointer)


def _named(symbol: _Symbol) -> str:
    return chr(symbol) if symbol < 256 else f"token {symbol - 256}"


def _text_states(automaton: FormatNfa, builder: PushdownBuilder) -> dict[int, int]:
    """Return the number of each state, with its characters and exits; tokens and values are not yet added.

    Most states of a tag read one character of a begin or an end. These become literals, the others dense rows.
    """
    letters = {state: read for state in range(len(automaton)) if (read := _only_letter(automaton, state)) is not None}
    numbers: dict[int, int] = {}
    ends = []
    for first in letters:
        state = first
        while state in letters and state not in numbers:
            letter, target = letters[state]
            numbers[state] = builder.state(lit=letter)
            state = target
        if state != first:
            ends.append((builder.state(), state))
    dense = {state: _text(automaton, state) for state in range(len(automaton)) if state not in numbers}
    entered = {target: None for moves in dense.values() for _, target in moves if target in numbers}
    rows = {state: row for row, state in enumerate([*dense, *entered])}
    edges = [[(label, rows[target]) for label, target in dense.get(state, ())] for state in rows]
    labels = [*(int(state in automaton.finals) for state in dense), *range(2, 2 + len(entered))]
    known = {label: numbers[state] for label, state in enumerate(entered, 2)}
    if rows:
        laid = StringLowering(builder).raw_states(text_moves(edges, labels), known)
        numbers |= {state: laid[rows[state]] for state in dense}
    for end, state in ends:
        builder.set_op(end, builder.goto(numbers[state]))
    return numbers


def _text(automaton: FormatNfa, state: int) -> list[tuple[Charset, int]]:
    """Return the moves of a state that read characters."""
    return [(label, target) for label, target in automaton.edges[state] if not isinstance(label, int)]


def _only_letter(automaton: FormatNfa, state: int) -> tuple[int, int] | None:
    """Return the ASCII character and its target, if they are the only move of a state; else None."""
    if state in automaton.finals or automaton.tokens.get(state) or len(automaton.edges[state]) != 1:
        return None
    ((label, target),) = automaton.edges[state]
    if isinstance(label, int):
        return None
    letter = label[0][0]
    return (letter, target) if letter < 0x80 and label == charset.singles([letter]) else None
