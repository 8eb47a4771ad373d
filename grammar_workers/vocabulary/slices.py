"""Slices: precomputed masks of the tokens that consist of certain characters, and prefix trees of all other tokens.

Inside a JSON string or a comment, about 90% of the tokens do not end it. The set of these tokens depends only on the
allowed characters, not on the grammar. So the mask of this set is computed once per vocabulary and set of characters.
To compute the mask of a state inside a string, only the prefix tree of the other tokens is walked: a few hundred or
thousand nodes.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numba import int16, int32, njit
from numpy.typing import NDArray

from grammar_workers.dfa import charset
from grammar_workers.dfa.charset import Charset
from grammar_workers.dfa.utf8 import ByteRanges, utf8_sequences
from grammar_workers.numba_options import OPTIONS, called_with
from grammar_workers.pushdown.byte_classes import LEADS_OUT
from grammar_workers.pushdown.escapes import ESCAPED
from grammar_workers.pushdown.instructions import TOLERATED_RUN
from grammar_workers.pushdown.json_text import QUOTE, encode_string_body
from grammar_workers.pushdown.strings import COMMON, UNESCAPED
from grammar_workers.vocabulary import trie
from grammar_workers.vocabulary.trie import TRIE_BYTE, TRIE_DEPTH, TRIE_END, TRIE_TOKEN

# State of a `character_table` between two characters.
BETWEEN = 0
# Flag in the result of `mark_staying`.
STAYS_UNESCAPED = 64
_ANY = 1 << 30


class Slice(NamedTuple):
    """The tokens of a vocabulary in two groups: those that consist of characters of a set, and all others.

    A token of the first group may end in the middle of the UTF-8 bytes of such a character.

    Attributes:
        mask: Mask of the first group, uint32 [words].
        rest: Prefix tree of the second group, int32 [nodes, TRIE_COLUMNS].
    """

    mask: NDArray[np.uint32]
    rest: NDArray[np.int32]


class StringSlices(NamedTuple):
    """Masks and prefix trees of a vocabulary, precomputed for states inside a JSON string.

    A slice has the mask of the tokens that consist of certain characters, and the prefix tree of all other tokens.
    Prefix trees are int32 [nodes, TRIE_COLUMNS].

    Attributes:
        body: Masks, uint32 [longest + 1, words]. Mask n allows the tokens that stay inside the string and have at most
            n characters. `longest` is the number of characters of the longest such token.
        closing: Prefix tree of the tokens with a quote.
        tails: Prefix tree of tails. The tail of a token that closes a string is its bytes from the closing quote on.
            TRIE_TOKEN is the lowest ID of a token with the tail.
        same_tail: For each token, the next token with the same tail, -1 for none, int32 [V].
        unfolded: Slice of the tokens without quotes and backslashes. So its prefix tree has the tokens that are not in
            folded trees (see `folded_trie`).
        any_character: Slice of the tokens of at most 32 characters (TOLERATED_RUN) without six rare characters (RARE).
            It is used in states that allow all these tokens (TOLERATES_ANY).
        any_but_escaped: Slice of the tokens in `any_character` that also have no line ends and no characters that JSON
            must escape. It is used in states that allow all these tokens (TOLERATES_UNESCAPED).
    """

    body: NDArray[np.uint32]
    closing: NDArray[np.int32]
    tails: NDArray[np.int32]
    same_tail: NDArray[np.int32]
    unfolded: Slice
    any_character: Slice
    any_but_escaped: Slice


def character_table(sequences: Iterable[ByteRanges]) -> NDArray[np.int16]:
    """Build an automaton over bytes that reads any text of given characters.

    Args:
        sequences: Encodings of the characters. An encoding has an inclusive range for each byte. If two encodings begin
            with equal ranges, the next ranges must be equal or disjoint.

    Returns:
        Transition table, int16 [states, 256]: the next state after each byte, -1 for none. The automaton is in state 0
        (BETWEEN) at the beginning and after each complete character.
    """
    rows = [np.full(256, -1, np.int16)]
    for sequence in sequences:
        state = BETWEEN
        for low, high in sequence[:-1]:
            if rows[state][low] < 0:
                rows[state][low : high + 1] = len(rows)
                rows.append(np.full(256, -1, np.int16))
            state = int(rows[state][low])
        low, high = sequence[-1]
        rows[state][low : high + 1] = BETWEEN
    return np.stack(rows)


@functools.lru_cache(maxsize=8)
def string_table(characters: Charset) -> NDArray[np.int16]:
    """Return an automaton over bytes that reads the contents of a JSON string in the canonical encoding.

    Args:
        characters: The characters that the string may contain.

    Returns:
        Transition table, int16 [states, 256]: the next state after each byte, -1 for none. The automaton is in state 0
        at the beginning and after each complete character. The array is cached: do not change it.
    """
    plain = charset.subtract(characters, ESCAPED)
    escaped = charset.intersect(characters, ESCAPED)
    spelled = [encode_string_body(chr(code)) for low, high in escaped for code in range(low, high + 1)]
    return character_table(
        [sequence for low, high in plain for sequence in utf8_sequences(low, high)]
        + [tuple((byte, byte) for byte in spelling) for spelling in spelled]
    )


def split(tree: NDArray[np.int32], node_of: NDArray[np.int32], table: NDArray[np.int16], most: int = _ANY) -> Slice:
    """Divide the tokens of a vocabulary into those that an automaton over characters can read, and all others.

    Args:
        tree: Prefix tree of all tokens, int32 [nodes, TRIE_COLUMNS].
        node_of: For each token, the node of `tree` in which it ends, -1 for none, int32 [V].
        table: Transition table from `character_table`, int16 [states, 256].
        most: Maximum number of characters of a token that counts as readable. An incomplete last character counts.
            Default: no limit.

    Returns:
        The mask of the readable tokens, and the prefix tree of the other tokens.
    """
    states, characters = _read(tree, table)
    stays = (states >= 0) & (characters <= most)
    return Slice(_mask(node_of, stays), _pruned(tree, ~stays))


def split_strings(tree: NDArray[np.int32], node_of: NDArray[np.int32], token_bytes: Sequence[bytes]) -> StringSlices:
    """Precompute masks and prefix trees of a vocabulary, with which masks inside JSON strings are computed faster.

    Args:
        tree: Prefix tree of all tokens, int32 [nodes, TRIE_COLUMNS].
        node_of: For each token, the node of `tree` in which it ends, -1 for none, int32 [V].
        token_bytes: Bytes of each token as automata read them, V entries. b"" for special and unusable tokens.

    Returns:
        The masks and trees, as new arrays.
    """
    states, characters = _read(tree, string_table(charset.ALL))
    longest = int(characters[states >= 0].max(initial=0))
    body = [_mask(node_of, (states >= 0) & (characters <= many)) for many in range(longest + 1)]
    return StringSlices(
        np.stack(body),
        _without(tree, node_of, [QUOTE]).rest,
        *_tails(token_bytes, string_table(charset.ALL)),
        _without(tree, node_of, LEADS_OUT),
        split(tree, node_of, string_table(COMMON), TOLERATED_RUN),
        split(tree, node_of, string_table(UNESCAPED), TOLERATED_RUN),
    )


def mark_staying(tree: NDArray[np.int32]) -> NDArray[np.uint8]:
    """Mark subtrees of a prefix tree in which all tokens consist of ordinary string characters.

    A state that allows long enough texts of ordinary characters allows all tokens of such a subtree. A node is marked
    if it is at the end of a character, and if all tokens in its subtree are in the slice `any_character` (see
    `StringSlices`).

    Args:
        tree: Prefix tree of all tokens, int32 [nodes, TRIE_COLUMNS].

    Returns:
        A number for each node, uint8 [nodes]. 0: the node is not marked. Else, the number is 1 + the maximum number of
        characters that follow the node in its subtree. 64 (STAYS_UNESCAPED) is added if all tokens of the subtree are
        also in the slice `any_but_escaped`.
    """
    ends = tree[:, TRIE_END]
    spans = np.stack([np.arange(len(tree)), ends], axis=1)
    staying = np.zeros(len(tree), np.uint8)
    for characters_of, mark in ((COMMON, 1), (UNESCAPED, 1 + STAYS_UNESCAPED)):
        states, characters = _read(tree, string_table(characters_of))
        leaves = (tree[:, TRIE_TOKEN] >= 0) & ((states < 0) | (characters > TOLERATED_RUN))
        before = np.append(0, np.cumsum(leaves))
        stays = (states == BETWEEN) & (before[spans[:, 0]] == before[ends])
        most = np.maximum.reduceat(np.append(characters, 0), spans.reshape(-1))[::2]
        staying[stays] = (mark + most - characters)[stays]
    return staying


def _without(tree: NDArray[np.int32], node_of: NDArray[np.int32], marks: Sequence[int]) -> Slice:
    """Return the slice of the tokens that have none of these bytes."""
    table = np.full((1, 256), BETWEEN, np.int16)
    table[0, marks] = -1
    return split(tree, node_of, table)


def _tails(token_bytes: Sequence[bytes], table: NDArray[np.int16]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return `tails` and `same_tail` of a vocabulary. `table` is the `string_table` of all characters."""
    first, same = trie.chain([_tail(data, table) for data in token_bytes])
    return trie.build_with_ids(first), same


