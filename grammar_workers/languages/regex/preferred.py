"""The texts that a backtracking matcher takes as a whole: the match that it prefers ends where the text ends.

Python's `re.match` tries the branches of a pattern in order and stops at the first that matches: `a|ab` never takes
`ab`, and `".*?"` never goes past a quote. A matcher follows all branches at once, in this order (as in Cox, 2010,
"Regular Expression Matching in the Wild", and Rust's `regex`): what comes behind a match in the list is dropped,
because the match is preferred.

    a|ab     (a, a b)  --a-->  (match, b): what stands behind the match is dropped  --b-->  nothing

A look-ahead that the text so far does not decide goes along with its branch. A branch that has reached the end of the
pattern then waits for it in the list, and is a match once it holds.
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

MATCH = 0
"""The instruction at which the pattern has been read."""
ENDED = -1
"""In place of `MATCH`: the match ended before the last character, and waits for a look-ahead."""
CHOSEN = -2
"""In place of `MATCH`: a match whose end was marked; it stays in the list."""


class Branch(NamedTuple):
    """An instruction that has been reached, and the look-aheads that the rest of the text must meet.

    Each of `waiting` is (negative, branches of the look-ahead).
    """

    instruction: int
    waiting: frozenset[tuple[bool, tuple[Branch, ...]]] = frozenset()


Branches = tuple[Branch, ...]


class Run(NamedTuple):
    """The branches of the pattern, and before each character those of each look-behind."""

    branches: Branches
    behinds: tuple[Branches, ...]


def preferred_automaton(tree: Node, limits: Limits) -> Dfa:
    """Compile the texts that `tree` takes as a whole by preference, where no other text stands around them.

    Args:
        tree: A pattern whose only conditions are look-arounds. Of a class, `common` is read.
        limits: Bounds on states and steps.

    Raises:
        LimitExceededError: The pattern or its automaton is too large.

    Reference: Cox 2010, https://swtch.com/~rsc/regexp/regexp3.html.
    """
    matcher = Matcher(tree, limits)

    def following(run: Run) -> list[Run | None]:
        runs = [matcher.after(run, letter) for letter in matcher.letters]
        return [each if each.branches else None for each in runs]

    return minimize(explore(matcher.begun, following, is_match, matcher.starts, matcher.letter_at, budget_of(limits)))


def is_match(run: Run) -> bool:
    """Return whether the preferred match ends here if the text does."""
    return chosen_at_end(run.branches) == MATCH


def chosen_at_end(branches: Branches) -> int | None:
    """Return the instruction of the first branch that is a match if the text ends here, None without any."""
    for instruction, waiting in branches:
        if instruction <= MATCH and all((chosen_at_end(inner) is None) == negative for negative, inner in waiting):
            return instruction
    return None


class Matcher:
    """Follows the branches of `tree` through a text, letter by letter.

    Attributes:
        starts, letter_at: The letters of all characters, as `charset.letters_of` has them.
        letters: The numbers of the letters.
        begun: The run before the first character of a text.
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
        """Return the run that begins where the look-behinds are as far as `behinds`."""
        return Run(self._reached([Branch(self._first)], behinds), behinds)

    def after(self, run: Run, letter: int) -> Run:
        """Return the run one character later."""
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
                # A match that waits for nothing has dropped what is behind it, and is not the end of a longer text.
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
    """Return the look-aheads that are not decided yet, or None where one of them does not hold."""
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

    Instruction i reads a character of `characters[i]` and goes on at `following[i][0]`. Where `characters[i]` is None,
    it goes on at each of `following[i]`, the preferred one first. `exits` has the instruction behind each loop, `looks`
    the look-around that an instruction asks for, with the first instruction of a look-ahead and the number of a
    look-behind, whose first instruction is in `behinds`.
    """

    def __init__(self, budget: Budget) -> None:
        self.characters: list[Charset | None] = [None]
        self.following: list[tuple[int, ...]] = [()]
        self.exits: dict[int, int] = {}
        self.looks: dict[int, tuple[Look, int]] = {}
        self.behinds: list[int] = []
        self._budget = budget

    def add(self, node: Node, following: int) -> int:
        """Append `node` before the instruction `following` and return the instruction that it begins with."""
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
            # `x*` is `(x+)?`: so an iteration that reads nothing ends the loop, as it does for a matcher.
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
