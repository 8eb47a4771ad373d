"""The tokens that a mask row must lose because of earlier values: those that repeat one, or can only repeat one.

Nearly all tokens are settled without a look. Inside of a string that has become unlike all earlier values, a token can
do wrong only behind the end of that string; so only tokens with a quote before their last byte are walked through, and
where the string is still like some values, the beginnings of those. Outside of containers whose parts must differ, a
token must begin one and reach behind its first part, so it has a comma and a bracket, or the quotes of a name. Of all
these only those count that the underlying automaton allows, mostly a few dozen.
"""

from __future__ import annotations

import bisect
import functools
import weakref
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from grammar_workers.matching.distinct.histories import Histories
from grammar_workers.matching.distinct.steps import Place, Steps
from grammar_workers.matching.distinct.ways import Ways
from grammar_workers.vocabulary.trie import TRIE_BYTE, TRIE_END, TRIE_TOKEN
from grammar_workers.vocabulary.vocabulary import Vocabulary

_FEW = 8
"""To look at so many tokens takes as long as to tell which of them are allowed."""


class ForbiddenTokens:
    """The walks over one vocabulary's prefix tree. `late`: whether parts may begin long after the bracket."""

    def __init__(self, vocabulary: Vocabulary, steps: Steps, histories: Histories, ways: Ways, *, late: bool) -> None:
        self._tree = tree = _tree_of(vocabulary)
        self._steps = steps
        self._histories = histories
        self._ways = ways
        self._outside = tree.separating if late else tree.opening

    def clear(self, place: Place, allowed: NDArray[np.bool_]) -> bool:
        """Set the forbidden tokens to False; whether there are any. `allowed`: bool [tokens], what the underlying
        automaton allows.
        """
        tree = self._tree
        candidates = _Candidates(tree, allowed, None if place[3] else self._outside)
        cleared = False
        pending = [(tree.root, place)]
        while pending:
            node, here = pending.pop()
            for child in candidates.children(node, self._wanted(here)):
                following = self._steps.step(here, child.byte)
                if following is None or (child.token >= 0 and not self._ways.is_alive(following)):
                    tokens = tree.order[child.first : child.last]
                    cleared = cleared or bool(allowed[tokens].any())
                    allowed[tokens] = False
                elif child.end > child.number + 1:
                    pending.append((child, following))
        return cleared

    def _wanted(self, place: Place) -> frozenset[int] | None:
        """The bytes after which an earlier value may still have a say, where those without are not looked at."""
        return self._histories.next_bytes(place[3]) if self._histories.in_string(place[3]) else None


class _Node(NamedTuple):
    """A node of the tree: its number, byte and token (-1: none), the node behind its subtree, and where the tokens of
    that begin and end in the tree's order.
    """

    number: int
    byte: int
    token: int
    end: int
    first: int
    last: int


class _Children(NamedTuple):
    """The children of a node in order, where the tokens of each begin, and each by its byte."""

    nodes: list[_Node]
    firsts: list[int]
    by_byte: dict[int, _Node]


class _Tree:
    """A vocabulary's prefix tree. `order`: int [tokens], the tokens as they lie in it.

    Places in that order, of tokens with a quote before their last byte (`quoting`), with a comma and either a bracket
    that opens or a whole name (`opening`), and with a comma (`separating`).
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        trees = vocabulary.trees
        self.order = trees.tokens
        self.places = np.full(vocabulary.size, -1, np.int64)
        self.places[self.order] = np.arange(len(self.order))
        texts = [vocabulary.read_bytes(token) for token in self.order.tolist()]
        self.quoting = np.flatnonzero([b'"' in text[:-1] for text in texts])
        separating = np.array([b"," in text for text in texts])
        opening = separating & np.array([b"[" in text or b"{" in text or text.count(b'"') > 1 for text in texts])
        self.separating, self.opening = np.flatnonzero(separating), np.flatnonzero(opening)
        self.root = _Node(-1, -1, -1, len(trees.tree), 0, len(self.order))
        self._nodes, self._spans = trees.tree, trees.spans
        self.children = functools.lru_cache(maxsize=4096)(self._children)

    def _children(self, node: _Node) -> _Children:
        nodes = []
        number = node.number + 1
        while number < node.end:
            byte, end, token = self._nodes[number, [TRIE_BYTE, TRIE_END, TRIE_TOKEN]].tolist()
            nodes.append(_Node(number, byte, token, end, int(self._spans[number]), int(self._spans[end])))
            number = end
        return _Children(nodes, [child.first for child in nodes], {child.byte: child for child in nodes})


class _Candidates:
    """The allowed tokens of one row that may be forbidden: `outside` alone, as places in the tree's order, or all that
    a walk gets to.
    """

    def __init__(self, tree: _Tree, allowed: NDArray[np.bool_], outside: NDArray[np.int64] | None) -> None:
        self._tree = tree
        self._allowed = allowed
        self._outside = None if outside is None else self._among(outside)

    @functools.cached_property
    def _quoting(self) -> list[int]:
        return self._among(self._tree.quoting)

    def _below(self, node: _Node) -> Sequence[int]:
        if node is self._tree.root:  # of a whole vocabulary only a few are allowed here, so not all are looked up
            places = np.sort(self._tree.places[np.flatnonzero(self._allowed)])
        elif node.last - node.first <= _FEW:
            return range(node.first, node.last)
        else:
            places = np.flatnonzero(self._allowed[self._tree.order[node.first : node.last]]) + node.first
        found: list[int] = places.tolist()
        return found

    def _among(self, places: NDArray[np.int64]) -> list[int]:
        found: list[int] = places[self._allowed[self._tree.order[places]]].tolist()
        return found

    def children(self, node: _Node, wanted: frozenset[int] | None) -> Iterator[_Node]:
        """The children of a node that lead to candidates. `wanted`: where tokens without a quote before their last byte
        are candidates only if they go on with one of these bytes.
        """
        children = self._tree.children(node)
        if wanted is not None:
            yield from (children.by_byte[byte] for byte in wanted & children.by_byte.keys())
        places: Sequence[int] | None = self._outside
        if places is None:
            places = self._below(node) if wanted is None else self._quoting
        # The token of the node itself lies before those of its children.
        place = bisect.bisect_left(places, children.firsts[0]) if children.nodes else len(places)
        while place < len(places) and places[place] < node.last:
            child = children.nodes[bisect.bisect_right(children.firsts, places[place]) - 1]
            place = bisect.bisect_left(places, child.last, place)
            if not wanted or child.byte not in wanted:
                yield child


_known: weakref.WeakKeyDictionary[Vocabulary, _Tree] = weakref.WeakKeyDictionary()


def _tree_of(vocabulary: Vocabulary) -> _Tree:
    known = _known.get(vocabulary)
    if known is None:
        known = _known[vocabulary] = _Tree(vocabulary)
    return known
