"""The bytes of each token of a tokenizer, derived from the tokenizer's own decoder.

The bytes of a token are the bytes by which the decoded text grows if the token is appended. If they depend on the
tokens before or after it, `UnsupportedTokenizerError` is raised. `read_tokens` verifies a sample of the tokens by
calling the tokenizer's `decode`.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from grammar_workers.types import TokenId
from grammar_workers.vocabulary.partial_characters import is_text

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2}|\+[0-9A-Fa-f])>")
_SPACE_SYMBOL = "▁"
_WORD_PIECE_CLEANUP = [
    (" .", "."), (" ?", "?"), (" !", "!"), (" ,", ","), (" ' ", "'"), (" n't", "n't"), (" 'm", "'m"),
    (" do not", " don't"), (" 's", "'s"), (" 've", "'ve"), (" 're", "'re"),
]  # fmt: skip
_SAMPLED = 192
_NON_ASCII = "é€😀"


class UnsupportedTokenizerError(ValueError):
    """The bytes of a tokenizer's tokens cannot be derived from its decoder. The message names the decoder."""


class TokenTable(NamedTuple):
    """The tokens of a tokenizer that a model can generate.

    Attributes:
        token_bytes: Bytes of each token, by ID. None for special tokens and for IDs without a token.
        special_tokens: Name of each special token (such as "<|end|>") -> its ID.
    """

    token_bytes: list[bytes | None]
    special_tokens: dict[str, TokenId]


def read_tokens(tokenizer: Any, size: int) -> TokenTable:
    """Derive the bytes of the tokens with IDs below `size`.

    `UnsupportedTokenizerError` is raised if the bytes cannot be derived from the tokenizer's decoder, or if the method
    `decode` of the tokenizer returns other bytes.

    Args:
        tokenizer: A tokenizer of `transformers`. It must use a `tokenizers.Tokenizer`, a SentencePiece model, a
            tiktoken encoding or a tokenizer of mistral-common.
        size: Width of the model's logits. The model cannot generate tokens with larger IDs.

    Returns:
        The bytes of `size` tokens, and the special tokens among them.
    """
    instruct = getattr(getattr(tokenizer, "tokenizer", None), "instruct_tokenizer", None)
    table = _mistral_tokens(instruct.tokenizer, size) if instruct is not None else _other_tokens(tokenizer, size)
    if getattr(tokenizer, "decode", None) is not None:
        _compare_with_decode(tokenizer, table.token_bytes)
    return table


def _mistral_tokens(inner: Any, size: int) -> TokenTable:
    known = range(min(size, inner.n_words))
    special = {inner.id_to_piece(token): token for token in known if inner.is_special(token)}
    if hasattr(inner, "id_to_byte_piece"):
        token_bytes = {token: inner.id_to_byte_piece(token) for token in known}
    else:
        token_bytes = _sentencepiece_bytes(inner._model, {token: inner.id_to_piece(token) for token in known})
    named = set(special.values())
    return TokenTable([None if token in named else token_bytes.get(token) for token in range(size)], special)


def _other_tokens(tokenizer: Any, size: int) -> TokenTable:
    added = {token: entry for token, entry in tokenizer.added_tokens_decoder.items() if 0 <= token < size}
    special = {token: entry.content for token, entry in added.items() if entry.special}
    text = {token: entry.content for token, entry in added.items() if not entry.special}
    found = _text_tokens(tokenizer, text, [token for token in range(size) if token not in special])
    return TokenTable([found.get(token) for token in range(size)], {name: token for token, name in special.items()})


def _text_tokens(tokenizer: Any, added: dict[TokenId, str], tokens: list[TokenId]) -> Mapping[TokenId, bytes | None]:
    """Return the bytes of `tokens`, None or absent for tokens without bytes. `added` has the texts of added tokens."""
    encoded = {token: content.encode() for token, content in added.items()}
    for name in ("model", "tokenizer"):
        encoding: Any = getattr(tokenizer, name, None)
        if hasattr(encoding, "decode_single_token_bytes"):
            # Python tokenizers around tiktoken represent bytes as text in their own formats, so ask the encoding.
            return {token: _tiktoken_bytes(encoding, token) for token in tokens} | encoded
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        pieces = dict(zip(tokens, tokenizer.convert_ids_to_tokens(tokens), strict=True)) | added
        written = {token: piece for token, piece in pieces.items() if piece is not None}
        return decoded(_description(backend.decoder), written)
    model = getattr(tokenizer, "sp_model", None)
    if model is not None:
        known = [token for token in tokens if token < len(tokenizer) and token not in added]
        return (
            _sentencepiece_bytes(model, dict(zip(known, tokenizer.convert_ids_to_tokens(known), strict=True))) | encoded
        )
    raise UnsupportedTokenizerError(
        f"cannot derive the bytes of the tokens of {type(tokenizer).__name__}: it is written in Python and decodes with"
        " neither a SentencePiece model nor a tiktoken encoding. Use a model that has a tokenizer.json"
    )


