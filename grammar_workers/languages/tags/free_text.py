"""Free text as an automaton that searches for trigger words and rejects excluded words (Aho and Corasick)."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping

from grammar_workers.dfa import charset
from grammar_workers.dfa.dfa import DEAD, Dfa, explore, intersect
from grammar_workers.languages.aho_corasick import OTHER, START, AhoCorasick
from grammar_workers.options import Limits
from grammar_workers.vocabulary.vocabulary import Vocabulary

# The label of a text in which no word is complete.
FREE = 1


def free_text(words: Mapping[str, int], excludes: Collection[str], vocabulary: Vocabulary, limits: Limits) -> Dfa:
    """Compile free text to a DFA. The text may end with one trigger word, and contains no excluded word.

    Args:
        words: Trigger word -> label greater than FREE (1). No word contains another word or one of `excludes`.
        excludes: Nonempty words that must not occur.
        vocabulary: The tokens of the model, which determine the allowed characters.
        limits: Bounds on states and on steps of work. Exceeded limits raise LimitExceededError.

    Returns:
        A DFA with labeled accepting states. A text that ends with a trigger word has the label of the word and cannot
        be continued. All other texts have the label FREE.
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
    """Restrict a DFA to the texts for which `text + end` contains `end` only once, at its end.

    Args:
        content: DFA of the texts to restrict; not changed.
        end: The end text, not empty.
        vocabulary: The tokens of the model, which determine the allowed characters.
        limits: Bounds on states and on steps of work. Exceeded limits raise LimitExceededError.

    Returns:
        DFA of the remaining texts, without the end text after them.
    """
    free = free_text({}, [end], vocabulary, limits)
    is_first = tuple(int(free.read(state, end[:-1]) != DEAD) for state in range(free.many_states))
    return intersect([content, dataclasses.replace(free, accepting=is_first)], limits)