def _tail(data: bytes, table: NDArray[np.int16]) -> bytes:
    """Return the bytes of a token from the closing quote on; b"" if the token does not close a string."""
    state = BETWEEN if QUOTE in data else -1
    for place, byte in enumerate(data):
        if state < 0:
            break
        if state == BETWEEN and byte == QUOTE:
            return data[place:]
        state = int(table[state, byte])
    return b""


def _mask(node_of: NDArray[np.int32], nodes: NDArray[np.bool_]) -> NDArray[np.uint32]:
    """Return the mask of the tokens that end in one of `nodes` (bool [nodes])."""
    held = np.zeros(-(-len(node_of) // 32) * 32, np.bool_)
    held[: len(node_of)] = np.append(nodes, False)[node_of]
    return np.packbits(held, bitorder="little").view(np.uint32)


def _pruned(tree: NDArray[np.int32], nodes: NDArray[np.bool_]) -> NDArray[np.int32]:
    """Return the prefix tree of the tokens that end in one of `nodes` (bool [nodes])."""
    ends_here = nodes & (tree[:, TRIE_TOKEN] >= 0)
    before = np.append(0, np.cumsum(ends_here))
    kept = before[tree[:, TRIE_END]] > before[:-1]
    rest = tree[kept]
    rest[:, TRIE_END] = np.append(0, np.cumsum(kept))[rest[:, TRIE_END]]
    rest[~ends_here[kept], TRIE_TOKEN] = -1
    return rest


@called_with(int32[:, ::1], int16[:, ::1])
@njit(**OPTIONS)
def _read(tree, table):  # type: ignore[no-untyped-def]
    """Return for each node the state of the automaton at the node, or -1, and the number of characters begun so far."""
    many = tree.shape[0]
    states = np.empty(many, np.int16)
    characters = np.empty(many, np.int32)
    path = np.empty(many + 1, np.int32)
    for node in range(many):
        depth = tree[node, TRIE_DEPTH]
        path[depth] = node
        state, begun = np.int16(BETWEEN), np.int32(0)
        if depth > 0:
            state, begun = states[path[depth - 1]], characters[path[depth - 1]]
        states[node] = table[state, tree[node, TRIE_BYTE]] if state >= 0 else np.int16(-1)
        characters[node] = begun + (state == BETWEEN)
    return states, characters
