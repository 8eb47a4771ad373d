"""Builder of the automaton of a structural tag. It appends states, fixed texts, and copies of other automata."""

from __future__ import annotations

import numpy as np

from grammar_workers.budget import budget_of
from grammar_workers.dfa import charset
from grammar_workers.dfa.charset import Charset
from grammar_workers.dfa.dfa import DEAD, Dfa, intersect
from grammar_workers.errors import LimitExceededError
from grammar_workers.languages.cfg.rule_builder import RuleBuilder
from grammar_workers.languages.cfg.rule_nfa import Label, RuleNfa
from grammar_workers.languages.cfg.syntax import FIRST_FORMAT
from grammar_workers.languages.tags.automaton import FormatNfa, Runs, State
from grammar_workers.languages.tags.spelling import Spelling
from grammar_workers.memo import memoized
from grammar_workers.options import Limits
from grammar_workers.pushdown.builder import runs
from grammar_workers.types import TokenId


class Layout(RuleBuilder):
    """Builder of the automaton of a structural tag.

    Args:
        limits: Bounds on states and on steps of work.
    """

    nfa: FormatNfa

    def __init__(self, limits: Limits) -> None:
        message = f"the tags need more than {limits.max_states} states (fixed limit max_states)"
        super().__init__(FormatNfa(), budget_of(limits), limits.max_states, message)
        self._limits = limits

    def token(self, tokens: frozenset[TokenId], first: State, last: State | None = None) -> State:
        """Append a move that reads one of several tokens.

        Args:
            tokens: IDs of the tokens.
            first: The state before the token.
            last: The state after the token. None: a new state.

        Returns:
            The state after the token.
        """
        if last is None:
            last = self.state()
        if tokens:
            self.nfa.tokens[first].append((self._runs(tokens), last))
        return last

    @memoized
    def _runs(self, tokens: frozenset[TokenId]) -> Runs:
        return tuple(runs(np.array(sorted(tokens))))

    def spell(self, spelling: Spelling, first: State) -> State:
        """Append states that read a fixed text.

        Args:
            spelling: The text, split into plain texts and special tokens.
            first: The state before the text.

        Returns:
            The state after the text; `first` if the text is empty.
        """
        for piece in spelling:
            if isinstance(piece, int):
                first = self.token(frozenset([piece]), first)
                continue
            for character in piece:
                first = self.read(charset.singles([ord(character)]), first)
        return first

    def embed_limited(
        self, automaton: Dfa, most_characters: int | None, most_tokens: int | None, first: State, pointer: str
    ) -> State:
        """Append a DFA with a maximum number of characters or tokens.

        There is one copy of the DFA for each possible number of characters, and one copy of all these for each possible
        number of tokens. When a token begins, matching continues in the copy for one more token. The first copy reads
        the characters of a token that began before the text.

        Args:
            automaton: DFA of the allowed texts.
            most_characters: Maximum number of characters. None: no maximum.
            most_tokens: Maximum number of tokens that begin with a character of the text. None: no maximum.
            first: The state before the text.
            pointer: JSON Pointer of the format, for errors.

        Returns:
            The state after the text.

        Raises:
            LimitExceededError: The copies have too many states.
        """
        many = (1 + (most_characters or 0)) * (1 + (most_tokens or 0)) * automaton.many_states
        if many > self._limits.max_regex_states * 4:
            name, what, most = ("max_chars", "characters", most_characters)
            if most_tokens is not None:
                name, what, most = ("max_tokens", "tokens", most_tokens)
            raise LimitExceededError(
                f"{most} {what} need {many} states, more than {self._limits.max_regex_states * 4} "
                "(fixed limit max_regex_states)",
                pointer=f"{pointer}/{name}",
            )
        if most_characters is not None:
            automaton = _up_to(automaton, most_characters, self._limits)
        text = self.rule_of(automaton)
        copies = [self.copy(text, first)]
        for _ in range(most_tokens or 0):
            copies.append(self.copy(text))
            self.nfa.boundaries.update((copies[-2] + state, copies[-1] + state) for state in range(len(text)))
        last = self.join([base + state for base in copies for state in text.finals])
        if most_tokens is not None:
            # After the last token, only the text after the free text is allowed. Free text may end anywhere, so this
            # text can always follow.
            over = self.state()
            self.nfa.silent[over].append(last)
            self.nfa.boundaries.update((copies[-1] + state, over) for state in range(len(text)))
        return last

    def embed_rule(self, rule: RuleNfa, many: int, first: State) -> tuple[State, list[tuple[int, State, State]]]:
        """Append a copy of the automaton of a grammar rule, without the formats (nodes of structural tags) in it.

        Args:
            rule: The deterministic automaton. The code point `FIRST_FORMAT + i` is a placeholder for the format with
                index i. The number of a called rule is its index in `Values.rules`.
            many: Number of formats. 0: there are no placeholders.
            first: The state before the text.

        Returns:
            The state after the text, and the formats that the caller must add. Each is a triple: index of the format,
            state before it, state after it.
        """
        base = self.copy(rule, first)
        placeholders: Charset = ((FIRST_FORMAT, FIRST_FORMAT + many - 1),) if many else charset.EMPTY
        formats = []
        for state, moves in enumerate(rule.edges, base):
            self.nfa.edges[state] = kept = list[tuple[Label, State]]()
            for label, target in moves:
                if isinstance(label, int):
                    kept.append((label, base + target))
                    continue
                if characters := charset.subtract(label, placeholders):
                    kept.append((characters, base + target))
                for low, high in charset.intersect(label, placeholders):
                    formats += [(one - FIRST_FORMAT, state, base + target) for one in range(low, high + 1)]
        return self.join([base + state for state in rule.finals]), formats


def _up_to(automaton: Dfa, most: int, limits: Limits) -> Dfa:
    """Return the DFA of the accepted texts with at most `most` characters."""
    moves = [[count + 1, DEAD, count + 1] for count in range(most)]
    return intersect([automaton, Dfa.of((0, 0xD800, 0xE000), [*moves, [DEAD] * 3], [1] * (most + 1))], limits)
