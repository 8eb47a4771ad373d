"""Banned words: the automaton of the texts in which none of some words occurs.

It is the search automaton for the words over folded characters, less the states where one has been read. A character
may fold to several (ß to ss), so it moves as many steps at once: the automaton of all texts whose folding is in a
language is the inverse image of that language's automaton.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from grammar_workers.budget import budget_of
from grammar_workers.dfa import charset
from grammar_workers.dfa.dfa import Dfa
from grammar_workers.dfa.row_hash import DEAD
from grammar_workers.errors import InvalidSpecificationError
from grammar_workers.languages.aho_corasick import OTHER, OTHER_WORD, START, AhoCorasick
from grammar_workers.languages.scalar_values import has_surrogate
from grammar_workers.options import Limits


def banned_words(
    words: Sequence[str], limits: Limits, *, case_sensitive: bool = False, whole_words: bool = False
) -> Dfa:
    """The texts that hold none of `words`; see `BannedWordsSpecification` for what that means.

    Raises InvalidSpecificationError with the pointer of an empty word or of one that is no text, LimitExceededError
    when the words have too many letters.
    """
    folded = []
    for index, word in enumerate(words):
        if not word:
            raise InvalidSpecificationError("an empty word occurs in every text; remove it", pointer=f"/words/{index}")
        if has_surrogate(word):
            raise InvalidSpecificationError(
                f"the word {word!a} holds a lone surrogate, which no text does", pointer=f"/words/{index}"
            )
        folded.append(word if case_sensitive else word.casefold())
    search = AhoCorasick(folded, whole_words, limits)
    return _over_characters(search, {} if case_sensitive else _foldings(), limits)


def _over_characters(search: AhoCorasick, foldings: dict[str, str], limits: Limits) -> Dfa:
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
    plain = (OTHER,)
    for start in starts:
        if start in inside:
            plain = (OTHER_WORD,)
        elif start in after:
            plain = (OTHER,)
        classes.append(spelled.get(start, plain))
    distinct = list(dict.fromkeys(classes))
    column = [distinct.index(symbols) for symbols in classes]
    numbers = {START: 0}
    order = [START]
    moves: list[list[int]] = []
    # A row of the result is copied, not worked out, so its classes cost less than its distinct columns.
    cost = 2 * len(distinct) + len(starts) // 4
    budget = budget_of(limits)
    # To fold and to class the characters of one automaton.
    budget.spend(3 * (len(starts) + len(foldings)))
    for node in order:
        budget.spend(cost)
        row = []
        for symbols in distinct:
            target = node
            for symbol in symbols:
                target = search.avoid(target, symbol)
                if target == DEAD:
                    break
            if target != DEAD and target not in numbers:
                numbers[target] = len(order)
                order.append(target)
            row.append(DEAD if target == DEAD else numbers[target])
        moves.append([row[number] for number in column])
    return Dfa.of(starts, moves, (int(not search.found[node]) for node in order))


@functools.cache
def _foldings() -> dict[str, str]:
    """The characters that case folding changes, and what to."""
    characters = (chr(code) for low, high in charset.ALL for code in range(low, high + 1))
    return {character: folded for character in characters if (folded := character.casefold()) != character}
