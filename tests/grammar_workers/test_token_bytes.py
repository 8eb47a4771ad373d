"""The bytes of tokens against `decode`, for every decoder, normalizer and pre-tokenizer that `tokenizers` can build."""

from __future__ import annotations

import collections
import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from grammar_workers import Vocabulary
from grammar_workers.vocabulary.token_bytes import UnsupportedTokenizerError

NEUTRAL = "q"
PARTS = [
    *(
        "a",
        "b",
        "n",
        "t",
        ".",
        "!",
        ",",
        "'",
        " ",
        "  ",
        "|",
        "_",
        "@@",
        "##",
        "</w>",
        "<pad>",
        "do",
        "not",
        "n't",
        "A",
    ),
    *("▁", "▁▁", "Ġ", "Ċ", "é", "Ã", "©", "你", "😀", "â", "Ģ", "\n"),
]
BYTES = [f"<0x{byte:02X}>" for byte in "é€▁A\n ".encode()] + ["<0x+A>", "<0xe2>", "<0xG1>", "<0xé>"]


def texts(rng: random.Random) -> str:
    return rng.choice(["▁", " ", "a", "@@", "@@ ", "Ġ", "##", "</w>", "_", "", "é", "A", "ab"])


def a_decoder(rng: random.Random, depth: int = 0) -> Any:
    """One of all decoders, more often of those that vocabularies have."""
    makers: list[Callable[[], Any]] = [
        decoders.ByteLevel,
        decoders.ByteFallback,
        decoders.Fuse,
        lambda: decoders.CTC(cleanup=rng.random() < 0.5),
        lambda: decoders.BPEDecoder(suffix=rng.choice(["</w>", "@@", "a", ""])),
        lambda: decoders.WordPiece(prefix=rng.choice(["##", "▁", ""]), cleanup=rng.random() < 0.5),
        lambda: decoders.Metaspace(
            replacement=rng.choice(["▁", "_", "a"]),
            prepend_scheme=rng.choice(["always", "never", "first"]),
            split=rng.random() < 0.5,
        ),
        lambda: decoders.Replace(texts(rng), texts(rng)),
        lambda: decoders.Replace(Regex(rng.choice(["a+", "▁", r"\s+", "^a", "@@ ?", "(?<=a)b", ""])), texts(rng)),
        lambda: decoders.Strip(rng.choice([" ", "a", "▁"]), rng.randrange(3), rng.choice([0, 0, 1, 2])),
    ]
    if depth < 2 and rng.random() < 0.6:
        return decoders.Sequence([a_decoder(rng, depth + 1) for _ in range(rng.randrange(4))])
    return rng.choice(makers)()


def a_normalizer(rng: random.Random) -> Any:
    makers: list[Callable[[], Any]] = [
        *(normalizers.NFC, normalizers.NFD, normalizers.NFKC, normalizers.NFKD, normalizers.Nmt),
        *(normalizers.Lowercase, normalizers.StripAccents, normalizers.BertNormalizer, normalizers.Strip),
        *(normalizers.ByteLevel, lambda: normalizers.Replace(" ", "▁"), lambda: normalizers.Prepend("▁")),
        lambda: normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()]),
    ]
    return rng.choice(makers)()


def a_pre_tokenizer(rng: random.Random) -> Any:
    makers: list[Callable[[], Any]] = [
        *(pre_tokenizers.ByteLevel, pre_tokenizers.BertPreTokenizer, pre_tokenizers.Digits),
        *(pre_tokenizers.Metaspace, pre_tokenizers.Punctuation, pre_tokenizers.UnicodeScripts),
        *(pre_tokenizers.Whitespace, pre_tokenizers.WhitespaceSplit),
        *(lambda: pre_tokenizers.CharDelimiterSplit("a"), lambda: pre_tokenizers.Split(" ", "isolated")),
        lambda: pre_tokenizers.Sequence([pre_tokenizers.Digits(), pre_tokenizers.ByteLevel()]),
    ]
    return rng.choice(makers)()


