"""The tokens that a mask row must lose because of earlier values: those that repeat one, or can only repeat one.

Nearly all tokens are settled without a look. Where all parts in progress have become unlike all earlier values, a token
can do wrong only in a part that begins within it, so it has a comma, and a byte of that part behind it or all of an
earlier part before it; from within a string, all this follows a quote. Where a string in progress is still like some
values, their next bytes are looked at, too. Of all these only those tokens count that the underlying automaton allows,
mostly a few.
"""

from __future__ import annotations

import bisect
import functools
import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from grammar_workers.matching.distinct.histories import Histories, History, levels_of
from grammar_workers.matching.distinct.steps import Place, Steps
from grammar_workers.matching.distinct.ways import Ways
from grammar_workers.memo import memoized
from grammar_workers.types import MaskRow
from grammar_workers.vocabulary.trie import TRIE_BYTE, TRIE_END, TRIE_TOKEN
from grammar_workers.vocabulary.vocabulary import Vocabulary

_MANY = 1024
"""Of more tokens than these it is faster to look up the allowed ones, mostly a few, than to look at each."""
_GAP = rb"[ \t\n\r]*"
_BEGIN = rb"[^]},:\\ \t\n\r]"
_REST_OF_STRING = rb".?(?:[^\"\\]|\\.)*\""
"""Also behind the backslash of an escape."""
_BETWEEN_STRINGS = rb"(?:[^\"]|\"(?:[^\"\\]|\\.)*\")*"
_SECOND = rb"(?:[^\"]*\"[^\"]*\"[^:]*:[^,]*,|.*\[%b%b[^,]*,|.*\{%b\"[^,]*,)" % (_GAP, _BEGIN, _GAP)
"""Tokens that may begin a container and reach behind its first part, or behind its first name that counts."""
_SEPARATING = rb"%b," % _BETWEEN_STRINGS
_PART = _GAP + _BEGIN


class ForbiddenTokens:
    """The walks over one vocabulary's prefix tree. `late`: whether parts may begin long after the bracket."""

    def __init__(self, vocabulary: Vocabulary, steps: Steps, histories: Histories, ways: Ways, *, late: bool) -> None:
        self._tree = _tree_of(vocabulary)
        self._steps = steps
        self._histories = histories
        self._ways = ways
        self._late = late

    def clear(self, place: Place, row: MaskRow) -> bool:
        """Clear the forbidden tokens in a row, uint32 [words of 32 tokens], of what the underlying automaton allows;
        whether there are any.
        """
        candidates = _Candidates(self._tree, row)
        cleared = False
        pending = [(self._tree.root, place)]
        while pending:
            node, here = pending.pop()
            for child in self._children(candidates, node, here[3]):
                following = self._steps.step(here, child.byte)
                if following is None or (child.token >= 0 and not self._ways.is_alive(following)):
                    cleared = candidates.clear(child) or cleared
                elif child.end > child.number + 1:
                    pending.append((child, following))
        return cleared

    def _children(self, candidates: _Candidates, node: _Node, history: History) -> Iterator[_Node]:
        """The children of a node, where a history is, that lead to tokens that may be forbidden."""
        tree = self._tree
        if history is None:
            return candidates.children(node, tree.with_comma if self._late else tree.second)
        in_string = self._histories.in_string(history)
        wanted = self._histories.next_bytes(history) if in_string else frozenset()
        settled = in_string or (self._histories.is_settled(history) and not self._histories.may_begin(history))
        if wanted is None or not settled:
            return candidates.children(node, None)
        endless = not self._late and all(level.endless for level in levels_of(history))
        if node is not tree.root:  # how the tokens begin tells nothing
            return candidates.children(node, tree.with_next if endless else tree.with_comma, wanted)
        if in_string:
            return candidates.children(node, tree.quoted_next if endless else tree.quoted_separating, wanted)
        return candidates.children(node, tree.next if endless else tree.separating)


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


class _Tokens(NamedTuple):
    """Some tokens as they lie in a tree's order: their places, int64 [n], and their words and bits in a mask row."""

    places: NDArray[np.int64]
    words: NDArray[np.int64]
    bits: NDArray[np.uint32]

    def allowed(self, row: MaskRow) -> list[int]:
        """The places of those that a row allows."""
        found: list[int] = self.places[(row[self.words] & self.bits) != 0].tolist()
        return found


