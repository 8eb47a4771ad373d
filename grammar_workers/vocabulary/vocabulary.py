"""The class `Vocabulary`: the bytes of the tokens of a model, and tables that are derived from them once."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
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
from grammar_workers.vocabulary.tokenizer_kinds import adapted, width

logger = get_logger(__name__)

_FOLDED_BYTES = 64 << 20
_BYTES_OF_UTF8 = frozenset([*range(0x80), *range(0x80, 0xC0), *range(0xC2, 0xF5)])


class Vocabulary:
    """The tokens of a model: their bytes, the end-of-sequence IDs, the special tokens and a fingerprint.

    A token may end inside a UTF-8 character. If the vocabulary has a token for every byte, automata use all tokens.
    Otherwise they use a token that ends inside a character only if other tokens can complete the character (see
    `partial_characters`). Pickling stores the constructor's arguments, but not the derived tables.

    Args:
        token_bytes: The bytes that each token appends to the text, by ID. None and b"" mark special tokens, which are
            allowed only where a grammar names them.
        eos_token_ids: IDs of the end-of-sequence tokens. Their `token_bytes` are ignored.
        special_tokens: Name of each special token -> its ID. None: no names.
        size: Width V of the model's logits. IDs without an entry in `token_bytes` are never allowed. None: V is the
            number of entries.

    Attributes:
        size: Width V of the masks and logits, at least the number of tokens.
        eos_token_ids: Distinct IDs of the end-of-sequence tokens, ascending.
        special_tokens: Name of each special token -> its ID.
        mask_words: Number of uint32 words of a mask, ceil(V / 32).
        bitmask_width: Number of int32 words in a row of a token bitmask: the same number, ceil(V / 32).

    Raises:
        ValueError: An end or special token has an ID outside the vocabulary.
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
        self.mask_words = self.bitmask_width = -(-self.size // 32)
        self._folded_trees: LeastRecentlyUsed[folded_trie.FoldedTree] = LeastRecentlyUsed(
            _FOLDED_BYTES, lambda folded: folded.nbytes
        )

    def __reduce__(self) -> tuple[type[Vocabulary], tuple[Any, ...]]:
        return Vocabulary, (self._bytes, self.eos_token_ids, self.special_tokens, self.size)

    def __len__(self) -> int:
        return self.size

    def token_bytes(self, token_id: TokenId) -> bytes:
        """Return the bytes that a token appends to the text.

        Args:
            token_id: ID of the token, at least 0.

        Returns:
            The bytes. b"" for special tokens, for end-of-sequence tokens, and for IDs without a token.
        """
        return self._bytes[token_id] if token_id < self.size else b""

    def can_generate(self, token_id: TokenId) -> bool:
        """Return whether a transition of an automaton may read a token, given by its ID.

        False for end-of-sequence tokens and for IDs outside of the vocabulary.
        """
        return 0 <= token_id < self.size and token_id not in self.eos_token_ids

    def is_special(self, token_id: TokenId) -> bool:
        """Return whether a token (0 to `size` - 1) has no bytes: it is a special, end-of-sequence or padding token."""
        return not self._bytes[token_id]

    def read_bytes(self, token_id: TokenId) -> bytes:
        """Return the bytes that automata read for a token.

        Args:
            token_id: ID of the token, 0 to `size` - 1.

        Returns:
            The bytes. b"" for tokens without bytes, and for tokens that automata cannot use (see `partial_characters`).
            These tokens are allowed only where a grammar names them.
        """
        return self._read_bytes[token_id]

    @functools.cached_property
    def _has_every_byte(self) -> bool:
        return {data[0] for data in self._bytes if len(data) == 1} >= _BYTES_OF_UTF8

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the size, the bytes, the end-of-sequence tokens and the special tokens, 64 hexadecimal digits.

        If two vocabularies have the same fingerprint, a grammar has the same masks for both.
        """
        digest = hashlib.sha256()
        data, offsets = trie.pack(self._bytes)
        digest.update(np.asarray([self.size, *self.eos_token_ids], np.int64).tobytes())
        digest.update(offsets.tobytes())
        digest.update(data.tobytes())
        digest.update(json.dumps(sorted(self.special_tokens.items())).encode())
        return digest.hexdigest()

    @functools.cached_property
    def packed(self) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """The concatenated bytes that automata read for all tokens, uint8, and the offset of each token in them.

        The offsets are int64 [size + 1]. The last offset is the total length.
        """
        return trie.pack(self._read_bytes)

    @functools.cached_property
    def tree(self) -> NDArray[np.int32]:
        """The prefix tree of all tokens, int32 [nodes, TRIE_COLUMNS] (see `trie.build`).

        The column TRIE_TOKEN has the lowest ID of a token that ends in the node, -1 for none.
        """
        return trie.build_with_ids(self._first_by_bytes)

    @property
    def same_bytes(self) -> NDArray[np.int32]:
        """For each token, the next higher ID of a token with the same bytes, -1 for none, int32 [size]."""
        return self._chain[1]

    @functools.cached_property
    def node_of(self) -> NDArray[np.int32]:
        """For each token, the index of the node of `tree` in which it ends, -1 for none, int32 [size]."""
        ends = np.flatnonzero(self.tree[:, trie.TRIE_TOKEN] >= 0)
        nodes = np.full(self.size, -1, np.int32)
        nodes[self.tree[ends, trie.TRIE_TOKEN]] = ends
        for token in np.flatnonzero(self.same_bytes >= 0).tolist():
            nodes[self.same_bytes[token]] = nodes[token]
        return nodes

    @functools.cached_property
    def trees(self) -> trie.Trees:
        """The prefix tree of all tokens, with look-up tables and the order of the tokens, for numba functions."""
        tree = self.tree
        fan_of, fans = trie.build_fans(tree)
        spans, tokens = trie.group_tokens(self.node_of, len(tree))
        return trie.Trees(tree, self.same_bytes, fan_of, fans, slices.mark_staying(tree), spans, tokens)

    def folded_tree(self, classes: bytes) -> folded_trie.FoldedTree:
        """Return the prefix tree of the tokens without quotes and backslashes, with one edge for equivalent bytes.

        The most recently used trees are cached, up to 64 MiB.

        Args:
            classes: Equivalence class of each byte, 256 bytes, from `pushdown.byte_classes.classes_of`.

        Returns:
            The folded tree (see `folded_trie`).
        """
        known = self._folded_trees.get(classes.hex())
        if known is None:
            known = folded_trie.fold(self.tree, self.same_bytes, classes)
            self._folded_trees.put(classes.hex(), known)
        return known

    @functools.cached_property
    def longest_token(self) -> int:
        """Number of bytes of the longest token that automata can use."""
        return max(map(len, self._read_bytes), default=0)

    @functools.cached_property
    def string_slices(self) -> slices.StringSlices:
        """Masks and prefix trees that are precomputed for states inside a JSON string (see `slices`)."""
        return slices.split_strings(self.tree, self.node_of, self._read_bytes)

    @functools.cached_property
    def eos_mask(self) -> NDArray[np.uint32]:
        """Mask that allows only the end-of-sequence tokens, uint32 [mask_words], read-only."""
        row = np.zeros(self.mask_words, np.uint32)
        for token in self.eos_token_ids:
            row[token >> 5] |= np.uint32(1 << (token & 31))
        row.flags.writeable = False
        return row

    @functools.cached_property
    def single_bytes(self) -> tuple[TokenId, ...]:
        """IDs of tokens that consist of one byte, in ascending order of the byte. Each byte has at most one ID."""
        found = (self._first_by_bytes.get(bytes([byte])) for byte in range(256))
        return tuple(token for token in found if token is not None)

    @functools.cached_property
    def spellable(self) -> frozenset[str] | None:
        """The characters that have a token of their own. None if every byte of UTF-8 has a token: no restriction.

        The compiler removes all other characters from a grammar, even if longer tokens contain them. Then every text
        that the grammar allows can be tokenized, and no output reaches a dead end.
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
        """The characters of `spellable` as ranges of code points. All characters if `spellable` is None."""
        return ALL if self.spellable is None else charset.of(self.spellable)

    def encode(self, data: bytes) -> list[TokenId] | None:
        """Tokenize `data` with as few tokens as possible, for completions and examples.

        If several tokenizations have equally many tokens, the one with the longer first token is returned.

        Args:
            data: Bytes to tokenize. May be empty.

        Returns:
            Token IDs. None if no sequence of tokens has these bytes.
        """
        first = self._first_by_bytes
        # The fewest tokens from each offset to the end, and the end of the first of them.
        fewest = [math.inf] * len(data) + [0]
        ends = [0] * len(data)
        for start in range(len(data) - 1, -1, -1):
            furthest = min(start + self.longest_token, len(data))
            known = (end for end in range(furthest, start, -1) if data[start:end] in first)
            ends[start] = min(known, key=fewest.__getitem__, default=start)
            fewest[start] = fewest[ends[start]] + 1
        if fewest[0] == math.inf:
            return None
        tokens = []
        position = 0
        while position < len(data):
            tokens.append(first[data[position : ends[position]]])
            position = ends[position]
        return tokens

    @property
    def _first_by_bytes(self) -> dict[bytes, TokenId]:
        return self._chain[0]

    @functools.cached_property
    def _chain(self) -> tuple[dict[bytes, TokenId], NDArray[np.int32]]:
        return trie.chain(self._read_bytes)

    @classmethod
    def from_tokenizer(cls, tokenizer: Any, vocab_size: int | None = None, generation_config: Any = None) -> Vocabulary:
        """Build the vocabulary of a tokenizer.

        `UnsupportedTokenizerError` is raised if the tokenizer is of another kind, or if the bytes of the tokens cannot
        be derived from its decoder.

        Args:
            tokenizer: A tokenizer of `transformers` (see `token_bytes.read_tokens`), `tokenizers`, `tiktoken`,
                `mistral-common` or `sentencepiece`.
            vocab_size: Width of the model's logits, often more than the number of tokens. Tokens with IDs from
                `vocab_size` up are ignored, because the model cannot generate them. None: the largest token ID plus 1.
            generation_config: Object with additional end-of-sequence tokens in `eos_token_id` (an ID, a list of IDs or
                None). None: only the end tokens of the tokenizer. `tokenizers` and `tiktoken` do not record the end
                token: special tokens with a usual name, such as `</s>` or `<|im_end|>`, are then end tokens.

        Returns:
            The vocabulary, with the end-of-sequence tokens of `tokenizer` and `generation_config`.
        """
        tokenizer = adapted(tokenizer)
        vocab_size = width(tokenizer) if vocab_size is None else vocab_size
        table = read_tokens(tokenizer, vocab_size)
        eos: set[TokenId] = set()
        for source in (tokenizer, generation_config):
            ids = getattr(source, "eos_token_id", None)
            eos.update([ids] if isinstance(ids, int) else ids or [])
        ends = sorted(token for token in eos if 0 <= token < vocab_size)
        if words := {token: data for token in ends if (data := table.token_bytes[token])}:
            logger.warning("end tokens are text, which is disallowed elsewhere: tokens=%s", words)
        return cls(table.token_bytes, ends, table.special_tokens, vocab_size)

    @classmethod
    def from_pretrained(cls, model: str, *, trust_remote_code: bool = False) -> Vocabulary:
        """Load the vocabulary of a model. Plain tokenizer files of a folder are read without `transformers`.

        OSError is raised if the model cannot be found, ImportError if `transformers` is needed and not installed,
        ValueError if the model requires remote code that is not trusted, and `UnsupportedTokenizerError` if the bytes
        of its tokens cannot be derived.

        Args:
            model: Local folder or Hugging Face ID.
            trust_remote_code: True: run Python files that come with the model, if its tokenizer requires them.

        Returns:
            The vocabulary. Its size is the width of the model's logits.
        """
        from grammar_workers.vocabulary.tokenizer_file import read_vocabulary

        return read_vocabulary(Path(model)) or load_vocabulary(model, trust_remote_code=trust_remote_code)


def load_vocabulary(model: str, *, trust_remote_code: bool = False) -> Vocabulary:
    """Load the vocabulary of a model by means of `transformers`. The weights are not loaded.

    OSError is raised if the model cannot be found, ValueError if it requires remote code that is not trusted, and
    `UnsupportedTokenizerError` if the bytes of its tokens cannot be derived.

    Args:
        model: Local folder or Hugging Face ID.
        trust_remote_code: True: run Python files that come with the model, if its tokenizer or configuration requires
            them.

    Returns:
        The vocabulary. Its size is the width of the model's logits.
    """
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig

    tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=trust_remote_code)
    config = AutoConfig.from_pretrained(model, trust_remote_code=trust_remote_code).get_text_config()
    try:
        generation_config = GenerationConfig.from_pretrained(model)
    except OSError:
        generation_config = config
    return Vocabulary.from_tokenizer(tokenizer, config.vocab_size, generation_config)
