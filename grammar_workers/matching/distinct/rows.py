"""Removal of tokens from a mask, because they repeat a seen value or every completion after them repeats one.

A *part* is an item or a property name. Only a few tokens can repeat a seen value, so only these are examined:

- If the parts in progress differ from all seen values, only a part that begins inside a token can repeat a value. The
  token then contains a comma, and a whole part or the beginning of a part before or after the comma. Inside a string,
  a quote precedes both.
- If a string in progress may still become equal to a seen value, tokens with the next bytes of this value are examined,
  too.

The mask of the automaton without unique items mostly allows only a few of these tokens.
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
from grammar_workers.matching.distinct.steps import HistoryConfiguration, Steps
from grammar_workers.matching.distinct.ways import Ways
from grammar_workers.memo import memoized
from grammar_workers.types import MaskRow
from grammar_workers.vocabulary.trie import TRIE_BYTE, TRIE_END, TRIE_TOKEN
from grammar_workers.vocabulary.vocabulary import Vocabulary

# Above this number of tokens, it is faster to look up the allowed tokens (mostly a few) than to test each one.
_MANY = 1024
_GAP = rb"[ \t\n\r]*"
_BEGIN = rb"[^]},:\\ \t\n\r]"
# The rest of a string, also after the backslash of an escape.
_REST_OF_STRING = rb".?(?:[^\"\\]|\\.)*\""
_BETWEEN_STRINGS = rb"(?:[^\"]|\"(?:[^\"\\]|\\.)*\")*"
# Tokens that may begin a container and extend beyond its first part, or beyond its first name that counts.
_SECOND = rb"(?:[^\"]*\"[^\"]*\"[^:]*:[^,]*,|.*\[%b%b[^,]*,|.*\{%b\"[^,]*,)" % (_GAP, _BEGIN, _GAP)
_SEPARATING = rb"%b," % _BETWEEN_STRINGS
_PART = _GAP + _BEGIN


class ForbiddenTokens:
    """Search for the tokens that are disallowed because of seen values, in the prefix tree of one vocabulary.

    Args:
        vocabulary: Tokens of the model.
        steps: The step function of the automaton. It advances a configuration by a byte.
        histories: The operations on the seen values of open containers (arrays and objects).
        ways: The search for completions. It decides whether an output can still be completed.
        late: True if other text, such as white space, may come between an opening bracket and the first item or name.
    """

    def __init__(self, vocabulary: Vocabulary, steps: Steps, histories: Histories, ways: Ways, *, late: bool) -> None:
        self._tree = _tree_of(vocabulary)
        self._steps = steps
        self._histories = histories
        self._ways = ways
        self._late = late

    def clear(self, configuration: HistoryConfiguration, row: MaskRow) -> bool:
        """Clear the mask bits of tokens that repeat a seen value, or after which every completion repeats one.

        An exhausted work budget raises LimitExceededError. The mask is then partly changed.

        Args:
            configuration: The configuration (state, counter, frame, history) of the mask.
            row: Mask of the automaton without unique items, uint32 [words], changed in configuration.

        Returns:
            True if a bit was cleared.
        """
        candidates = _Candidates(self._tree, row)
        cleared = False
        pending = [(self._tree.root, configuration)]
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
        """Yield the children of a node, with this history, that lead to tokens which may be disallowed."""
        tree = self._tree
        if history is None:
            return candidates.children(node, tree.with_comma if self._late else tree.second)
        in_string = self._histories.in_string(history)
        wanted = self._histories.next_bytes(history) if in_string else frozenset()
        settled = in_string or (self._histories.is_settled(history) and not self._histories.may_begin(history))
        if wanted is None or not settled:
            return candidates.children(node, None)
        endless = not self._late and all(level.endless for level in levels_of(history))
        if node is not tree.root:  # the sets that depend on the beginning of a token do not apply below the root
            return candidates.children(node, tree.with_next if endless else tree.with_comma, wanted)
        if in_string:
            return candidates.children(node, tree.quoted_next if endless else tree.quoted_separating, wanted)
        return candidates.children(node, tree.next if endless else tree.separating)


class _Node(NamedTuple):
    """A node of the prefix tree.

    `number` is its index, `byte` leads to it, `token` ends in it (-1: none), and `end` is the node after its subtree.
    The tokens of the subtree are first..last - 1 in the tree's order.
    """

    number: int
    byte: int
    token: int
    end: int
    first: int
    last: int


class _Children(NamedTuple):
    """The children of a node in order, the index of the first token of each, and each child by its byte."""

    nodes: list[_Node]
    firsts: list[int]
    by_byte: dict[int, _Node]


class _Tokens(NamedTuple):
    """A set of tokens: their indices in the tree's order (int64 [n]), and their words and bits in a mask."""

    places: NDArray[np.int64]
    words: NDArray[np.int64]
    bits: NDArray[np.uint32]

    def allowed(self, row: MaskRow) -> list[int]:
        """Return the indices of the tokens that a mask allows."""
        found: list[int] = self.places[(row[self.words] & self.bits) != 0].tolist()
        return found


