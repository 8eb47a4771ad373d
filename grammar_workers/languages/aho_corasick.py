"""Searching for many words at once: the automaton of Aho and Corasick ("Efficient string matching", 1975)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from grammar_workers.budget import Budget, budget_of
from grammar_workers.errors import LimitExceededError
from grammar_workers.options import Limits

OTHER_WORD, OTHER = 0, 1
"""Symbols of the characters that are in no word: word characters, and the rest. Letters of words are numbered on."""
START = 1
"""The node where matching begins: nothing of a word has been read, and a word may begin."""
_INSIDE = 0
"""The node in the middle of some other word, where none may begin."""
_WORD_CHARACTER = re.compile(r"\w")


class AhoCorasick:
    """The automaton over symbols: `rows[node][symbol]` is the next node, `found[node]` whether a word ends there.

    With `whole_words`, words begin and end only where the character before and after is no word character; `found` then
    says that a word ends here if what follows lets it.
    """

    def __init__(self, words: Sequence[str], whole_words: bool, limits: Limits) -> None:
        self.whole_words = whole_words
        letters = sorted({letter for word in words for letter in word})
        self.symbol_of = {letter: OTHER + 1 + index for index, letter in enumerate(letters)}
        self._separates = [False, True, *(not _WORD_CHARACTER.match(letter) for letter in letters)]
        self._children: list[dict[int, int]] = [{}, {}]
        self.found = [False, False]
        for word in words:
            self._insert(word)
            if len(self._children) > limits.max_regex_states:
                raise LimitExceededError(
                    f"the words need more than {limits.max_regex_states} states (fixed limit max_regex_states)"
                )
        self.rows = self._link(budget_of(limits))

    def symbol(self, character: str) -> int:
        """The symbol of one folded character."""
        known = self.symbol_of.get(character)
        if known is None:
            return OTHER_WORD if self.whole_words and _WORD_CHARACTER.match(character) else OTHER
        return known

    def node(self, word: str) -> int:
        """The node of one of the words."""
        node = START
        for letter in word:
            node = self._children[node][self.symbol_of[letter]]
        return node

    def avoid(self, node: int, symbols: Iterable[int]) -> int | None:
        """The node after `symbols`, None where a word would be complete."""
        for symbol in symbols:
            # A whole word counts as soon as it is known to end: the next character is no word character.
            if self.whole_words and self.found[node] and self._separates[symbol]:
                return None
            node = self.rows[node][symbol]
            if not self.whole_words and self.found[node]:
                return None
        return node

    def _insert(self, word: str) -> None:
        node = START
        for letter in word:
            symbol = self.symbol_of[letter]
            node = self._children[node].setdefault(symbol, len(self._children))
            if node == len(self._children):
                self._children.append({})
                self.found.append(False)
            if self.found[node] and not self.whole_words:
                return
        self.found[node] = True

    def _link(self, budget: Budget) -> list[list[int]]:
        """Where a word breaks off, go on as after the longest proper suffix of it that may begin a word."""
        restart = [START if separates or not self.whole_words else _INSIDE for separates in self._separates]
        rows: list[list[int]] = [[]] * len(self._children)
        rows[_INSIDE] = restart
        fallback = {START: _INSIDE}
        queue = [START]
        for node in queue:
            budget.spend(2 + len(restart) // 8)
            row = rows[node] = rows[fallback[node]].copy()
            for symbol, child in self._children[node].items():
                fallback[child] = restart[symbol] if node == START else row[symbol]
                self.found[child] = self.found[child] or self.found[fallback[child]]
                queue.append(child)
            for symbol, child in self._children[node].items():
                row[symbol] = child
        return rows
