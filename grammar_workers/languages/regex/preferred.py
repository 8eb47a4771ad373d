"""Simulation of a backtracking matcher, to compile the texts that Python's `re.match` matches to their end.

Python's `re.match` tries the branches of a pattern in order and stops at the first that matches: `a|ab` never matches
`ab`, and `".*?"` never extends past a quote. The simulation follows all branches at once. It keeps them in a list, in
the order in which `re.match` tries them (Cox, 2010, "Regular Expression Matching in the Wild"; Rust's `regex`). If a
branch matches, the branches after it in the list are dropped.

    a|ab     (a, a b)  --a-->  (match, b): the branch after the match is dropped  --b-->  nothing

A look-ahead that depends on later text is attached to its branch. If the branch reaches the end of the pattern, it
stays in the list until the look-ahead is decided.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from grammar_workers.budget import Budget, budget_of
from grammar_workers.dfa.charset import Charset, letters_of
from grammar_workers.dfa.dfa import Dfa, explore, minimize
from grammar_workers.languages.regex.character_class import ANYTHING
from grammar_workers.languages.regex.parse import Alternatives, Characters, Look, Node, Repeat, Sequence
from grammar_workers.options import Limits

# The instruction at the end of the pattern.
MATCH = 0
# In place of `MATCH`: the match ended before the last character read, and a look-ahead is still undecided.
ENDED = -1
# In place of `MATCH`: a match whose end was marked; it stays in the list.
CHOSEN = -2


class Branch(NamedTuple):
    """One alternative path of a simulated backtracking matcher.

    Attributes:
        instruction: Number of the next instruction of the compiled pattern. Numbers up to 0 mean that the path is a
            complete match: `MATCH` (0) if it ends at the current character, `ENDED` (-1) if it ended at an earlier
            character, `CHOSEN` (-2) if the caller has marked its end, so that it is never dropped.
        waiting: Undecided look-aheads. Each is a pair: True if the look-ahead must not match, and its branches.
    """

    instruction: int
    waiting: frozenset[tuple[bool, tuple[Branch, ...]]] = frozenset()


Branches = tuple[Branch, ...]


class Run(NamedTuple):
    """State of a simulated backtracking matcher after some text.

    Attributes:
        branches: Alternative paths through the pattern, the preferred one first. (): no longer text can match.
        behinds: The alternative paths through each look-behind of the pattern, inner look-behinds first.
    """

    branches: Branches
    behinds: tuple[Branches, ...]


def preferred_automaton(tree: Node, limits: Limits) -> Dfa:
    """Compile a pattern to the DFA of the texts that a backtracking matcher matches to their end.

    The matcher stops at the first match that it finds. A text counts only if this match is the whole text. A too large
    pattern raises LimitExceededError.

    Args:
        tree: Syntax tree of a pattern without anchors and word boundaries. A character class counts as the characters
            that both dialects (ECMA-262 and Python's `re`) accept.
        limits: Bounds on states and on steps of work.

    Returns:
        The minimal DFA.

    Reference: Cox 2010, https://swtch.com/~rsc/regexp/regexp3.html.
    """
    matcher = Matcher(tree, limits)

    def following(run: Run) -> list[Run | None]:
        runs = [matcher.after(run, letter) for letter in matcher.letters]
        return [each if each.branches else None for each in runs]

    return minimize(explore(matcher.begun, following, is_match, matcher.starts, matcher.letter_at, budget_of(limits)))


def is_match(run: Run) -> bool:
    """Return whether the matcher matches all of the text read so far, provided that the text ends here.

    Args:
        run: State of the matcher after the text.
    """
    return chosen_at_end(run.branches) == MATCH


def chosen_at_end(branches: Branches) -> int | None:
    """Return the instruction of the first branch that is a match, provided that the text ends here.

    Args:
        branches: Alternative paths of the matcher, the preferred one first.

    Returns:
        `MATCH` (0), `ENDED` (-1) or `CHOSEN` (-2). None if no branch is a match.
    """
    for instruction, waiting in branches:
        if instruction <= MATCH and all((chosen_at_end(inner) is None) == negative for negative, inner in waiting):
            return instruction
    return None


class Matcher:
    """Simulation of a backtracking matcher, which reads a text character by character.

    A *letter* is a class of characters that are in the same character sets of the pattern.

    Args:
        tree: Syntax tree of a pattern without anchors and word boundaries.
        limits: Bounds on states and steps. An exhausted budget raises LimitExceededError.

    Attributes:
        starts: First code points of intervals of characters, ascending.
        letter_at: The letter of each interval; -1 for surrogates.
        letters: The numbers of all letters.
        begun: State of the matcher before the first character of a text.
    """

    def __init__(self, tree: Node, limits: Limits) -> None:
        self._budget = budget_of(limits)
        self._program = _Program(self._budget)
        self._first = self._program.add(tree, MATCH)
        self.starts, self.letter_at, letters = letters_of(each for each in self._program.characters if each is not None)
        self._budget.spend(len(self.starts))
        self._letters = [None if each is None else frozenset(letters[each]) for each in self._program.characters]
        self.letters = range(max(self.letter_at) + 1)
        self._closed: dict[tuple[Branches, tuple[Branches, ...], bool], Branches] = {}
        behinds: tuple[Branches, ...] = ()
        for first in self._program.behinds:
            behinds += (self._reached([Branch(first)], behinds, every=True),)
        self.begun = self.begin(behinds)

    def begin(self, behinds: tuple[Branches, ...]) -> Run:
        """Return the state of a matcher that begins a match at the current position of a text.

        Args:
            behinds: Alternative paths through each look-behind at this position, inner look-behinds first.
        """
        return Run(self._reached([Branch(self._first)], behinds), behinds)

    def after(self, run: Run, letter: int) -> Run:
        """Return the state of the matcher after one more character.

        Args:
            run: State before the character; not changed.
            letter: Number of the character's letter (class of equivalent characters).
        """
        behinds: tuple[Branches, ...] = ()
        for branches in run.behinds:
            behinds += (self._after(branches, letter, behinds, every=True),)
        return Run(self._after(run.branches, letter, behinds), behinds)

    def _after(
        self, branches: Branches, letter: int, behinds: tuple[Branches, ...], *, every: bool = False
    ) -> Branches:
        found = []
        self._budget.spend(1 + 3 * len(branches))
        for instruction, waiting in branches:
            read = self._letters[instruction] if instruction > MATCH else None
            if read is not None:
                goes_on, target = letter in read, self._program.following[instruction][0]
            else:
                # A match without undecided look-aheads is final: it is not a match of a longer text.
                goes_on, target = instruction == CHOSEN or (bool(waiting) and not every), min(instruction, ENDED)
            kept = _kept((negative, self._after(inner, letter, behinds)) for negative, inner in waiting)
            if goes_on and kept is not None:
                found.append(Branch(target, kept))
        return self._reached(found, behinds, every=every)

    def _reached(self, sources: Iterable[Branch], behinds: tuple[Branches, ...], *, every: bool = False) -> Branches:
        """Return the branches that read a character or are matches, in order, up to the first match that is certain."""
        key = (tuple(sources), behinds, every)
        if key not in self._closed:
            self._closed[key] = tuple(self._go_on(*key))
        return self._closed[key]

    def _go_on(self, sources: Branches, behinds: tuple[Branches, ...], every: bool) -> Iterable[Branch]:
        program = self._program
        seen: set[Branch] = set()
        pending = list(reversed(sources))
        while pending:
            branch = pending.pop()
            instruction, waiting = branch
            self._budget.spend(3)
            if branch in seen:
                # An iteration that reads nothing ends its loop.
                if instruction in program.exits:
                    pending.append(Branch(program.exits[instruction], waiting))
                continue
            seen.add(branch)
            if instruction <= MATCH or program.characters[instruction] is not None:
                yield branch
                if instruction <= MATCH and not waiting and not every:
                    return
                continue
            kept: frozenset[tuple[bool, Branches]] | None = waiting
            if instruction in program.looks:
                look, number = program.looks[instruction]
                if look.behind:
                    inner = tuple(each for each in behinds[number] if each.instruction == MATCH)
                else:
                    inner = self._reached([Branch(number)], behinds)
                kept = _kept([*waiting, (look.negative, inner)])
            if kept is not None:
                pending.extend(Branch(each, kept) for each in reversed(program.following[instruction]))


def _kept(looks: Iterable[tuple[bool, Branches]]) -> frozenset[tuple[bool, Branches]] | None:
    """Return the look-aheads that are still undecided, or None if one of them fails."""
    kept = set()
    for negative, inner in looks:
        holds = any(instruction <= MATCH and not waiting for instruction, waiting in inner)
        if (holds or not inner) and holds == negative:
            return None
        if inner and not holds:
            kept.add((negative, inner))
    return frozenset(kept)


class _Program:
    """Instructions in the order in which a matcher tries them: Thompson's construction, from the end of a pattern on.

    Instruction i reads a character of `characters[i]` and continues at `following[i][0]`. If `characters[i]` is None,
    it continues at each of `following[i]`, the preferred one first. `exits` maps a loop instruction to the instruction
    after the loop. `looks` maps an instruction to its look-around and to a number: the first instruction of a
    look-ahead, or the index of a look-behind in `behinds`, which lists first instructions.
    """

    def __init__(self, budget: Budget) -> None:
        self.characters: list[Charset | None] = [None]
        self.following: list[tuple[int, ...]] = [()]
        self.exits: dict[int, int] = {}
        self.looks: dict[int, tuple[Look, int]] = {}
        self.behinds: list[int] = []
        self._budget = budget

    def add(self, node: Node, following: int) -> int:
        """Append `node` before the instruction `following`, and return its first instruction."""
        if isinstance(node, Characters):
            return self._append(node.characters.common, (following,))
        if isinstance(node, Sequence):
            for part in reversed(node.parts):
                following = self.add(part, following)
            return following
        if isinstance(node, Alternatives):
            return self._append(None, tuple(self.add(branch, following) for branch in node.branches))
        if isinstance(node, Look):
            return self._look(node, following)
        assert isinstance(node, Repeat), "anchors and word boundaries have become look-arounds"
        return self._repeat(node, following)

    def _look(self, node: Look, following: int) -> int:
        number = self.add(Sequence((_ANY_TEXT, node.body)) if node.behind else node.body, MATCH)
        if node.behind:
            self.behinds.append(number)
            number = len(self.behinds) - 1
        instruction = self._append(None, (following,))
        self.looks[instruction] = (node, number)
        return instruction

    def _repeat(self, node: Repeat, following: int) -> int:
        def choice(body: int) -> tuple[int, int]:
            return (following, body) if node.lazy else (body, following)

        low, first = node.low, following
        if node.high is None:
            # `x*` is built as `(x+)?`: an iteration that reads nothing ends the loop, as in Python's `re`.
            again = self._append(None, ())
            self.exits[again] = following
            first = self.add(node.body, again)
            self.following[again] = choice(first)
            if not low:
                first = self._append(None, choice(first))
            low -= 1
        else:
            for _ in range(node.high - low):
                first = self._append(None, choice(self.add(node.body, first)))
        for _ in range(low):
            first = self.add(node.body, first)
        return first

    def _append(self, characters: Charset | None, following: tuple[int, ...]) -> int:
        self._budget.spend(8)
        self._budget.check_written_out(len(self.following) / 4)
        self.characters.append(characters)
        self.following.append(following)
        return len(self.following) - 1


_ANY_TEXT = Repeat(Characters(ANYTHING), 0, None)