class _Tree:
    """The prefix tree of a vocabulary with sets of tokens. `order` (int [tokens]) has the tokens in tree order.

    `with_comma` has the tokens with a comma. Of these, `second` may extend beyond the first part of a container that
    they begin, and `with_next` may do that or begin another part. For configurations outside of strings, only
    `separating` may end a part, and only `next` corresponds to `with_next`. For configurations inside a string, the
    sets with `quoted_` take their place.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        trees = vocabulary.trees
        self.order = trees.tokens
        # The tokens with a comma are those below a node for a comma.
        commas = np.flatnonzero(trees.tree[:, TRIE_BYTE] == ord(","))
        borders = np.zeros(len(self.order) + 1, np.int64)
        np.add.at(borders, trees.spans[commas], 1)
        np.subtract.at(borders, trees.spans[trees.tree[commas, TRIE_END]], 1)
        with_comma = np.flatnonzero(np.cumsum(borders)[:-1]).tolist()
        texts = {place: vocabulary.read_bytes(self.order[place]) for place in with_comma}

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
        # Single items of a memory view take a third of the time of items of an array.
        self._nodes, self._spans = trees.tree.data, trees.spans.data
        self.children = functools.lru_cache(maxsize=4096)(self._children)

    def tokens(self, places: NDArray[np.int64]) -> _Tokens:
        tokens = self.order[places]
        return _Tokens(places, tokens >> 5, np.uint32(1) << (tokens & 31).astype(np.uint32))

    def _children(self, node: _Node) -> _Children:
        nodes = []
        number = node.number + 1
        while number < node.end:
            byte, end, token = (self._nodes[number, column] for column in (TRIE_BYTE, TRIE_END, TRIE_TOKEN))
            nodes.append(_Node(number, byte, token, end, self._spans[number], self._spans[end]))
            number = end
        return _Children(nodes, [child.first for child in nodes], {child.byte: child for child in nodes})


class _Candidates:
    """The tokens of one mask that may be disallowed."""

    def __init__(self, tree: _Tree, row: MaskRow) -> None:
        self._tree = tree
        self._row = row
        self._among: dict[int, list[int]] = {}

    def children(self, node: _Node, tokens: _Tokens | None, wanted: frozenset[int] = frozenset()) -> Iterator[_Node]:
        """Yield the children of a node that lead to some of `tokens` (None: any), and those with the bytes `wanted`."""
        children = self._tree.children(node)
        yield from (children.by_byte[byte] for byte in wanted & children.by_byte.keys())
        places = self._below(node) if tokens is None else self._allowed(tokens)
        # The token of the node itself precedes the tokens of its children.
        place = bisect.bisect_left(places, children.firsts[0]) if children.nodes else len(places)
        while place < len(places) and places[place] < node.last:
            child = children.nodes[bisect.bisect_right(children.firsts, places[place]) - 1]
            place = bisect.bisect_left(places, child.last, place)
            if child.byte not in wanted:
                yield child

    def clear(self, node: _Node) -> bool:
        """Clear all tokens at and below a node. Return whether the mask allowed any of them."""
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

    def _below(self, node: _Node) -> list[int] | NDArray[np.int64]:
        if node.last - node.first > _MANY:
            return self._all
        return self._tree.tokens(np.arange(node.first, node.last)).allowed(self._row)

    @functools.cached_property
    def _all(self) -> NDArray[np.int64]:
        allowed = np.unpackbits(self._row.view(np.uint8), bitorder="little").view(np.bool_)
        return np.flatnonzero(allowed[self._tree.order])


@memoized
def _tree_of(vocabulary: Vocabulary) -> _Tree:
    return _Tree(vocabulary)
