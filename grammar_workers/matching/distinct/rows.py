"""The tokens that a mask row must lose because of earlier values: those that repeat one, or can only repeat one.

Nearly all tokens are settled without a look. Inside of a string that has become unlike all earlier values, a token can
do wrong only behind the end of that string; so only tokens with a quote before their last byte are walked through, and
where the string is still like some values, the beginnings of those. Outside of containers whose parts must differ, a
token must begin one and reach behind its first part, so it has a comma and a bracket, or the quotes of a name.
"""

from __future__ import annotations

import weakref

import numpy as np
from numpy.typing import NDArray

from grammar_workers.matching.distinct.histories import Histories
from grammar_workers.matching.distinct.steps import Place, Steps
from grammar_workers.matching.distinct.ways import Ways
from grammar_workers.types import TokenId
from grammar_workers.vocabulary.trie import TRIE_BYTE, TRIE_END, TRIE_TOKEN
from grammar_workers.vocabulary.vocabulary import Vocabulary


class ForbiddenTokens:
    """The walks over one vocabulary's prefix tree. `late`: whether parts may begin long after the bracket."""

    def __init__(self, vocabulary: Vocabulary, steps: Steps, histories: Histories, ways: Ways, *, late: bool) -> None:
        self._tree = vocabulary.tree
        self._same_bytes = vocabulary.same_bytes
        self._steps = steps
        self._histories = histories
        self._ways = ways
        self._quoting, opening, separating = _nodes_of(vocabulary)
        self._outside = separating if late else opening

    def at(self, place: Place) -> list[TokenId]:
        """The forbidden tokens, among them perhaps some that the underlying automaton forbids, too."""
        found: list[TokenId] = []
        marked = None if place[3] else self._outside
        pending = [(0, len(self._tree), place)]
        while pending:
            child, end, here = pending.pop()
            wanted = None
            if here[3] and self._histories.in_string(here[3]):
                wanted = self._histories.next_bytes(here[3])
            while child < end:
                byte, _, after, token = self._tree[child].tolist()
                node, child = child, after
                if marked is not None and not marked[node]:
                    continue
                if wanted is not None and byte not in wanted and not self._quoting[node]:
                    continue
                following = self._steps.step(here, byte)
                if following is None or (token >= 0 and not self._ways.is_alive(following)):
                    found += self._below(node, after)
                elif after > node + 1:
                    pending.append((node + 1, after, following))
        return found

    def _below(self, node: int, end: int) -> list[TokenId]:
        """The tokens of a node and its subtree."""
        tokens: list[TokenId] = []
        for token in self._tree[node:end, TRIE_TOKEN].tolist():
            while token >= 0:
                tokens.append(token)
                token = int(self._same_bytes[token])
        return tokens


Nodes = tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]
_known: weakref.WeakKeyDictionary[Vocabulary, Nodes] = weakref.WeakKeyDictionary()


def _nodes_of(vocabulary: Vocabulary) -> Nodes:
    """Nodes on the way to tokens with a quote, at this node or below it, before their last byte; to tokens with a comma
    and either a bracket that opens or a whole name; to tokens with a comma. Each bool [nodes]."""
    known = _known.get(vocabulary)
    if known is None:
        tree = vocabulary.tree
        places = np.arange(len(tree))
        inside = (tree[:, TRIE_BYTE] == ord('"')) & (tree[:, TRIE_END] > places + 1)
        texts = [vocabulary.read_bytes(token) if token >= 0 else b"" for token in tree[:, TRIE_TOKEN].tolist()]
        separating = np.array([b"," in text for text in texts])
        opening = separating & np.array([b"[" in text or b"{" in text or text.count(b'"') > 1 for text in texts])
        known = _known[vocabulary] = (_above(tree, inside), _above(tree, opening), _above(tree, separating))
    return known


def _above(tree: NDArray[np.int32], nodes: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The nodes in whose subtree, themselves included, some of `nodes` are."""
    before = np.concatenate([[0], np.cumsum(nodes)])
    marked: NDArray[np.bool_] = before[tree[:, TRIE_END]] > before[:-1]
    return marked
