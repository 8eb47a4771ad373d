r"""Conditions on the text around terminals of a Lark grammar: look-arounds, and where ignored text ends.

Terminals with such a condition stand between two markers, characters that no text has. An automaton over texts with
markers says where the conditions hold; the grammar is intersected with it, and the markers are taken out.

    KW: /if\b/   NAME: /[a-z]+/     «if»x is not accepted by the automaton: behind the marker » stands a letter
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Many
from typing import NamedTuple

from grammar_workers.budget import Budget, budget_of
from grammar_workers.dfa import charset
from grammar_workers.dfa.charset import ALL, Charset, spans_of
from grammar_workers.dfa.dfa import Dfa, complement, intersect
from grammar_workers.dfa.reached import reached
from grammar_workers.errors import LimitExceededError
from grammar_workers.languages.cfg import syntax
from grammar_workers.languages.cfg.rtn import TransitionNetwork
from grammar_workers.languages.cfg.rule_nfa import RuleNfa, TooLargeError, determinize, determinize_rule, to_characters
from grammar_workers.languages.regex.parse import Node
from grammar_workers.languages.regex.preferred import (
    CHOSEN,
    ENDED,
    MATCH,
    Branch,
    Matcher,
    Run,
    chosen_at_end,
    is_match,
)
from grammar_workers.options import Limits

MARKERS: Charset = ((0xFDD0, 0xFDEF),)
"""Noncharacters: Unicode reserves them for uses inside of programs. A grammar that needs markers generates none."""


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

    def marked(self, automaton: Dfa, tree: Node, *, shorter: bool) -> syntax.Expression:
        """Mark a terminal that reads `automaton`, where `tree`, with its look-arounds, matches in the whole text.

        Args:
            automaton: All texts that the terminal may take, and perhaps more.
            tree: The terminal, with look-arounds as its only conditions.
            shorter: True if it may also end before the preferred match does, as `wrong_texts` says.

        Raises:
            LimitExceededError: There are no more markers, or the automaton is too large.
        """
        begin, end = self._markers()
        wrong = wrong_texts(tree, begin, end, self._limits, shorter=shorter) or RuleNfa([[]], [[]])
        try:
            found = determinize(wrong, budget_of(self._limits), max_states=self._limits.max_regex_states)
        except TooLargeError:
            most = self._limits.max_regex_states
            raise LimitExceededError(
                f"the conditions of a terminal need more than {most} states (fixed limit max_regex_states)"
            ) from None
        self._automata.append(complement(to_characters(found), self._limits))
        return syntax.Sequence((syntax.Marker(begin), syntax.Regular(automaton), syntax.Marker(end)))

    def _markers(self) -> tuple[int, int]:
        if self._next + 1 > MARKERS[0][1]:
            most = (MARKERS[0][1] - MARKERS[0][0] + 1) // 2
            raise LimitExceededError(
                f"more than {most} terminals have look-arounds or are ignored up to a character that other terminals "
                "begin with; join some of them"
            )
        self._next += 2
        return self._next - 2, self._next - 1


def wrong_texts(tree: Node, begin: int, end: int, limits: Limits, *, shorter: bool) -> RuleNfa | None:
    """Return the texts in which the characters between two markers are not what a terminal takes.

    They are if they are the match that is preferred where they begin.

    Args:
        tree: The terminal, with look-arounds as its only conditions.
        begin: The marker before the terminal.
        end: The marker behind it.
        limits: Bounds on states and steps.
        shorter: As in `dynamic_complete`, they may also be the preferred match of a shorter text: where they meet the
            conditions in the whole text and on their own, and no match that is shorter still comes before theirs.

    Returns:
        None where the text around never matters: `preferred_automaton` has the texts that are right.
    """
    matcher = Matcher(tree, limits)
    letters = [charset.subtract(charset.make(spans), MARKERS) for spans in spans_of(matcher.starts, matcher.letter_at)]
    first, last, matters = 0, 1, False
    wrong = RuleNfa([[], [(ALL, last)]], [[], []], {last})
    states = {_Place(Run((), matcher.begun.behinds)): first}

    def lead(state: int, label: Charset, place: _Place) -> None:
        if place.is_behind and CHOSEN not in (branch.instruction for branch in place.run.branches):
            wrong.edges[state].append((label, last))
        elif not place.is_behind or place.run.branches[0] != Branch(CHOSEN):
            if place not in states:
                states[place] = wrong.state()
                places.append(place)
            wrong.edges[state].append((label, states[place]))

    places = list(states)
    for place in places:
        run, alone, is_behind = place
        state = states[place]
        if alone is not None:
            is_match_alone = is_match(alone)
            behind = _Place(_marked(run, only_matches=shorter and is_match_alone), None, True)
            lead(state, charset.make([(end, end)]), behind)
            matters |= behind in states or is_match_alone != (behind.run.branches[:1] == (Branch(CHOSEN),))
        else:
            wrong.edges[state].append((MARKERS, state))
            if not is_behind:
                lead(state, charset.make([(begin, begin)]), _Place(matcher.begin(run.behinds), matcher.begun))
            elif chosen_at_end(run.branches) != CHOSEN:
                wrong.finals.add(state)
        for letter, characters in enumerate(letters):
            after = alone and matcher.after(alone, letter)
            lead(state, characters, _Place(matcher.after(run, letter), after, is_behind))
    return wrong if matters else None


class _Place(NamedTuple):
    """Before a terminal (its `run` has no branches), inside of it (`alone` sees nothing before it) or behind it."""

    run: Run
    alone: Run | None = None
    is_behind: bool = False


def _marked(run: Run, *, only_matches: bool) -> Run:
    """The run behind a terminal whose end is marked here; with `only_matches`, no longer match comes before it."""
    branches = []
    for branch in run.branches:
        if branch.instruction <= MATCH:
            branches.append(branch._replace(instruction=CHOSEN if branch.instruction == MATCH else ENDED))
        elif not only_matches:
            branches.append(branch)
    return Run(tuple(branches), run.behinds)


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
