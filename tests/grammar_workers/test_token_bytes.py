"""The bytes of tokens against `decode`, for every decoder, normalizer and pre-tokenizer that `tokenizers` can build."""

from __future__ import annotations

import collections
import itertools
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mistral_common
import pytest
from sentencepiece import SentencePieceProcessor
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import ByT5Tokenizer, PreTrainedTokenizer, PreTrainedTokenizerFast
from transformers.tokenization_mistral_common import MistralCommonBackend
from transformers.tokenization_utils_sentencepiece import SentencePieceBackend

from benchmarks.vocabularies import sentencepiece_vocabulary
from grammar_workers import Vocabulary
from grammar_workers.vocabulary.token_bytes import UnsupportedTokenizerError

MISTRAL = Path(mistral_common.__file__).parent / "data"
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


def with_decoder(decoder: Any, pieces: Sequence[str], added: Sequence[AddedToken] = ()) -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.WordLevel({piece: n for n, piece in enumerate([*pieces, NEUTRAL])}, unk_token=NEUTRAL))
    if decoder is not None:
        backend.decoder = decoder
    backend.add_tokens(list(added))
    return PreTrainedTokenizerFast(tokenizer_object=backend)


GEMMA = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
LLAMA = decoders.Sequence(
    [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
)


@pytest.mark.parametrize(
    ("decoder", "expected"),
    [
        (None, {"a": " a", "##b": " ##b"}),
        (GEMMA, {"▁a": " a", "<0xC3>": b"\xc3", "<0x+A>": "\n", "é": "é", "<0x4>": "<0x4>"}),
        (LLAMA, {"▁a": " a", "a▁": "a ", "▁": " ", "<0x20>": " "}),
        (decoders.ByteLevel(), {"Ġa": " a", "Ã": b"\xc3", "é": b"\xe9", "你好": "你好", "Ġ你": "Ġ你", "a b": "a b"}),
        (decoders.WordPiece(), {"##b": "b", "b": " b", ".": ".", "##a##": "a##", "n't": "n't"}),
        (decoders.WordPiece(cleanup=False), {"##b": "b", "b": " b", ".": " ."}),
        (decoders.Metaspace(), {"▁a": " a", "a▁▁": "a  ", "_": "_"}),
        (decoders.Metaspace("_", "never"), {"_a": " a", "▁": "▁"}),
        (decoders.Replace("@@", ""), {"a@@": "a", "a": "a"}),
        (decoders.Replace("Ġ", " "), {"Ġa": " a"}),
        (decoders.Replace(Regex("@@ ?"), ""), {"a@@ b": "ab", "a@@": "a"}),
        (decoders.Fuse(), {"<0x41>": "<0x41>", "▁": "▁"}),
        (decoders.Strip(" ", 1, 1), {"  a  ": " a ", "a": "a"}),
        (decoders.Sequence([decoders.Fuse(), decoders.Replace("▁", " ")]), {"▁a▁": " a "}),
        (decoders.Sequence([decoders.Fuse(), decoders.Metaspace()]), {"▁a▁": "a"}),
        (decoders.Sequence([decoders.Fuse(), decoders.Metaspace(prepend_scheme="never")]), {"▁a▁": " a "}),
        (decoders.BPEDecoder(), {"a": "a"}),
        (decoders.Sequence([]), {"a": "a"}),
    ],
)
@pytest.mark.parametrize("added", [False, True])
def test_bytes_that_each_decoder_defines(decoder: Any, expected: dict[str, str | bytes], added: bool) -> None:
    """Added tokens that are not special are decoded like the others."""
    tokens = [AddedToken(piece, special=False, normalized=False) for piece in expected]
    tokenizer = with_decoder(decoder, *(([], tokens) if added else (list(expected), [])))
    vocabulary = Vocabulary.from_tokenizer(tokenizer, 40)
    found = {piece: vocabulary.token_bytes(tokenizer.convert_tokens_to_ids(piece)) for piece in expected}
    assert found == {piece: text.encode() if isinstance(text, str) else text for piece, text in expected.items()}


@pytest.mark.parametrize(
    ("decoder", "pieces"),
    [
        (decoders.CTC(), ["a"]),
        (decoders.BPEDecoder(), ["a</w>", "b"]),
        (decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 0, 1)]), ["a "]),
        (decoders.Sequence([decoders.Fuse(), decoders.Replace("ab", "c")]), ["a", "b"]),
        (decoders.Sequence([decoders.ByteFallback(), decoders.Replace("▁", " ")]), ["<0xE2>", "<0x96>", "<0x81>"]),
        (decoders.Sequence([decoders.ByteLevel(), decoders.Replace("é", "e")]), ["Ã", "©"]),
        (decoders.Sequence([decoders.Fuse(), decoders.ByteLevel()]), ["Ġ", "你"]),
        (decoders.Sequence([decoders.Fuse(), decoders.WordPiece()]), ["a", " ", "."]),
        (decoders.Strip(" ", 1, 1), [" ", "a"]),
    ],
)
def test_decoders_that_look_at_neighbors_are_refused_by_name(decoder: Any, pieces: list[str]) -> None:
    steps = json.loads(decoder.__getstate__())
    name = steps.get("decoders", [steps])[-1]["type"]
    with pytest.raises(UnsupportedTokenizerError, match=name):
        Vocabulary.from_tokenizer(with_decoder(decoder, pieces), 40)


