"""The tokens that a mask row must lose because of earlier values: those that repeat one, or can only repeat one.

Nearly all tokens are settled without a look. Inside of a string that has become unlike all earlier values, a token can
do wrong only behind the end of that string; so only tokens with a quote before their last byte are walked through, and
where the string is still like some values, the beginnings of those. Outside of containers whose parts must differ, a
token must begin one and reach behind its first part, so it has a comma and a bracket, or the quotes of a name.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from grammar_workers.matching.distinct.histories import Histories
from grammar_workers.matching.distinct.steps import Place, Steps
from grammar_workers.matching.distinct.ways import Ways
from grammar_workers.vocabulary.trie import TRIE_BYTE, TRIE_END, TRIE_TOKEN
from grammar_workers.vocabulary.vocabulary import Vocabulary


class ForbiddenTokens:
    """The walks over one vocabulary's prefix tree. `late`: whether parts may begin long after the bracket."""

    def __init__(self, vocabulary: Vocabulary, steps: Steps, histories: Histories, ways: Ways, *, late: bool) -> None:
        self._trees = vocabulary.trees
        self._nodes = nodes = _nodes_of(vocabulary)
        self._steps = steps
        self._histories = histories
        self._ways = ways
        self._outside = nodes.separating if late else nodes.opening

    def clear(self, place: Place, allowed: NDArray[np.bool_]) -> bool:
        """Set the forbidden tokens to False; whether there are any. `allowed`: bool [tokens], what the underlying
        automaton allows.
        """
        nodes, tree = self._nodes, self._trees.tree
        marked = None if place[3] else self._outside
        cleared = False

        def clear_below(node: int, end: int) -> None:
            nonlocal cleared
            tokens = self._trees.tokens[self._trees.spans[node] : self._trees.spans[end]]
            cleared = cleared or bool(allowed[tokens].any())
            allowed[tokens] = False

        # Most children of the root are left out without a look.
        wanted = self._wanted(place)
        first = wanted | nodes.quoting_bytes if wanted is not None else self._steps.bytes_at((*place[:3], None))
        pending: list[tuple[frozenset[int] | None, Iterable[Child], Place]] = []
        pending.append((wanted, [nodes.roots[byte] for byte in first & nodes.roots.keys()], place))
        while pending:
            wanted, children, here = pending.pop()
            for node, byte, after, token in children:
                if marked is not None and not marked[node]:
                    continue
                if wanted and byte not in wanted and not nodes.quoting[node]:
                    continue
                following = self._steps.step(here, byte)
                if following is None or (token >= 0 and not self._ways.is_alive(following)):
                    clear_below(node, after)
                elif after > node + 1:
                    wanted_there = self._wanted(following)
                    none_wanted = wanted_there is not None and not wanted_there
                    below = nodes.quoting_children[node] if none_wanted else _children(tree, node + 1, after)
                    pending.append((wanted_there, below, following))
        return cleared

    def _wanted(self, place: Place) -> frozenset[int] | None:
        """The bytes after which an earlier value may still have a say, where those without are not looked at."""
        return self._histories.next_bytes(place[3]) if self._histories.in_string(place[3]) else None


Child: TypeAlias = tuple[int, int, int, int]
"""A node, its byte, the node behind its subtree and its token or -1."""


class _Nodes(NamedTuple):
    """What is known of a prefix tree.

    `quoting`: nodes on the way to tokens with a quote, at this node or below it, before their last byte; `opening`: to
    tokens with a comma and either a bracket that opens or a whole name; `separating`: to tokens with a comma; each bool
    [nodes]. `roots`: the children of the root by their bytes; `quoting_bytes`: the quoting ones among these, and
    `quoting_children`: those of each node.
    """

    quoting: NDArray[np.bool_]
    opening: NDArray[np.bool_]
    separating: NDArray[np.bool_]
    roots: dict[int, Child]
    quoting_bytes: frozenset[int]
    quoting_children: defaultdict[int, list[Child]]


_known: weakref.WeakKeyDictionary[Vocabulary, _Nodes] = weakref.WeakKeyDictionary()


def _nodes_of(vocabulary: Vocabulary) -> _Nodes:
    known = _known.get(vocabulary)
    if known is None:
        known = _known[vocabulary] = _find_nodes(vocabulary)
    return known


def _find_nodes(vocabulary: Vocabulary) -> _Nodes:
    tree = vocabulary.tree
    places = np.arange(len(tree))
    inside = (tree[:, TRIE_BYTE] == ord('"')) & (tree[:, TRIE_END] > places + 1)
    texts = [vocabulary.read_bytes(token) if token >= 0 else b"" for token in tree[:, TRIE_TOKEN].tolist()]
    separating = np.array([b"," in text for text in texts])
    opening = separating & np.array([b"[" in text or b"{" in text or text.count(b'"') > 1 for text in texts])
    quoting = _above(tree, inside)
    roots = {child[1]: child for child in _children(tree, 0, len(tree))}
    quoting_children: defaultdict[int, list[Child]] = defaultdict(list)
    for node in np.flatnonzero(quoting).tolist():
        end = int(tree[node, TRIE_END])
        quoting_children[node] = [child for child in _children(tree, node + 1, end) if quoting[child[0]]]
    return _Nodes(
        quoting,
        _above(tree, opening),
        _above(tree, separating),
        roots,
        frozenset(byte for byte, child in roots.items() if quoting[child[0]]),
        quoting_children,
    )


def _children(tree: NDArray[np.int32], node: int, end: int) -> Iterator[Child]:
    """The nodes side by side from `node` on, up to `end`."""
    while node < end:
        byte, _, after, token = tree[node].tolist()
        yield node, byte, after, token
        node = after


def _above(tree: NDArray[np.int32], nodes: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The nodes in whose subtree, themselves included, some of `nodes` are."""
    before = np.concatenate([[0], np.cumsum(nodes)])
    marked: NDArray[np.bool_] = before[tree[:, TRIE_END]] > before[:-1]
    return marked
