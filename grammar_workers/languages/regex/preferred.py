"""The texts that a backtracking matcher takes as a whole: the match that it prefers ends where the text ends.

Python's `re.match` tries the branches of a pattern in order and stops at the first that matches: `a|ab` never takes
`ab`, and `".*?"` never goes past a quote. The automaton follows all branches at once, in this order (as in Cox, 2010,
"Regular Expression Matching in the Wild", and Rust's `regex`): its states are lists of positions, and what comes behind
a match in the list is dropped, because the match is preferred.

    a|ab     (a, a b)  --a-->  (match, b): what stands behind the match is dropped  --b-->  nothing
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from grammar_workers.budget import Budget, budget_of
from grammar_workers.dfa.charset import Charset, letters_of
from grammar_workers.dfa.dfa import Dfa, explore, minimize
from grammar_workers.languages.regex.parse import Alternatives, Characters, Node, Repeat, Sequence
from grammar_workers.options import Limits

_MATCH = 0
"""The instruction at which the pattern has been read."""


@dataclasses.dataclass
class _Program:
    """Instructions in the order in which a matcher tries them.

    Instruction i reads a character of `characters[i]` and goes on at `following[i][0]`. Where `characters[i]` is None,
    it goes on at each of `following[i]`, the preferred one first. `exits` has the instruction behind each loop.
    """

    characters: list[Charset | None] = dataclasses.field(default_factory=lambda: [None])
    following: list[tuple[int, ...]] = dataclasses.field(default_factory=lambda: [()])
    exits: dict[int, int] = dataclasses.field(default_factory=dict)


def preferred_automaton(tree: Node, limits: Limits) -> Dfa:
    """Compile the texts that `tree` takes as a whole by preference.

    Args:
        tree: A pattern without look-around, anchors and word boundaries. Of a class, `common` is read.
        limits: Bounds on states and steps.

    Raises:
        LimitExceededError: The pattern or its automaton is too large.

    Reference: Cox 2010, https://swtch.com/~rsc/regexp/regexp3.html.
    """
    budget = budget_of(limits)
    builder = _Builder(budget)
    first = builder.add(tree, _MATCH)
    return _determinized(builder.program, first, budget)


class _Builder:
    """Thompson's construction from the end of a pattern to its beginning."""

    def __init__(self, budget: Budget) -> None:
        self.program = _Program()
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
        assert isinstance(node, Repeat), "conditions have been taken out"
        return self._repeat(node, following)

    def _repeat(self, node: Repeat, following: int) -> int:
        low, high = node.low, node.high
        if high is None:
            # `x*` is `(x+)?`: so an iteration that reads nothing ends the loop, as it does for a matcher.
            first = self._loop(node, following)
            low -= 1
            if low < 0:
                first = self._choice(first, following, node.lazy)
        else:
            first = following
            for _ in range(high - low):
                first = self._choice(self.add(node.body, first), following, node.lazy)
        for _ in range(low):
            first = self.add(node.body, first)
        return first

    def _loop(self, node: Repeat, following: int) -> int:
        """`x+`: the body, and behind it the choice to read it again."""
        again = self._append(None, ())
        self.program.exits[again] = following
        first = self.add(node.body, again)
        self.program.following[again] = (following, first) if node.lazy else (first, following)
        return first

    def _choice(self, body: int, following: int, lazy: bool) -> int:
        return self._append(None, (following, body) if lazy else (body, following))

    def _append(self, characters: Charset | None, following: tuple[int, ...]) -> int:
        self._budget.spend(8)
        self._budget.check_written_out(len(self.program.following) / 4)
        self.program.characters.append(characters)
        self.program.following.append(following)
        return len(self.program.following) - 1


def _determinized(program: _Program, first: int, budget: Budget) -> Dfa:
    starts, letter_at, letters = letters_of(each for each in program.characters if each is not None)
    budget.spend(len(starts))
    many = max(letter_at) + 1

    def following(thread: tuple[int, ...]) -> list[tuple[int, ...] | None]:
        targets: dict[int, list[int]] = {}
        for instruction in thread:
            characters = program.characters[instruction]
            if characters is not None:
                for letter in letters[characters]:
                    targets.setdefault(letter, []).append(program.following[instruction][0])
        budget.spend(len(thread) + 2 * sum(map(len, targets.values())) + many)
        row: list[tuple[int, ...] | None] = [None] * many
        closed = {key: tuple(_reached(program, key, budget)) for key in dict.fromkeys(map(tuple, targets.values()))}
        for letter, sources in targets.items():
            row[letter] = closed[tuple(sources)]
        return row

    initial = tuple(_reached(program, (first,), budget))
    return minimize(explore(initial, following, lambda thread: int(_MATCH in thread), starts, letter_at, budget))


def _reached(program: _Program, sources: tuple[int, ...], budget: Budget) -> Iterator[int]:
    """Yield the instructions that read a character, in order, up to a match, which comes last."""
    seen: set[int] = set()
    pending = list(reversed(sources))
    while pending:
        instruction = pending.pop()
        budget.spend(1)
        if instruction in seen:
            # An iteration that reads nothing ends its loop.
            if instruction in program.exits:
                pending.append(program.exits[instruction])
            continue
        seen.add(instruction)
        if instruction == _MATCH:
            yield instruction
            return
        if program.characters[instruction] is not None:
            yield instruction
        else:
            pending.extend(reversed(program.following[instruction]))
