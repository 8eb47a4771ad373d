r"""Conditions on the text around terminals of a Lark grammar: look-arounds, and where ignored text ends.

Terminals with such a condition stand between two markers, characters that no text has. An automaton over texts with
markers says where the conditions hold; the grammar is intersected with it, and the markers are taken out.

    KW: /if\b/   NAME: /[a-z]+/     «if»x is not accepted by the automaton: behind the marker » stands a letter
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from collections.abc import Sequence as Many

from grammar_workers.budget import Budget, budget_of
from grammar_workers.dfa import charset
from grammar_workers.dfa.charset import ALL, Charset
from grammar_workers.dfa.dfa import Dfa, complement, intersect
from grammar_workers.dfa.reached import reached
from grammar_workers.errors import LimitExceededError
from grammar_workers.languages.cfg import syntax
from grammar_workers.languages.cfg.rtn import TransitionNetwork
from grammar_workers.languages.cfg.rule_nfa import RuleNfa, TooLargeError, determinize, determinize_rule, to_characters
from grammar_workers.languages.regex.character_class import agreed
from grammar_workers.languages.regex.compile import compile_tree
from grammar_workers.languages.regex.parse import Alternatives, Characters, Look, Node, Repeat, Sequence
from grammar_workers.languages.regex.written_out import with_parts
from grammar_workers.options import Limits

MARKERS: Charset = ((0xFDD0, 0xFDEF),)
"""Noncharacters: Unicode reserves them for uses inside of programs. A grammar that needs markers generates none."""

_NO_MARKER = charset.subtract(ALL, MARKERS)
_ANY_MARKERS = Repeat(Characters(agreed(MARKERS)), 0, None)


class Contexts:
    """Markers that have been given out, and the conditions on what stands between and around them."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._next = MARKERS[0][0]
        self._automata: list[Dfa] = []

    @property
    def markers(self) -> Charset:
        """The markers in use."""
        return charset.make([(MARKERS[0][0], self._next - 1)]) if self._automata else charset.EMPTY

    @property
    def automaton(self) -> Dfa | None:
        """The automaton of the texts with markers in which every condition holds, or None without conditions."""
        return intersect(self._automata, self._limits) if self._automata else None

    def with_conditions(self, automaton: Dfa, tree: Node, longest: Dfa | None = None) -> syntax.Expression:
        """Mark a terminal that reads `automaton`, where `tree`, with its look-arounds, matches in the whole text.

        With `longest`, it also ends only where the text that follows makes no longer text of that automaton.

        Raises:
            LimitExceededError: There are no more markers, or the automaton is too large.
            UnsupportedFeatureError: `tree` holds a condition inside a look-behind.
        """
        begin, end = self._markers()
        token = Sequence((_one(begin), _marked(tree, None), _one(end)))
        other = Characters(agreed(charset.subtract(ALL, charset.make([(begin, end)]))))
        whole = Repeat(Alternatives((other, token)), 0, None)
        self._automata.append(compile_tree(whole, search=False, limits=self._limits))
        if longest is not None:
            self._end_late(longest, begin, end)
        return _between(begin, automaton, end)

    def as_long_as_possible(self, automaton: Dfa) -> syntax.Expression:
        """Mark ignored text, which ends only where the text that follows makes no longer one of it."""
        begin, end = self._markers()
        self._end_late(automaton, begin, end)
        return _between(begin, automaton, end)

    def _end_late(self, automaton: Dfa, begin: int, end: int) -> None:
        wrong = _goes_on(automaton, begin, end)
        try:
            found = determinize(wrong, budget_of(self._limits), max_states=self._limits.max_regex_states)
        except TooLargeError:
            most = self._limits.max_regex_states
            raise LimitExceededError(
                f"the end of a terminal needs more than {most} states (fixed limit max_regex_states)"
            ) from None
        self._automata.append(complement(to_characters(found), self._limits))

    def _markers(self) -> tuple[int, int]:
        if self._next + 1 > MARKERS[0][1]:
            most = (MARKERS[0][1] - MARKERS[0][0] + 1) // 2
            raise LimitExceededError(
                f"more than {most} terminals have look-arounds or are ignored up to a character that other terminals "
                "begin with; join some of them"
            )
        self._next += 2
        return self._next - 2, self._next - 1


def _between(begin: int, automaton: Dfa, end: int) -> syntax.Expression:
    return syntax.Sequence((syntax.Marker(begin), syntax.Regular(automaton), syntax.Marker(end)))


