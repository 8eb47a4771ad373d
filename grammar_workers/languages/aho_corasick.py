"""Search for many words in one pass over a text: the automaton of Aho and Corasick ("Efficient string matching", 1975).

`banned_words` and structural tags (`tags.free_text`) build their automata from the search automaton.

A *node* is a state of the search automaton. It stands for the longest beginning of a word that ends at the current
position of the text. Characters are mapped to *symbols*: each character of a word has its own symbol, all other
characters share one or two.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from grammar_workers.budget import Budget, budget_of
from grammar_workers.errors import LimitExceededError
from grammar_workers.options import Limits

# Symbols of the characters that occur in no word: word characters (in searches for whole words), and all others.
#
# The characters of words are numbered from 2.
OTHER_WORD, OTHER = 0, 1
# The initial node: no part of a word has been read, and a word may begin here.
START = 1
# The node inside another word (whole words only): no word may begin here.
_INSIDE = 0
_WORD_CHARACTER = re.compile(r"\w")


class AhoCorasick:
    r"""Search automaton of a set of words: it finds all occurrences of the words in one pass over a text.

    *Nodes* are the states of the automaton. *Symbols* are numbers of character classes (see the method `symbol`). The
    search starts in node `START`. With `whole_words`, an occurrence counts only if the characters before and after it
    are not word characters (`\w`).

    Args:
        words: Nonempty words, already case-folded if case is to be ignored.
        whole_words: True to find only whole words.
        limits: Bounds on nodes (`max_regex_states`) and on steps of work.

    Attributes:
        rows: Next node by node and symbol, as `rows[node][symbol]`.
        found: Flag for each node: True if a word ends at the node. With `whole_words`, a word ends there unless the
            next character is a word character.
        symbol_of: Symbol of each character that occurs in a word. These symbols are numbered from 2.
        whole_words: The argument `whole_words`.

    Raises:
        LimitExceededError: The words need more than `max_regex_states` nodes.
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
        """Return the symbol of one character: the index of its column in `rows`.

        Args:
            character: One character, case-folded if the words are.

        Returns:
            A symbol from 2 if the character occurs in a word. Otherwise OTHER_WORD (0) for word characters in searches
            for whole words, and OTHER (1) for all other characters.
        """
        known = self.symbol_of.get(character)
        if known is None:
            return OTHER_WORD if self.whole_words and _WORD_CHARACTER.match(character) else OTHER
        return known

    def node(self, word: str) -> int:
        """Return the number of the node that is reached by reading `word` from `START`.

        Args:
            word: One of the words of the automaton, or the beginning of one. Another text raises KeyError. Without
                `whole_words`, so does a word that begins with a shorter word of the automaton.
        """
        node = START
        for letter in word:
            node = self._children[node][self.symbol_of[letter]]
        return node

    def avoid(self, node: int, symbols: Iterable[int]) -> int | None:
        """Return the node that is reached by reading `symbols` from `node`, unless a word would be complete.

        Args:
            node: Node (state) before the first symbol.
            symbols: Symbols of the characters to read, in order.

        Returns:
            The node after the last symbol, or None if a word is complete before or at that node.
        """
        for symbol in symbols:
            # A whole word is complete when the next character shows that it ends: it is not a word character.
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
        """Return `rows` (Aho-Corasick's failure links, resolved), and complete `found`.

        If the next symbol continues no word, the search goes on from the longest proper suffix that begins a word.
        """
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