def a_model(rng: random.Random, pieces: list[str]) -> Any:
    """A model with these pieces; only Unigram has to number them without holes."""
    step = rng.choice([1, 1, 2, 3])
    table = {piece: number * step for number, piece in enumerate(pieces)}
    makers: list[Callable[[], Any]] = [
        lambda: models.BPE(vocab=table, merges=[]),
        lambda: models.WordLevel(vocab=table, unk_token=NEUTRAL),
        lambda: models.WordPiece(vocab=table, unk_token=NEUTRAL),
        lambda: models.Unigram([(piece, -1.0) for piece in pieces], 0, False),
    ]
    return rng.choice(makers)()


def a_tokenizer(rng: random.Random) -> PreTrainedTokenizerFast:
    pieces = {"".join(rng.choices(PARTS, k=rng.choice([1, 1, 1, 2, 3]))) for _ in range(rng.randrange(4, 30))}
    pieces |= set(rng.sample(BYTES, rng.choice([0, 0, 3, len(BYTES)])))
    shuffled = [NEUTRAL, *sorted(pieces - {NEUTRAL})]
    rng.shuffle(shuffled)
    backend = Tokenizer(a_model(rng, shuffled))
    if rng.random() < 0.9:
        backend.decoder = a_decoder(rng)
    if rng.random() < 0.5:
        backend.normalizer = a_normalizer(rng)
    if rng.random() < 0.5:
        backend.pre_tokenizer = a_pre_tokenizer(rng)
    for _ in range(rng.randrange(5)):
        content = "".join(rng.choices([*PARTS, *BYTES], k=rng.choice([1, 2])))
        if content != NEUTRAL:
            backend.add_tokens([AddedToken(content, normalized=rng.random() < 0.5, special=rng.random() < 0.3)])
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def added_text(tokenizer: Any, run: Sequence[int]) -> str | None:
    """What `decode` adds for these tokens after other text; None where it changes that text."""
    before = [tokenizer.convert_tokens_to_ids(NEUTRAL)] * 2
    first, both = tokenizer.decode(before), tokenizer.decode([*before, *run])
    return both[len(first) :] if both.startswith(first) else None


def runs_of(rng: random.Random, tokens: list[int], token_bytes: Callable[[int], bytes]) -> list[list[int]]:
    """Each token alone, twice, and in runs of several; parts of characters in all ways that make one."""
    partial = [token for token in tokens if len(token_bytes(token)) == 1 and token_bytes(token)[0] >= 0x80]
    runs = [[token] * many for token in tokens for many in (1, 2)]
    runs += [rng.choices(tokens, k=rng.randrange(2, 6)) for _ in range(40)]
    runs += [list(run) for many in (2, 3) for run in itertools.product(partial[:5], repeat=many)]
    return runs


@pytest.mark.parametrize("seed", range(8))
def test_bytes_are_what_decode_adds_or_the_tokenizer_is_refused(seed: int) -> None:
    outcomes: collections.Counter[str] = collections.Counter()
    for number in range(150):
        rng = random.Random(1000 * seed + number)
        tokenizer = a_tokenizer(rng)
        ids = sorted(tokenizer.get_vocab().values())
        size = max(1, ids[-1] + rng.choice([1, 1, 5, -2]))
        try:
            vocabulary = Vocabulary.from_tokenizer(tokenizer, size)
        except UnsupportedTokenizerError:
            outcomes["refused"] += 1
            continue
        outcomes["derived"] += 1
        special = {token for token, added in tokenizer.added_tokens_decoder.items() if added.special}
        tokens = [token for token in ids if token not in special and token < size]
        assert not any(vocabulary.token_bytes(token) for token in {*range(size)} - {*tokens})
        for run in runs_of(rng, tokens, vocabulary.token_bytes):
            data = b"".join(map(vocabulary.token_bytes, run))
            try:
                text = data.decode()
            except UnicodeDecodeError:
                continue
            decoder = tokenizer.backend_tokenizer.decoder
            pieces = tokenizer.convert_ids_to_tokens(run)
            assert added_text(tokenizer, run) == text, (number, decoder and decoder.__getstate__(), pieces)
    assert outcomes["derived"] > 40 and outcomes["refused"] > 20, outcomes
