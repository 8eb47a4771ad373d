"""Banned words: the DFA of the texts in which none of the given words occurs.

The DFA is the Aho-Corasick automaton of the words over case-folded characters, without the states in which a word is
complete. A character may fold to several characters (ß to ss). For this character, one step of the DFA corresponds to
several steps of the Aho-Corasick automaton.
"""

from __future__ import annotations

import bisect
import functools
from collections.abc import Sequence

from grammar_workers.budget import budget_of
from grammar_workers.dfa import charset
from grammar_workers.dfa.dfa import Dfa, explore
from grammar_workers.errors import InvalidSpecificationError
from grammar_workers.languages.aho_corasick import OTHER, OTHER_WORD, START, AhoCorasick
from grammar_workers.options import Limits
from grammar_workers.scalar_values import has_surrogate


def banned_words(
    words: Sequence[str], limits: Limits, *, case_sensitive: bool = False, whole_words: bool = False
) -> Dfa:
    """Compile banned words to the DFA of the texts that contain none of them.

    Words with too many characters in total raise LimitExceededError.

    Args:
        words: The banned words or phrases.
        limits: Bounds on states and on steps of work.
        case_sensitive: True to compare exactly. False: text and words are compared after `str.casefold`.
        whole_words: True to ban an occurrence only if no word character (letter, digit, underscore) is next to it.

    Returns:
        A DFA over the characters of the text, before case folding.

    Raises:
        InvalidSpecificationError: A word is empty or contains a lone surrogate. The pointer names the word.
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
    """Return the DFA that reads each character as the symbols of its case folding."""
    spelled: dict[int, tuple[int, ...]] = {ord(letter): (symbol,) for letter, symbol in search.symbol_of.items()}
    for character, folded in foldings.items():
        symbols = tuple(map(search.symbol, folded))
        if symbols != (search.symbol(character),):
            spelled[ord(character)] = symbols
    word_characters = charset.matching(r"\w") if search.whole_words else ()
    starts = charset.class_starts([word_characters, charset.singles(spelled)])
    # An odd number of borders up to a character means that it is a character of a word.
    borders = [border for low, high in word_characters for border in (low, high + 1)]
    others = [(OTHER_WORD if bisect.bisect_right(borders, start) % 2 else OTHER,) for start in starts]
    classes = [spelled.get(start, other) for start, other in zip(starts, others, strict=True)]
    letters = {symbols: number for number, symbols in enumerate(dict.fromkeys(classes))}
    # Rows of the result are copied, so their classes cost less than the distinct columns.
    cost = 2 * len(letters) + len(starts) // 4
    budget = budget_of(limits)
    # Cost of folding and classifying the characters.
    budget.spend(3 * (len(starts) + len(foldings)))

    def following(node: int) -> list[int | None]:
        budget.spend(cost)
        return [search.avoid(node, symbols) for symbols in letters]

    letter_at = [letters[symbols] for symbols in classes]
    return explore(START, following, lambda node: not search.found[node], starts, letter_at)


@functools.cache
def _foldings() -> dict[str, str]:
    """Return the characters that case folding changes, with their foldings."""
    characters = (chr(code) for low, high in charset.ALL for code in range(low, high + 1))
    return {character: folded for character in characters if (folded := character.casefold()) != character}