class _Tree:
    """A vocabulary's prefix tree. `order`: int [tokens], the tokens as they lie in it.

    Of the tokens with a comma, `with_comma`, those that may reach behind the first part of a container that they begin
    are `second`, and those that may do that or begin another part `with_next`. Of tokens that come outside of strings
    only `separating` may end a part, and only `next` are such as `with_next`; of those within a string, `quoted_` ones.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        trees = vocabulary.trees
        self.order = trees.tokens
        self.places = np.full(vocabulary.size, -1, np.int64)
        self.places[self.order] = np.arange(len(self.order))
        texts = {
            place: text
            for place, token in enumerate(self.order.tolist())
            if b"," in (text := vocabulary.read_bytes(token))
        }

        def matching(pattern: bytes) -> _Tokens:
            match = re.compile(pattern, re.DOTALL).match
            return self.tokens(np.array([place for place, text in texts.items() if match(text)], np.int64))

        self.with_comma = matching(b"")
        self.second, self.with_next = matching(_SECOND), matching(b"%b|.*,%b" % (_SECOND, _PART))
        following = b"(?:%b|%b%b)" % (_SECOND, _SEPARATING, _PART)
        self.separating, self.next = matching(_SEPARATING), matching(following)
        self.quoted_separating, self.quoted_next = (
            matching(_REST_OF_STRING + pattern) for pattern in (_SEPARATING, following)
        )
        self.root = _Node(-1, -1, -1, len(trees.tree), 0, len(self.order))
        self._nodes, self._spans = trees.tree, trees.spans
        self.children = functools.lru_cache(maxsize=4096)(self._children)

    def tokens(self, places: NDArray[np.int64]) -> _Tokens:
        tokens = self.order[places]
        return _Tokens(places, tokens >> 5, np.uint32(1) << (tokens & 31).astype(np.uint32))

    def _children(self, node: _Node) -> _Children:
        nodes = []
        number = node.number + 1
        while number < node.end:
            byte, end, token = self._nodes[number, [TRIE_BYTE, TRIE_END, TRIE_TOKEN]].tolist()
            nodes.append(_Node(number, byte, token, end, int(self._spans[number]), int(self._spans[end])))
            number = end
        return _Children(nodes, [child.first for child in nodes], {child.byte: child for child in nodes})


class _Candidates:
    """The tokens of one row that may be forbidden."""

    def __init__(self, tree: _Tree, row: MaskRow) -> None:
        self._tree = tree
        self._row = row
        self._among: dict[int, list[int]] = {}

    def children(self, node: _Node, tokens: _Tokens | None, wanted: frozenset[int] = frozenset()) -> Iterator[_Node]:
        """The children of a node that lead to some of these tokens (None: to any), those with the bytes `wanted` in any
        case.
        """
        children = self._tree.children(node)
        yield from (children.by_byte[byte] for byte in wanted & children.by_byte.keys())
        places = self._below(node) if tokens is None else self._allowed(tokens)
        # The token of the node itself lies before those of its children.
        place = bisect.bisect_left(places, children.firsts[0]) if children.nodes else len(places)
        while place < len(places) and places[place] < node.last:
            child = children.nodes[bisect.bisect_right(children.firsts, places[place]) - 1]
            place = bisect.bisect_left(places, child.last, place)
            if child.byte not in wanted:
                yield child

    def clear(self, node: _Node) -> bool:
        """Clear all tokens below a node; whether the row allowed any."""
        tokens = self._tree.tokens(np.arange(node.first, node.last))
        found = bool((self._row[tokens.words] & tokens.bits).any())
        if found:
            np.bitwise_and.at(self._row, tokens.words, ~tokens.bits)
        return found

    def _allowed(self, tokens: _Tokens) -> list[int]:
        known = self._among.get(id(tokens))
        if known is None:
            known = self._among[id(tokens)] = tokens.allowed(self._row)
        return known

    def _below(self, node: _Node) -> list[int]:
        if node.last - node.first > _MANY:
            return self._all
        return self._tree.tokens(np.arange(node.first, node.last)).allowed(self._row)

    @functools.cached_property
    def _all(self) -> list[int]:
        allowed = np.flatnonzero(np.unpackbits(self._row.view(np.uint8), bitorder="little").view(np.bool_))
        places: list[int] = np.sort(self._tree.places[allowed]).tolist()
        return places


@memoized
def _tree_of(vocabulary: Vocabulary) -> _Tree:
    return _Tree(vocabulary)
