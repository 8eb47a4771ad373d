r"""Conditions on the text around terminals of a Lark grammar: look-arounds, and the end of ignored text.

A terminal with a condition stands between two *markers*, characters that no text contains. An automaton over texts with
markers accepts the texts in which all conditions hold. The grammar is intersected with this automaton, and then the
markers are erased.

    KW: /if\b/   NAME: /[a-z]+/     The automaton rejects «if»x, because a letter follows the marker ».
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Many
from typing import NamedTuple

from grammar_workers.budget import Budget, budget_of
from grammar_workers.dfa import charset
from grammar_workers.dfa.charset import ALL, Charset, spans_of
from grammar_workers.dfa.dfa import Dfa, complement, intersect
from grammar_workers.dfa.reached import reached
from grammar_workers.errors import LimitExceededError
from grammar_workers.languages.cfg import syntax
from grammar_workers.languages.cfg.rule_nfa import RuleNfa, TooLargeError, determinize, to_characters
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

# The noncharacters U+FDD0 to U+FDEF, which Unicode reserves for internal use. A grammar with markers generates none of
# them.
MARKERS: Charset = ((0xFDD0, 0xFDEF),)


class Contexts:
    """Conditions on the text around the terminals of one Lark grammar, and the markers that enclose these terminals.

    A marker is a character that no text of the grammar contains. A terminal with a condition (such as a look-ahead)
    stands between two markers. A DFA over texts with markers accepts the texts in which all conditions hold.

    Args:
        limits: Bounds on states and on steps of work. If one is exceeded, LimitExceededError is raised.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._automata: list[Dfa] = []

    @property
    def automaton(self) -> Dfa | None:
        """DFA of the texts with markers in which every condition holds. None if there are no conditions.

        Computing it may raise LimitExceededError.
        """
        return intersect(self._automata, self._limits) if self._automata else None

    def marked(self, automaton: Dfa, tree: Node, *, shorter: bool) -> syntax.Expression:
        """Put a terminal between two new markers, and store the condition that the text between them is a match.

        Args:
            automaton: DFA of a superset of the texts that the terminal matches.
            tree: The terminal as a pattern whose only conditions are look-arounds.
            shorter: True if a match may also be shorter than the one that a backtracking matcher prefers.

        Returns:
            Expression of the opening marker, a text of `automaton`, and the closing marker.

        Raises:
            LimitExceededError: All markers are in use, or the automaton is too large.
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
        begin = MARKERS[0][0] + 2 * len(self._automata)
        if begin + 1 > MARKERS[0][1]:
            most = (MARKERS[0][1] - MARKERS[0][0] + 1) // 2
            raise LimitExceededError(
                f"more than {most} terminals have look-arounds or are ignored up to a character that other terminals "
                "begin with; join some of them"
            )
        return begin, begin + 1


def wrong_texts(tree: Node, begin: int, end: int, limits: Limits, *, shorter: bool) -> RuleNfa | None:
    """Return an automaton of the texts in which the characters between two markers are not a match of a terminal.

    A marker is a character that no text of the grammar contains. The characters between the markers are a match if a
    backtracking matcher, started at the opening marker, prefers to end at the closing marker (see `regex.preferred`).

    Args:
        tree: The terminal as a pattern whose only conditions are look-arounds.
        begin: Code point of the marker before the terminal.
        end: Code point of the marker after the terminal.
        limits: Bounds on states and on steps of work. If one is exceeded, LimitExceededError is raised.
        shorter: True if the characters may also be the match that the matcher prefers in a shorter text (Lark's lexer
            `dynamic_complete`). They must then satisfy the conditions both in the whole text and in isolation, and no
            shorter match may be preferred to them.

    Returns:
        The automaton over texts with markers. None if the text around the terminal never matters. Then the function
        `regex.preferred.preferred_automaton` returns a DFA of exactly the matches.
    """
    matcher = Matcher(tree, limits)
    letters = [charset.subtract(charset.make(spans), MARKERS) for spans in spans_of(matcher.starts, matcher.letter_at)]
    markers = charset.singles([begin]), charset.singles([end])
    first, last, matters = 0, 1, False
    wrong = RuleNfa([[], [(ALL, last)]], [[], []], {last})
    states = {_Place(Run((), matcher.begun.behinds)): first}
    places = list(states)
    for place in places:
        state = states[place]
        if place.alone is None:
            wrong.edges[state].append((MARKERS, state))
            if place.is_behind and chosen_at_end(place.run.branches) != CHOSEN:
                wrong.finals.add(state)
        for label, after in _following(place, matcher, letters, markers, shorter=shorter):
            is_right = after.is_right
            if place.alone is not None and after.is_behind:
                matters |= is_right != is_match(place.alone)
            if is_right is None and after not in states:
                states[after] = wrong.state()
                places.append(after)
            if not is_right:
                wrong.edges[state].append((label, states.get(after, last)))
    return wrong if matters else None


class _Place(NamedTuple):
    """A state of the search for a terminal.

    `run` matches the terminal in the whole text; before the terminal it has no branches. `alone` matches the terminal
    in isolation; it is None outside the markers. `is_behind` is True after the closing marker.
    """

    run: Run
    alone: Run | None = None
    is_behind: bool = False

    @property
    def is_right(self) -> bool | None:
        """True if the characters between the markers are certainly a match, False if not. None: undecided so far."""
        if not self.is_behind:
            return None
        chosen = [branch for branch in self.run.branches if branch.instruction == CHOSEN]
        return None if chosen and self.run.branches[0] != Branch(CHOSEN) else bool(chosen)


def _following(
    place: _Place, matcher: Matcher, letters: list[Charset], markers: tuple[Charset, Charset], *, shorter: bool
) -> Iterator[tuple[Charset, _Place]]:
    """Yield the states after one more character, each with the characters that lead to it."""
    run, alone, is_behind = place
    if alone is not None:
        yield markers[1], _Place(_marked(run, only_matches=shorter and is_match(alone)), None, True)
    elif not is_behind:
        yield markers[0], _Place(matcher.begin(run.behinds), matcher.begun)
    for letter, characters in enumerate(letters):
        yield characters, _Place(matcher.after(run, letter), alone and matcher.after(alone, letter), is_behind)


def _marked(run: Run, *, only_matches: bool) -> Run:
    """Return the run after a terminal whose end is marked here.

    With `only_matches`, branches that would match a longer text are dropped.
    """
    branches = []
    for branch in run.branches:
        if branch.instruction <= MATCH:
            branches.append(branch._replace(instruction=CHOSEN if branch.instruction == MATCH else ENDED))
        elif not only_matches:
            branches.append(branch)
    return Run(tuple(branches), run.behinds)


def can_end_anywhere(automaton: Dfa, others: Many[Dfa], begins: Charset, budget: Budget) -> bool:
    """Return whether the grammar's language stays the same if ignored text may also be shorter than possible.

    Lark's ignored text (`%ignore`) is as long as possible. This rule makes no difference in two cases. First, no
    ignored text can be continued to a longer one. Second, no terminal and no other ignored text can begin with a
    character that continues the ignored text, and two ignored texts in sequence are one ignored text.

    Args:
        automaton: DFA of the ignored text.
        others: DFAs of the other ignored texts.
        begins: The characters with which terminals begin.
        budget: Counts the steps of work. An exhausted budget raises LimitExceededError.
    """
    # The characters that can be read after a whole ignored text.
    going_on = next_characters(automaton, reached(automaton.ends, automaton.successors.__getitem__))
    if not going_on:
        return True
    first = charset.union(begins, *map(next_characters, others))
    return not charset.intersect(going_on, first) and _follows_itself(automaton, budget)


def next_characters(automaton: Dfa, states: Iterable[int] = (0,)) -> Charset:
    """Return the characters that a DFA can read in at least one of several states.

    Args:
        automaton: The DFA.
        states: Numbers of the states. By default only the initial state: the result then has the first characters of
            all texts.
    """
    return charset.make((low, high) for state in states for low, high, _ in automaton.ranges(state))


def _follows_itself(automaton: Dfa, budget: Budget) -> bool:
    """Return whether the concatenation of two texts of `automaton` is always a text of `automaton`."""

    def following(pair: tuple[int, int]) -> set[tuple[int, int]]:
        budget.spend(len(automaton.starts))
        moves = zip(*(automaton.moves[state] for state in pair), strict=True) if pair[1] >= 0 else ()
        return {(first, second) for first, second in moves if first >= 0}

    pairs = reached([(0, end) for end in automaton.ends], following)
    return all(
        second >= 0 and (automaton.accepting[second] or not automaton.accepting[first]) for first, second in pairs
    )
