"""Banned words: the automaton of the texts in which none of some words occurs.

It is the search automaton of Aho and Corasick ("Efficient string matching", 1975) over folded characters, less the
states where a word has been read. A character may fold to several (ß to ss), so it moves as many steps at once: the
automaton of all texts whose folding is in a language is the inverse image of that language's automaton.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

from grammar_workers import charset
from grammar_workers.character_automaton import CharacterAutomaton
from grammar_workers.errors import InvalidSpecificationError, LimitExceededError
from grammar_workers.minimization import DEAD
from grammar_workers.options import Limits

_WORD_CHARACTER = re.compile(r"\w")
_OTHER_WORD, _OTHER = 0, 1
"""Symbols of the characters that are in no word: word characters, and the rest. Letters of words are numbered on."""
_INSIDE, _START = 0, 1
"""Nodes where nothing of a word has been read: in the middle of some other word, and where a word may begin."""


def banned_words(
    words: Sequence[str], limits: Limits, *, case_sensitive: bool = False, whole_words: bool = False
) -> CharacterAutomaton:
    """The texts that hold none of `words`; see `BannedWordsSpecification` for what that means.

    Raises InvalidSpecificationError with the pointer of an empty word or of one that is no text, LimitExceededError
    when the words have too many letters.
    """
    folded = []
    for index, word in enumerate(words):
        if not word:
            raise InvalidSpecificationError("an empty word occurs in every text; remove it", pointer=f"/words/{index}")
        if any("\ud800" <= character <= "\udfff" for character in word):
            raise InvalidSpecificationError(
                f"the word {word!a} holds a lone surrogate, which no text does", pointer=f"/words/{index}"
            )
        folded.append(word if case_sensitive else word.casefold())
    search = _Search(folded, whole_words, limits)
    return _over_characters(search, {} if case_sensitive else _foldings(), limits)


class _Search:
    """The automaton over symbols. `rows[node][symbol]` is the next node, before forbidden moves are taken out."""

    def __init__(self, words: Sequence[str], whole_words: bool, limits: Limits) -> None:
        self.whole_words = whole_words
        letters = sorted({letter for word in words for letter in word})
        self.symbol_of = {letter: _OTHER + 1 + index for index, letter in enumerate(letters)}
        self._separates = [False, True, *(not _WORD_CHARACTER.match(letter) for letter in letters)]
        self._children: list[dict[int, int]] = [{}, {}]
        self._found = [False, False]
        for word in words:
            self._insert(word)
            if len(self._children) > limits.max_regex_states:
                raise LimitExceededError(
                    f"the words need more than {limits.max_regex_states} states (limit max_regex_states)"
                )
        self.rows = self._link()

    def symbol(self, character: str) -> int:
        """The symbol of one folded character."""
        known = self.symbol_of.get(character)
        if known is None:
            return _OTHER_WORD if self.whole_words and _WORD_CHARACTER.match(character) else _OTHER
        return known

    def step(self, node: int, symbol: int) -> int:
        """The next node, DEAD where a banned word would be complete."""
        if self.whole_words:
            # A word counts as soon as it is known to end: the next character is no word character.
            return DEAD if self._found[node] and self._separates[symbol] else self.rows[node][symbol]
        target = self.rows[node][symbol]
        return DEAD if self._found[target] else target

    def may_end(self, node: int) -> bool:
        return not self._found[node]

    def _insert(self, word: str) -> None:
        node = _START
        for letter in word:
            symbol = self.symbol_of[letter]
            child = self._children[node].get(symbol)
            if child is None:
                child = self._children[node][symbol] = len(self._children)
                self._children.append({})
                self._found.append(False)
            node = child
            if self._found[node] and not self.whole_words:
                return
        self._found[node] = True

    def _link(self) -> list[list[int]]:
        """Where a word breaks off, go on as after the longest proper suffix of it that may begin a word."""
        restart = [_START if separates or not self.whole_words else _INSIDE for separates in self._separates]
        rows: list[list[int]] = [[]] * len(self._children)
        rows[_INSIDE] = restart
        fallback = {_START: _INSIDE}
        queue = [_START]
        for node in queue:
            row = rows[node] = rows[fallback[node]].copy()
            for symbol, child in self._children[node].items():
                fallback[child] = restart[symbol] if node == _START else row[symbol]
                self._found[child] = self._found[child] or self._found[fallback[child]]
                queue.append(child)
            for symbol, child in self._children[node].items():
                row[symbol] = child
        return rows


def _over_characters(search: _Search, foldings: dict[str, str], limits: Limits) -> CharacterAutomaton:
    """The automaton that reads every character as the symbols of its folding."""
    spelled: dict[int, tuple[int, ...]] = {ord(letter): (symbol,) for letter, symbol in search.symbol_of.items()}
    for character, folded in foldings.items():
        symbols = tuple(map(search.symbol, folded))
        if symbols != (search.symbol(character),):
            spelled[ord(character)] = symbols
    borders = {0, *spelled, *(code + 1 for code in spelled)}
    words = charset.matching(r"\w") if search.whole_words else ()
    borders.update(border for low, high in words for border in (low, high + 1))
    starts = sorted(border for border in borders if border <= 0x10FFFF)
    inside = {low for low, _ in words}
    after = {high + 1 for _, high in words}
    classes: list[tuple[int, ...]] = []
    plain = (_OTHER,)
    for start in starts:
        if start in inside:
            plain = (_OTHER_WORD,)
        elif start in after:
            plain = (_OTHER,)
        classes.append(spelled.get(start, plain))
    distinct = list(dict.fromkeys(classes))
    column = [distinct.index(symbols) for symbols in classes]
    numbers = {_START: 0}
    order = [_START]
    moves: list[tuple[int, ...]] = []
    # A row of the result is copied, not worked out, so its classes cost less than its distinct columns.
    cost = len(distinct) + len(starts) // 4
    for node in order:
        row = []
        for symbols in distinct:
            target = node
            for symbol in symbols:
                target = search.step(target, symbol)
                if target == DEAD:
                    break
            if target != DEAD and target not in numbers:
                numbers[target] = len(order)
                order.append(target)
            row.append(DEAD if target == DEAD else numbers[target])
        moves.append(tuple([row[number] for number in column]))
        if len(order) * cost > limits.max_steps:
            raise LimitExceededError(f"the words take more than {limits.max_steps} steps (limit max_steps)")
    return CharacterAutomaton(tuple(starts), tuple(moves), tuple(int(search.may_end(node)) for node in order))


@functools.cache
def _foldings() -> dict[str, str]:
    """The characters that case folding changes, and what to."""
    characters = (chr(code) for low, high in charset.ALL for code in range(low, high + 1))
    return {character: folded for character in characters if (folded := character.casefold()) != character}