def _description(decoder: Any) -> Any:
    """Return the entry `decoder` of a tokenizer.json without the rest of the file, which takes seconds to write."""
    try:
        return decoder if decoder is None or isinstance(decoder, dict) else json.loads(decoder.__getstate__())
    except Exception as error:  # the library raises a plain Exception for decoders written in Python
        raise UnsupportedTokenizerError(
            f"cannot derive the bytes of the tokens from the tokenizer's decoder {type(decoder).__name__}: {error}"
        ) from error


def _tiktoken_bytes(encoding: Any, token: TokenId) -> bytes | None:
    """Return None for special tokens and for IDs without a token."""
    try:
        return None if encoding.is_special_token(token) else bytes(encoding.decode_single_token_bytes(token))
    except KeyError:
        return None


def _sentencepiece_bytes(model: Any, pieces: Mapping[TokenId, str]) -> dict[TokenId, bytes | None]:
    def bytes_of(piece: str) -> bytes | None:
        number = model.piece_to_id(piece)
        if model.IsControl(number) or model.IsUnknown(number) or model.IsUnused(number):
            return None
        return bytes([int(piece[3:5], 16)]) if model.IsByte(number) else piece.replace(_SPACE_SYMBOL, " ").encode()

    return {token: bytes_of(piece) for token, piece in pieces.items()}


def decoded(decoder: Any, pieces: Mapping[TokenId, str]) -> dict[TokenId, bytes]:
    """Derive the bytes of tokens from a decoder of the `tokenizers` library.

    `UnsupportedTokenizerError` is raised if the bytes of a token depend on the tokens before or after it, or if the
    type of the decoder is not supported.

    Args:
        decoder: The entry `decoder` of a tokenizer.json, a dictionary. None: tokens are joined with spaces.
        pieces: Token ID -> token as written in the tokenizer.json. Added tokens that are not special are included.

    Returns:
        Token ID -> bytes of the token, for all keys of `pieces`.
    """
    if decoder is None:
        return {token: f" {piece}".encode() for token, piece in pieces.items()}
    chain = _DecoderChain(pieces)
    chain.apply(decoder)
    return {token: text if isinstance(text, bytes) else text.encode() for token, text in chain.texts.items()}


class _DecoderChain:
    """The text of each token after the decoder steps that have been applied so far.

    A step of `tokenizers` maps a list of strings to another list. At first the strings are the tokens. `Fuse` and
    `ByteLevel` join all strings into one; `ByteFallback` joins each run of byte tokens. A step after that sees a token
    together with its neighbors. So it is supported only if it changes each character independently, or nothing.
    """

    def __init__(self, pieces: Mapping[TokenId, str]) -> None:
        self.texts: dict[TokenId, str | bytes] = dict(pieces)
        self._fused = False

    def apply(self, step: dict[str, Any]) -> None:
        change = getattr(self, f"_{step['type']}", None)
        if change is None:
            self._reject(step, "this decoder is not supported")
        change(step)

    def _each(self, change: Callable[[str], str | bytes]) -> None:
        self.texts = {token: change(text) for token, text in self._strings()}

    def _strings(self) -> Iterator[tuple[TokenId, str]]:
        return ((token, text) for token, text in self.texts.items() if isinstance(text, str))

    def _needs_strings(self, step: dict[str, Any]) -> None:
        if any(isinstance(text, bytes) for text in self.texts.values()):
            self._reject(step, "it changes text after bytes of several tokens were put together")

    def _reject(self, step: dict[str, Any], reason: str) -> NoReturn:
        raise UnsupportedTokenizerError(
            f"cannot derive the bytes of the tokens from the tokenizer's decoder {step['type']}"
            f" ({json.dumps(step, ensure_ascii=False)}): {reason}"
        )

    def _Sequence(self, step: dict[str, Any]) -> None:
        for part in step["decoders"]:
            self.apply(part)

    def _Fuse(self, _: dict[str, Any]) -> None:
        self._fused = True

    def _ByteFallback(self, step: dict[str, Any]) -> None:
        if not self._fused:  # a fused text is never a byte token
            self._needs_strings(step)
            self._each(_byte_or_text)

    def _ByteLevel(self, step: dict[str, Any]) -> None:
        self._needs_strings(step)
        if self._fused:
            self._reject(step, "it decodes the whole text in one of two ways")
        self._each(_byte_level)
        self._fused = True

    def _Replace(self, step: dict[str, Any]) -> None:
        self._needs_strings(step)
        pattern, content = step["pattern"], step["content"]
        if self._fused and len(pattern.get("String", "")) != 1:
            self._reject(step, "its pattern may match across tokens")
        if "String" in pattern:
            self._each(lambda text: text.replace(pattern["String"], content))
            return
        try:
            from tokenizers import Regex, decoders
        except ImportError:
            self._reject(step, "its regular expression needs the package `tokenizers`")
        replace = decoders.Replace(Regex(pattern["Regex"]), content)
        self._each(lambda text: replace.decode([text]))

    def _Metaspace(self, step: dict[str, Any]) -> None:
        self._needs_strings(step)
        # The decoder removes the symbol from the first string. A fused text is always the first string.
        removed = self._fused and step.get("prepend_scheme", "always") != "never"
        self._each(lambda text: text.replace(step["replacement"], "" if removed else " "))

    def _WordPiece(self, step: dict[str, Any]) -> None:
        self._needs_strings(step)
        if not self._fused:
            self._each(lambda text: _word_piece(text, step["prefix"], step["cleanup"]))
        elif step["cleanup"]:
            self._reject(step, "its cleanup may match across tokens")

    def _BPEDecoder(self, step: dict[str, Any]) -> None:
        self._needs_strings(step)
        suffix = step["suffix"]
        if any(suffix in text for _, text in self._strings()) or (self._fused and len(suffix) != 1):
            self._reject(step, f"a token with {suffix!r} adds a space only if another token follows")

    def _Strip(self, step: dict[str, Any]) -> None:
        if self._fused:
            if step["stop"]:
                self._reject(step, "it removes characters from the end of the whole text")
            return  # after other text, nothing is removed from the beginning
        self._needs_strings(step)
        self._each(lambda text: self._stripped(text, step))

    def _stripped(self, text: str, step: dict[str, Any]) -> str:
        size, content = len(text), step["content"]
        left = min(step["start"], size - len(text.lstrip(content)))
        trailing = size - len(text.rstrip(content))
        right = min(step["stop"], trailing)
        if left + right > size or step["stop"] > trailing == size:
            self._reject(step, f"the token {text!r} makes it fail")
        return text[left : size - right]