def _one(marker: int) -> Node:
    return Characters(agreed(charset.make([(marker, marker)])))


def _marked(node: Node, look: Look | None) -> Node:
    """The pattern on texts with markers: a terminal has none inside, look-arounds (inside `look`) read over them."""
    if isinstance(node, Characters):
        read = Characters(agreed(charset.intersect(node.characters.common, _NO_MARKER)))
        if look is None:
            return read
        return Sequence((read, _ANY_MARKERS) if look.behind else (_ANY_MARKERS, read))
    # Anchors and word boundaries are look-arounds by now.
    inside = node if isinstance(node, Look) else look
    marked = with_parts(node, lambda part: _marked(part, inside))
    # A limit is exceeded by the terminal with its marks, not by one repetition in it.
    return dataclasses.replace(marked, position=0) if isinstance(marked, Repeat) else marked


def _goes_on(automaton: Dfa, begin: int, end: int) -> RuleNfa:
    """The texts in which a longer text of `automaton` follows `begin` than the one that ends at `end`."""
    wrong = RuleNfa()
    first, last = wrong.state(), wrong.state()
    inside = [wrong.state() for _ in automaton.accepting]
    behind = [wrong.state() for _ in automaton.accepting]
    wrong.finals.add(last)
    wrong.edges[first] += [(ALL, first), (charset.make([(begin, begin)]), inside[0])]
    wrong.edges[last].append((ALL, last))
    for state, accepting in enumerate(automaton.accepting):
        wrong.edges[behind[state]].append((MARKERS, behind[state]))
        if accepting:
            wrong.edges[inside[state]].append((charset.make([(end, end)]), behind[state]))
        for low, high, target in automaton.ranges(state):
            read = charset.subtract(charset.make([(low, high)]), MARKERS)
            wrong.edges[inside[state]].append((read, inside[target]))
            wrong.edges[behind[state]].append((read, last if automaton.accepting[target] else behind[target]))
    return wrong


def erase(network: TransitionNetwork, markers: Charset, budget: Budget) -> None:
    """Take the markers out of the texts of `network`; raises LimitExceededError."""
    for number, automaton in enumerate(network.rules):
        result = RuleNfa()
        automaton.copy_into(result)
        result.finals = set(automaton.finals)
        for state, moves in enumerate(automaton.edges):
            result.edges[state] = []
            for label, target in moves:
                if isinstance(label, int):
                    result.edges[state].append((label, target))
                    continue
                if charset.intersect(label, markers):
                    result.silent[state].append(target)
                if kept := charset.subtract(label, markers):
                    result.edges[state].append((kept, target))
        network.rules[number] = determinize_rule(network.names[number], result, budget)


def can_end_anywhere(automaton: Dfa, others: Many[Dfa], begins: Charset, budget: Budget) -> bool:
    """Return whether ignored text may as well end before it is as long as possible.

    True if the language of the grammar is the same either way: a longer text would read ignored text of the same kind,
    which may follow itself.

    Args:
        automaton: The ignored text.
        others: The other ignored texts.
        begins: The characters that terminals begin with.
        budget: Where the steps are counted.
    """
    going_on = _characters_behind(automaton)
    if not going_on:
        return True
    first = charset.union(begins, *map(next_characters, others))
    return not charset.intersect(going_on, first) and _follows_itself(automaton, budget)


def next_characters(automaton: Dfa, states: Iterable[int] = (0,)) -> Charset:
    """Return the characters that `automaton` reads in these states; without any, those that its texts begin with."""
    return charset.make((low, high) for state in states for low, high, _ in automaton.ranges(state))


def _characters_behind(automaton: Dfa) -> Charset:
    """The characters that can be read behind a whole text of `automaton`."""
    return next_characters(automaton, reached(automaton.ends, automaton.successors.__getitem__))


def _follows_itself(automaton: Dfa, budget: Budget) -> bool:
    """True if two texts of `automaton` in a row are one text of it."""

    def following(pair: tuple[int, int]) -> set[tuple[int, int]]:
        budget.spend(len(automaton.starts))
        moves = zip(*(automaton.moves[state] for state in pair), strict=True) if pair[1] >= 0 else ()
        return {(first, second) for first, second in moves if first >= 0}

    pairs = reached([(0, end) for end in automaton.ends], following)
    return all(
        second >= 0 and (automaton.accepting[second] or not automaton.accepting[first]) for first, second in pairs
    )
