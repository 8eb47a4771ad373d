"""Free text as an automaton: searched for words of which some lead on and others must not occur (Aho and Corasick)."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping

from grammar_workers.dfa import charset
from grammar_workers.dfa.dfa import DEAD, Dfa, explore, intersect
from grammar_workers.languages.aho_corasick import OTHER, START, AhoCorasick
from grammar_workers.options import Limits
from grammar_workers.vocabulary.vocabulary import Vocabulary

FREE = 1
"""The label of a text that may go on freely."""


def free_text(words: Mapping[str, int], excludes: Collection[str], vocabulary: Vocabulary, limits: Limits) -> Dfa:
    """Labels a text that ends with the first occurrence of one of `words` by its number, and others by FREE.

    Nothing follows a word; a text in which one of `excludes` occurs is dead. No word holds another one, or one of
    `excludes`; numbers are greater than FREE.
    """
    search = AhoCorasick([*words, *excludes], False, limits)
    label_of = {search.node(word): number for word, number in words.items()}
    spellable = vocabulary.spellable
    letters = search.symbol_of.keys() if spellable is None else search.symbol_of.keys() | spellable
    starts = charset.class_starts([charset.singles(map(ord, letters))])
    symbols = [
        search.symbol_of.get(chr(start), OTHER) if spellable is None or chr(start) in spellable else DEAD
        for start in starts
    ]

    def following(node: int) -> Iterator[int | None]:
        for symbol in symbols:
            target = DEAD if symbol == DEAD or node in label_of else search.rows[node][symbol]
            yield None if target == DEAD or (search.found[target] and target not in label_of) else target

    return explore(START, following, lambda node: label_of.get(node, FREE), starts, range(len(starts)))


def up_to_end(content: Dfa, end: str, vocabulary: Vocabulary, limits: Limits) -> Dfa:
    """The texts of `content` such that `end`, which follows them, occurs there first."""
    free = free_text({}, [end], vocabulary, limits)
    is_first = tuple(int(free.read(state, end[:-1]) != DEAD) for state in range(free.many_states))
    return intersect([content, dataclasses.replace(free, accepting=is_first)], limits)
