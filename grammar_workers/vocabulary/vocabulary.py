"""Vocabulary: token id -> bytes of one tokenizer, with everything that is computed once per vocabulary."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grammar_workers.dfa import charset
from grammar_workers.dfa.charset import ALL, Charset
from grammar_workers.logs import get_logger
from grammar_workers.lru import LeastRecentlyUsed
from grammar_workers.types import TokenId
from grammar_workers.vocabulary import folded_trie, partial_characters, slices, trie
from grammar_workers.vocabulary.token_bytes import read_tokens

logger = get_logger(__name__)

_FOLDED_BYTES = 64 << 20
_BYTES_OF_UTF8 = frozenset([*range(0x80), *range(0x80, 0xC0), *range(0xC2, 0xF5)])


class Vocabulary:
    """Token bytes, their prefix tree, the end-of-sequence ids and a fingerprint.

    `token_bytes[i]` is what token i appends to the text; None and b"" mark special tokens, which are allowed only where
    a grammar names them. `size` is the width of the model's logits: ids from `len(token_bytes)` up are never allowed.
    Where not every byte of UTF-8 has a token, automata use of the tokens that hold parts of characters only those after
    which every character can be ended (`partial_characters`). Raises ValueError for end or special ids outside the
    vocabulary. Pickles as these arguments, without its tables.
    """

    def __init__(
        self,
        token_bytes: Sequence[bytes | None],
        eos_token_ids: Sequence[TokenId],
        special_tokens: Mapping[str, TokenId] | None = None,
        size: int | None = None,
    ) -> None:
        self._bytes: list[bytes] = [data or b"" for data in token_bytes]
        self.size = max(size or 0, len(self._bytes))
        self._bytes += [b""] * (self.size - len(self._bytes))
        self.eos_token_ids = tuple(sorted(set(eos_token_ids)))
        self.special_tokens = dict(special_tokens or {})
        for token in (*self.eos_token_ids, *self.special_tokens.values()):
            if not 0 <= token < self.size:
                raise ValueError(f"token id {token} is outside the vocabulary of {self.size} tokens")
        for token in self.eos_token_ids:
            self._bytes[token] = b""
        self._read_bytes = self._bytes if self._has_every_byte else partial_characters.usable(self._bytes)
        self.mask_words = -(-self.size // 32)
        self._folded_trees: LeastRecentlyUsed[folded_trie.FoldedTree] = LeastRecentlyUsed(
            _FOLDED_BYTES, lambda folded: folded.nbytes
        )

    def __reduce__(self) -> tuple[type[Vocabulary], tuple[Any, ...]]:
        return Vocabulary, (self._bytes, self.eos_token_ids, self.special_tokens, self.size)

    def __len__(self) -> int:
        return self.size

    def token_bytes(self, token_id: TokenId) -> bytes:
        """Return what the token appends to the text; b"" for special and padding tokens, and those the model lacks."""
        return self._bytes[token_id] if token_id < self.size else b""

    def can_generate(self, token_id: TokenId) -> bool:
        """Whether this is a token that an automaton may name: one with bytes or a special one, and no end token."""
        if not 0 <= token_id < self.size or token_id in self.eos_token_ids:
            return False
        return bool(self.token_bytes(token_id)) or self.is_special(token_id)

    def is_special(self, token_id: TokenId) -> bool:
        return not self._bytes[token_id]

    def read_bytes(self, token_id: TokenId) -> bytes:
        """What automata read of the token: its bytes, or b"" for one that only a grammar that names it may allow."""
        return self._read_bytes[token_id]

    @functools.cached_property
    def _has_every_byte(self) -> bool:
        return {data[0] for data in self._bytes if len(data) == 1} >= _BYTES_OF_UTF8

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) over sizes, bytes, end ids and special tokens: equal exactly when masks are interchangeable."""
        digest = hashlib.sha256()
        data, offsets = trie.pack(self._bytes)
        digest.update(np.asarray([self.size, *self.eos_token_ids], np.int64).tobytes())
        digest.update(offsets.tobytes())
        digest.update(data.tobytes())
        digest.update(json.dumps(sorted(self.special_tokens.items())).encode())
        return digest.hexdigest()

    @functools.cached_property
    def packed(self) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """What automata read of all tokens (uint8), and the offsets in it (int64 [size + 1])."""
        return trie.pack(self._read_bytes)

    @functools.cached_property
    def tree(self) -> NDArray[np.int32]:
        """The prefix tree of all tokens, see `trie.build`; TRIE_TOKEN holds the lowest id with these bytes."""
        return trie.build_with_ids(self._first_by_bytes)

    @functools.cached_property
    def same_bytes(self) -> NDArray[np.int32]:
        """int32 [size]: the next token id with the same bytes, or -1."""
        chain = np.full(self.size, -1, np.int32)
        last: dict[bytes, TokenId] = {}
        for token, data in enumerate(self._read_bytes):
            if data:
                if data in last:
                    chain[last[data]] = token
                last[data] = token
        return chain

    @functools.cached_property
    def node_of(self) -> NDArray[np.int32]:
        """int32 [size]: the node of `tree` in which a token ends, or -1."""
        ends = np.flatnonzero(self.tree[:, trie.TRIE_TOKEN] >= 0)
        nodes = np.full(self.size, -1, np.int32)
        nodes[self.tree[ends, trie.TRIE_TOKEN]] = ends
        for token in np.flatnonzero(self.same_bytes >= 0).tolist():
            nodes[self.same_bytes[token]] = nodes[token]
        return nodes

    @functools.cached_property
    def trees(self) -> trie.Trees:
        tree, same = self.tree, self.same_bytes
        ordered = trie.order_tokens(tree, same)
        return trie.Trees(tree, same, *trie.build_fans(tree), slices.mark_staying(tree), *ordered)

    def folded_tree(self, classes: bytes) -> folded_trie.FoldedTree:
        """The tokens without quotes and backslashes, folded by the class of each byte; those used last are kept."""
        known = self._folded_trees.get(classes.hex())
        if known is None:
            known = folded_trie.fold(self.tree, self.same_bytes, classes)
            self._folded_trees.put(classes.hex(), known)
        return known

    @functools.cached_property
    def longest_token(self) -> int:
        """Bytes of the longest token."""
        return max(map(len, self._read_bytes), default=0)

    @functools.cached_property
    def string_slices(self) -> slices.StringSlices:
        return slices.split_strings(self.tree, self.node_of, self._read_bytes)

    @functools.cached_property
    def eos_mask(self) -> NDArray[np.uint32]:
        """The mask row of the end tokens."""
        row = np.zeros(self.mask_words, np.uint32)
        for token in self.eos_token_ids:
            row[token >> 5] |= np.uint32(1 << (token & 31))
        row.flags.writeable = False
        return row

    @functools.cached_property
    def single_bytes(self) -> tuple[TokenId, ...]:
        """The tokens of one byte, as far as there are any, in the order of the bytes: a byte automaton's alphabet."""
        found = (self._first_by_bytes.get(bytes([byte])) for byte in range(256))
        return tuple(token for token in found if token is not None)

    @functools.cached_property
    def spellable(self) -> frozenset[str] | None:
        """The characters that have a token of their own, or None when every byte of UTF-8 has one (no restriction).

        A vocabulary without all bytes can spell a text only if it can spell its characters; a character that occurs
        merely inside longer tokens counts as not spellable, which keeps co-reachability exact for what remains.
        """
        if self._has_every_byte:
            return None
        characters = set()
        for data in self._first_by_bytes:
            with contextlib.suppress(UnicodeDecodeError):
                characters.add(data.decode())
        return frozenset(text for text in characters if len(text) == 1)

    @functools.cached_property
    def alphabet(self) -> Charset:
        """The same as a set of characters."""
        return ALL if self.spellable is None else charset.of(self.spellable)

    def encode(self, data: bytes) -> list[TokenId] | None:
        """The fewest tokens that spell `data`, or None when none do (for closing sequences and examples).

        Dynamic programming over end positions; among equals the longer first token wins.
        """
        first = self._first_by_bytes
        best: list[tuple[int, TokenId, int] | None] = [None] * len(data) + [(0, -1, 0)]
        for start in range(len(data) - 1, -1, -1):
            for length in range(min(self.longest_token, len(data) - start), 0, -1):
                rest = best[start + length]
                token = first.get(data[start : start + length]) if rest is not None else None
                if rest is not None and token is not None:
                    known = best[start]
                    if known is None or rest[0] + 1 < known[0]:
                        best[start] = (rest[0] + 1, token, length)
        tokens = []
        position = 0
        while position < len(data):
            entry = best[position]
            if entry is None:
                return None
            tokens.append(entry[1])
            position += entry[2]
        return tokens

    @functools.cached_property
    def _first_by_bytes(self) -> dict[bytes, TokenId]:
        first: dict[bytes, TokenId] = {}
        for token, data in enumerate(self._read_bytes):
            if data:
                first.setdefault(data, token)
        return first

    @classmethod
    def from_tokenizer(cls, tokenizer: Any, vocab_size: int, generation_config: Any = None) -> Vocabulary:
        """Read the tokens of a `transformers` tokenizer.

        Args:
            tokenizer: See `token_bytes.read_tokens`.
            vocab_size: Width of the model's logits, often padded beyond the tokenizer. Tokens of the tokenizer with
                larger IDs are ignored, because the model cannot generate them.
            generation_config: Has end IDs in addition to those of the tokenizer, or None.

        Raises:
            UnsupportedTokenizerError: The bytes of the tokens cannot be derived from the tokenizer's decoder.
        """
        table = read_tokens(tokenizer, vocab_size)
        eos: set[TokenId] = set()
        for source in (tokenizer, generation_config):
            ids = getattr(source, "eos_token_id", None)
            eos.update([ids] if isinstance(ids, int) else ids or [])
        ends = sorted(token for token in eos if token < vocab_size)
        if words := {token: data for token in ends if (data := table.token_bytes[token])}:
            logger.warning("end tokens are text, which is disallowed elsewhere: %s", words)
        return cls(table.token_bytes, ends, table.special_tokens, vocab_size)


def load_vocabulary(model: str, revision: str | None = None, *, trust_remote_code: bool = False) -> Vocabulary:
    """The vocabulary of a model: a local folder or a Hugging Face id. Needs `transformers`; loads no weights.

    `trust_remote_code`: run Python files that come with the model, as its tokenizer and configuration may be. Raises
    OSError, and ValueError where they would have to be run and may not.
    """
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig

    pinned: dict[str, Any] = {"revision": revision} if revision else {}
    trusted = {**pinned, "trust_remote_code": trust_remote_code}
    tokenizer = AutoTokenizer.from_pretrained(model, **trusted)
    config = AutoConfig.from_pretrained(model, **trusted).get_text_config()
    try:
        generation_config = GenerationConfig.from_pretrained(model, **pinned)
    except OSError:
        generation_config = config
    return Vocabulary.from_tokenizer(tokenizer, config.vocab_size, generation_config)