class Shout(PreTrainedTokenizerFast):
    """A class whose `decode` is not its decoder."""

    def _decode(self, *arguments: Any, **options: Any) -> str:
        return super()._decode(*arguments, **options).upper()


def test_a_decode_that_differs_from_the_decoder_is_refused() -> None:
    backend = with_decoder(decoders.Fuse(), ["a", "b"]).backend_tokenizer
    assert Vocabulary.from_tokenizer(PreTrainedTokenizerFast(tokenizer_object=backend), 3).token_bytes(0) == b"a"
    with pytest.raises(UnsupportedTokenizerError, match="Shout"):
        Vocabulary.from_tokenizer(Shout(tokenizer_object=backend), 3)


class OwnSentencePiece(PreTrainedTokenizer):
    """As Python files that come with models have it."""

    def __init__(self, vocab_file: str, **options: Any) -> None:
        self.sp_model = SentencePieceProcessor(model_file=vocab_file)
        super().__init__(**options)

    @property
    def vocab_size(self) -> int:
        return int(self.sp_model.get_piece_size())

    def get_vocab(self) -> dict[str, int]:
        return {self.sp_model.id_to_piece(token): token for token in range(self.vocab_size)}

    def _convert_token_to_id(self, token: str) -> int:
        return int(self.sp_model.piece_to_id(token))

    def _convert_id_to_token(self, index: int) -> str:
        return str(self.sp_model.id_to_piece(index))

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        return str(self.sp_model.decode_pieces(tokens))


def test_a_tokenizer_in_python_around_sentencepiece() -> None:
    tokenizer = OwnSentencePiece(str(MISTRAL / "mistral_instruct_tokenizer_240323.model.v3"), eos_token="</s>")
    vocabulary = Vocabulary.from_tokenizer(tokenizer, 33_000)
    assert vocabulary.token_bytes(tokenizer.convert_tokens_to_ids("<0xC3>")) == b"\xc3"
    assert vocabulary.eos_token_ids == (2,)
    expected = sentencepiece_vocabulary()
    assert all(vocabulary.token_bytes(token) == expected.token_bytes(token) for token in range(expected.size))


def test_a_tokenizer_in_python_whose_decode_strips_the_text_is_refused() -> None:
    path = str(MISTRAL / "mistral_instruct_tokenizer_240323.model.v3")
    with pytest.raises(UnsupportedTokenizerError, match="SentencePieceBackend"):
        Vocabulary.from_tokenizer(SentencePieceBackend(vocab_file=path, unk_token="<unk>"), 33_000)


def test_a_tokenizer_in_python_with_rules_of_its_own_is_refused() -> None:
    with pytest.raises(UnsupportedTokenizerError, match="ByT5Tokenizer"):
        Vocabulary.from_tokenizer(ByT5Tokenizer(), 400)


@pytest.mark.parametrize("name", ["tekken_240911.json", "mistral_instruct_tokenizer_241114.model.v7"])
def test_tokenizers_of_mistral_common(name: str) -> None:
    tokenizer = MistralCommonBackend(tokenizer_path=MISTRAL / name)
    vocabulary = Vocabulary.from_tokenizer(tokenizer, len(tokenizer))
    assert vocabulary.eos_token_ids == (2,)
    assert vocabulary.special_tokens["[INST]"] == 3
    for text in ['{"a": [1, "é€😀"]}', "def f():\n    return 1"]:
        tokens = tokenizer.encode(text, add_special_tokens=False)
        assert b"".join(map(vocabulary.token_bytes, tokens)).decode().removeprefix(" ") == text