def _byte_or_text(piece: str) -> str | bytes:
    match = _BYTE_TOKEN.fullmatch(piece)
    return bytes([int(match[1], 16)]) if match else piece


def _byte_level(piece: str) -> bytes:
    """Return the bytes of a piece of byte-level BPE. A piece with a character outside its table is plain text."""
    table = _byte_level_table()
    try:
        return bytes([table[character] for character in piece])
    except KeyError:
        return piece.encode()


def _word_piece(piece: str, prefix: str, cleanup: bool) -> str:
    text = piece.removeprefix(prefix) if piece.startswith(prefix) else f" {piece}"
    for before, after in _WORD_PIECE_CLEANUP if cleanup else []:
        text = text.replace(before, after)
    return text


@functools.cache
def _byte_level_table() -> dict[str, int]:
    """Return the byte of each character of byte-level BPE (GPT-2).

    Printable bytes stand for themselves. The others are the characters from U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


def _compare_with_decode(tokenizer: Any, token_bytes: Sequence[bytes | None]) -> None:
    """Compare the bytes of sampled tokens with the text that `tokenizer.decode` adds for them after other text."""
    first = _neutral(tokenizer, token_bytes)
    if first is None:
        return
    before = _decode(tokenizer, [first])
    for run in _sampled_runs(token_bytes):
        text = b"".join(token_bytes[token] or b"" for token in run).decode()
        found = _decode(tokenizer, [first, *run])
        if found != before + text:
            raise UnsupportedTokenizerError(
                f"cannot derive the bytes of the tokens of {type(tokenizer).__name__}: its decode returns {found!r} for"
                f" the tokens {[first, *run]}, whose bytes are those of {before + text!r}"
            )


def _decode(tokenizer: Any, tokens: list[TokenId]) -> str:
    # Engines do not apply the cleanup, which is a step of `transformers` after the tokenizer's decoder. They leave out
    # special tokens; to keep them, mistral-common writes out the names of byte tokens.
    return str(tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False))


def _neutral(tokenizer: Any, token_bytes: Sequence[bytes | None]) -> TokenId | None:
    """Return a token with text of its own. A decoder does not treat the token after it as the first one."""
    plain = (token for token, data in enumerate(token_bytes) if data and data.isascii() and data.strip())
    letters = (token for token, data in enumerate(token_bytes) if data and data.isalpha())
    candidates = itertools.chain(itertools.islice(letters, 16), itertools.islice(plain, 16))
    return next((token for token in candidates if _decode(tokenizer, [token]).strip()), None)


def _sampled_runs(token_bytes: Sequence[bytes | None]) -> Iterator[list[TokenId]]:
    """Yield token sequences of whole characters: single tokens, tokens that end in a space, runs of eight tokens."""
    spaced = (token for token, data in enumerate(token_bytes) if data and data[-1:] == b" ")
    evenly = range(0, len(token_bytes), -(-len(token_bytes) // _SAMPLED) or 1)
    chosen = (*itertools.islice(spaced, 16), *evenly)
    sampled = [token for token in chosen if (data := token_bytes[token]) and is_text(data)]
    yield from ([token] for token in sampled)
    yield from (sampled[begin : begin + 8] for begin in range(0, len(sampled), 8))
    single = {data: token for token, data in enumerate(token_bytes) if data and len(data) == 1}
    spelled = [single.get(bytes([byte])) for byte in _NON_ASCII.encode()]
    if None not in spelled:
        yield [token for token in spelled if token is not None]
