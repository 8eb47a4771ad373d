"""Vocabularies: what each token appends to the text, for every kind of tokenizer, and what can be spelled at all."""

from __future__ import annotations

import base64
import itertools
import json
import operator
import random
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st
from tiktoken.load import load_tiktoken_bpe
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from grammar_workers import Vocabulary, compile_grammar
from grammar_workers.errors import UnsatisfiableError
from grammar_workers.vocabulary.token_bytes import UnsupportedTokenizerError
from grammar_workers.vocabulary.tokenizer_file import read_vocabulary
from grammar_workers.vocabulary.vocabulary import load_vocabulary
from tests.grammar_workers.properties import PROPERTY
from tests.grammar_workers.vocabularies import (
    LARGE,
    accepts,
    bytes_vocabulary,
    characters_vocabulary,
    random_walk,
    shakespeare_vocabulary,
    text_of,
)

SHIPPED_MODEL = Path(__file__).parents[2] / "models" / "turnstile-tiny"
TEXTS = [
    "the cat sat on the mat",
    "naïve café — 😀 ok",
    "  two  spaces\n\tand tabs",
    '{"a": [1, 2.5e3, null]}',
    "日本語 €",
]


# -- from tokenizers ---------------------------------------------------------------------------------------------


def byte_level_tokenizer() -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=["<s>", "</s>", "<pad>"]
    )
    backend.train_from_iterator(TEXTS, trainer)
    backend.add_tokens([AddedToken("added é", normalized=False)])
    backend.add_special_tokens([AddedToken("<tool>", normalized=False)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", pad_token="<pad>")


def byte_fallback_tokenizer() -> PreTrainedTokenizerFast:
    """Like SentencePiece models with byte fallback: metaspace pieces, and <0x..> for what has no piece."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", "t", "h", "e", "a", "c", "▁t", "▁th", "▁the", "▁▁", "é", "at"]
    merges = [("▁", "t"), ("▁t", "h"), ("▁th", "e"), ("▁", "▁"), ("a", "t")]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    backend = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", unk_token="<unk>")


def character_tokenizer() -> PreTrainedTokenizerFast:
    """One token per character, no decoder: pieces are plain text."""
    pieces = ["<end>", *sorted(set("".join(TEXTS)))]
    backend = Tokenizer(models.WordLevel({piece: index for index, piece in enumerate(pieces)}, unk_token="<end>"))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens(["<end>"])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<end>")


MAKERS = [byte_level_tokenizer, byte_fallback_tokenizer, character_tokenizer]


@pytest.mark.parametrize("make", MAKERS)
def test_token_bytes_put_together_are_the_text(make: Any) -> None:
    """Against the tokenizer itself: what it encodes, our bytes spell."""
    tokenizer = make()
    vocabulary = Vocabulary.from_tokenizer(tokenizer, len(tokenizer))
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert text_of(vocabulary, ids).decode() == text


@pytest.mark.parametrize("make", MAKERS)
def test_end_ids_specials_and_padding(make: Any) -> None:
    tokenizer = make()
    many = len(tokenizer)
    end = tokenizer.eos_token_id
    vocabulary = Vocabulary.from_tokenizer(tokenizer, many + 37, SimpleNamespace(eos_token_id=[end, 1]))
    assert vocabulary.size == len(vocabulary) == many + 37
    assert vocabulary.eos_token_ids == tuple(sorted({end, 1}))
    assert Vocabulary.from_tokenizer(tokenizer, many).eos_token_ids == (end,)
    assert Vocabulary.from_tokenizer(tokenizer, many, SimpleNamespace(eos_token_id=1)).eos_token_ids == tuple(
        sorted({end, 1})
    )
    for token in (*tokenizer.all_special_ids, *range(many, many + 37)):
        assert vocabulary.token_bytes(token) == b""
        assert vocabulary.is_special(token)
    fsm = compile_grammar({"type": "regex", "pattern": "[^~]*"}, vocabulary)
    allowed = fsm.allowed_tokens(fsm.initial_state)
    assert max(allowed) < many
    assert not any(vocabulary.is_special(token) for token in allowed - set(vocabulary.eos_token_ids))


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("missing", [1, 5])
def test_tokens_that_the_model_has_no_embeddings_for_are_ignored(make: Any, missing: int) -> None:
    tokenizer = make()
    many = len(tokenizer) - missing
    tokenizer.eos_token = tokenizer.convert_ids_to_tokens(len(tokenizer) - 1)
    whole = Vocabulary.from_tokenizer(tokenizer, len(tokenizer))
    vocabulary = Vocabulary.from_tokenizer(tokenizer, many, SimpleNamespace(eos_token_id=[1, many]))
    assert vocabulary.size == many and vocabulary.eos_token_ids == (1,)
    assert set(vocabulary.special_tokens.values()) == {*whole.special_tokens.values()} & {*range(many)}
    for token in set(range(many)) - {1}:
        assert vocabulary.token_bytes(token) == whole.token_bytes(token)
    # A prompt or a forced text may still be tokenized to one of the others.
    assert vocabulary.token_bytes(many) == b""


def test_tokens_behind_holes_in_the_ids() -> None:
    pieces = {piece: 2 * number + 1 for number, piece in enumerate("abcdefgh")}
    backend = Tokenizer(models.BPE(vocab=pieces, merges=[]))
    backend.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<end>")
    assert tokenizer.eos_token_id < max(pieces.values())
    vocabulary = Vocabulary.from_tokenizer(tokenizer, 20)
    for piece, token in pieces.items():
        if token != tokenizer.eos_token_id:
            assert vocabulary.token_bytes(token) == piece.encode()
            assert vocabulary.token_bytes(token - 1) == b""
    assert accepts(compile_grammar({"type": "regex", "pattern": "[a-h]+"}, vocabulary), "gh")


class TiktokenTokenizer:
    """As Python tokenizers around a ranks file are (Kimi K2): a `tiktoken.Encoding` as `model`, specials added."""

    def __init__(self, ranks: Path, specials: dict[str, int]) -> None:
        self.model = tiktoken.Encoding(
            "file", pat_str=r"\S+|\s+", mergeable_ranks=load_tiktoken_bpe(str(ranks)), special_tokens=specials
        )
        self.added_tokens_decoder = {token: SimpleNamespace(content=n, special=True) for n, token in specials.items()}
        self.eos_token_id = specials["</s>"]

    def __len__(self) -> int:
        return self.model.n_vocab

    def convert_ids_to_tokens(self, tokens: list[int]) -> list[str | None]:
        return [repr(token) for token in tokens]


def test_a_tokenizer_around_a_tiktoken_file_has_the_fingerprint_of_the_fast_one(tmp_path: Path) -> None:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet))
    backend.add_special_tokens([AddedToken("</s>", normalized=False), AddedToken("<tool>", normalized=False)])
    fast = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>")
    expected = Vocabulary.from_tokenizer(fast, len(fast) + 5)
    specials = dict(expected.special_tokens)
    ordinary = [token for token in range(len(fast)) if token not in specials.values()]
    lines = [base64.b64encode(expected.token_bytes(token)) + b" %d" % token for token in ordinary]
    (tmp_path / "tiktoken.model").write_bytes(b"\n".join(lines))
    slow: Any = TiktokenTokenizer(tmp_path / "tiktoken.model", specials)
    vocabulary = Vocabulary.from_tokenizer(slow, len(fast) + 5)
    assert vocabulary.fingerprint == expected.fingerprint
    for text in TEXTS:
        assert text_of(vocabulary, slow.model.encode(text)).decode() == text


TOKENIZER_OF_ITS_OWN = """
import tiktoken
from pathlib import Path
from tiktoken.load import load_tiktoken_bpe
from transformers import PreTrainedTokenizer


class OwnTokenizer(PreTrainedTokenizer):
    vocab_files_names = {"vocab_file": "tiktoken.model"}

    def __init__(self, vocab_file, **options):
        ranks = load_tiktoken_bpe(str(vocab_file))
        specials = {str(content): int(token) for token, content in options["added_tokens_decoder"].items()}
        self.model = tiktoken.Encoding("own", pat_str=r"\\S+|\\s+", mergeable_ranks=ranks, special_tokens=specials)
        super().__init__(**options)

    @property
    def vocab_size(self):
        return self.model.n_vocab

    def get_vocab(self):
        return {repr(token): token for token in range(self.model.n_vocab)}

    def _tokenize(self, text, **options):
        return [repr(token) for token in self.model.encode(text)]

    def _convert_token_to_id(self, token):
        return int(token) if token.isdigit() else None

    def convert_tokens_to_string(self, tokens):
        return self.model.decode([self._added_tokens_encoder.get(token) or int(token) for token in tokens])

    def _convert_id_to_token(self, token):
        return repr(token)
"""


def test_a_tokenizer_that_is_python_code_needs_to_be_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    ranks = [base64.b64encode(bytes([byte])) + b" %d" % byte for byte in range(256)]
    (tmp_path / "tiktoken.model").write_bytes(b"\n".join(ranks))
    (tmp_path / "tokenization_own.py").write_text(TOKENIZER_OF_ITS_OWN)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 260, "eos_token_id": 256}))
    special = {"content": "</s>", "special": True, "lstrip": False, "rstrip": False, "normalized": False}
    settings = {
        "tokenizer_class": "OwnTokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_own.OwnTokenizer", None]},
        "added_tokens_decoder": {"256": special},
        "eos_token": "</s>",
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(ValueError, match="trust_remote_code"):
        load_vocabulary(str(tmp_path))
    vocabulary = load_vocabulary(str(tmp_path), trust_remote_code=True)
    expected = Vocabulary([*(bytes([byte]) for byte in range(256)), *[None] * 4], [256], {"</s>": 256})
    assert vocabulary.fingerprint == expected.fingerprint


def saved(tokenizer: PreTrainedTokenizerFast, folder: Path, **settings: Any) -> Path:
    """A folder with the files of a model that has this tokenizer; `settings` are added to its configuration."""
    tokenizer.save_pretrained(folder)
    config = {"model_type": "llama", "vocab_size": len(tokenizer) + 5, "eos_token_id": 2}
    (folder / "config.json").write_text(json.dumps(config))
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))
    return folder


@pytest.mark.parametrize("make", [byte_level_tokenizer, byte_fallback_tokenizer, character_tokenizer])
@pytest.mark.parametrize("generation", [None, {"eos_token_id": [1, 2]}, {"max_model_len": 5}])
def test_files_without_transformers_give_the_same_vocabulary(make: Any, generation: Any, tmp_path: Path) -> None:
    folder = saved(make(), tmp_path)
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    read = read_vocabulary(folder)
    assert read is not None
    loaded = load_vocabulary(str(folder))
    assert read.fingerprint == loaded.fingerprint
    assert read.eos_token_ids == loaded.eos_token_ids
    assert read.special_tokens == loaded.special_tokens


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("generation", [None, {}, {"eos_token_id": None}, {"eos_token_id": 5}])
@pytest.mark.parametrize("entries", [{}, {"eos_token_id": None}, {"eos_token_id": 3}])
def test_end_tokens_that_only_a_class_has_are_left_to_transformers(
    named: bool, generation: Any, entries: Any, tmp_path: Path
) -> None:
    """Configurations of `llama` without an entry have token 2, whatever text that is."""
    folder = saved(byte_level_tokenizer(), tmp_path)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 500, **entries}))
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    path.write_text(json.dumps({key: settings[key] for key in settings if named or key != "eos_token"}))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    read = read_vocabulary(folder)
    assert (read is None) == (not named or (generation is None and not entries))
    assert read is None or read.fingerprint == load_vocabulary(str(folder)).fingerprint


def test_files_with_a_decoder_that_is_not_supported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = byte_level_tokenizer()
    tokenizer.backend_tokenizer.decoder = decoders.CTC()
    folder = saved(tokenizer, tmp_path)
    assert read_vocabulary(folder) is None
    with pytest.raises(UnsupportedTokenizerError, match="CTC"):
        load_vocabulary(str(folder))
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(UnsupportedTokenizerError, match="CTC"):
        read_vocabulary(folder)


def test_files_without_the_package_tokenizers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = saved(byte_fallback_tokenizer(), tmp_path)
    expected = load_vocabulary(str(folder)).fingerprint
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    read = read_vocabulary(folder)
    assert read is not None and read.fingerprint == expected
    path = folder / "tokenizer.json"
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**data, "decoder": {"type": "Replace", "pattern": {"Regex": "a"}, "content": ""}}))
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(UnsupportedTokenizerError, match="needs the package `tokenizers`"):
        read_vocabulary(folder)


@pytest.mark.parametrize(
    "settings",
    [
        {"eos_token": "<a new one>"},
        {"added_tokens_decoder": {"0": {"content": "<another>", "special": True}}},
        {"added_tokens_decoder": {"900": {"content": "<beyond>", "special": False}}},
    ],
)
def test_what_files_do_not_say_is_left_to_transformers(settings: dict[str, Any], tmp_path: Path) -> None:
    assert read_vocabulary(saved(byte_level_tokenizer(), tmp_path, **settings)) is None


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json", "tokenizer_config.json"])
@pytest.mark.parametrize("content", ["", "[]", "{}", "{", "null"])
def test_broken_files_are_left_to_transformers(name: str, content: str, tmp_path: Path) -> None:
    folder = saved(byte_level_tokenizer(), tmp_path)
    (folder / name).write_text(content)
    assert read_vocabulary(folder) is None or (name, content) == ("tokenizer_config.json", "{}")


def test_the_shipped_model_without_transformers() -> None:
    read = read_vocabulary(SHIPPED_MODEL)
    assert read is not None
    assert read.fingerprint == load_vocabulary(str(SHIPPED_MODEL)).fingerprint


def test_added_tokens_are_text_unless_they_are_special() -> None:
    tokenizer = byte_level_tokenizer()
    vocabulary = Vocabulary.from_tokenizer(tokenizer, len(tokenizer))
    added = tokenizer.convert_tokens_to_ids("added é")
    assert vocabulary.token_bytes(added) == "added é".encode()
    tool = tokenizer.convert_tokens_to_ids("<tool>")
    assert vocabulary.token_bytes(tool) == b""
    assert vocabulary.special_tokens["<tool>"] == tool


def test_every_byte_of_a_byte_level_tokenizer() -> None:
    tokenizer = byte_level_tokenizer()
    vocabulary = Vocabulary.from_tokenizer(tokenizer, len(tokenizer))
    assert {vocabulary.token_bytes(token) for token in range(len(vocabulary))} >= {bytes([b]) for b in range(256)}
    assert vocabulary.spellable is None


def test_bytes_of_a_byte_fallback_tokenizer() -> None:
    tokenizer = byte_fallback_tokenizer()
    vocabulary = Vocabulary.from_tokenizer(tokenizer, len(tokenizer))
    for byte in range(256):
        assert vocabulary.token_bytes(tokenizer.convert_tokens_to_ids(f"<0x{byte:02X}>")) == bytes([byte])
    assert vocabulary.token_bytes(tokenizer.convert_tokens_to_ids("▁the")) == b" the"
    assert vocabulary.spellable is None


def test_the_shipped_model() -> None:
    vocabulary = load_vocabulary(str(SHIPPED_MODEL))
    assert vocabulary.eos_token_ids
    fsm = compile_grammar({"type": "json_schema", "schema": {"properties": {"é": {"type": "string"}}}}, vocabulary)
    assert accepts(fsm, '{"é": "日本"}')
    rng = random.Random(0)
    for _ in range(10):
        text_of(vocabulary, random_walk(fsm, rng)).decode()


# -- the tables --------------------------------------------------------------------------------------------------


def naive_tree(strings: Iterable[bytes]) -> list[bytes]:
    """All distinct prefixes in the order of a preorder walk: lexicographic, a prefix before what it begins."""
    return sorted({string[:length] for string in strings for length in range(1, len(string) + 1)})


token_lists = st.builds(
    operator.add,
    st.lists(st.binary(max_size=4) | st.none() | st.sampled_from([b"a", b"ab", b"abc", b"b"]), min_size=1, max_size=40),
    st.sampled_from([[], [bytes([byte]) for byte in range(256)]]),
)


def read_by_automata(tokens: Sequence[bytes | None]) -> list[bytes | None]:
    vocabulary = Vocabulary(tokens, [])
    return [vocabulary.read_bytes(token) or None for token in range(len(tokens))]


@settings(PROPERTY, max_examples=150)
@given(token_lists)
def test_the_prefix_tree_holds_every_token_once(tokens: list[bytes | None]) -> None:
    vocabulary = Vocabulary(tokens, [])
    tokens = read_by_automata(tokens)
    strings = [token for token in tokens if token]
    expected = naive_tree(strings)
    tree = vocabulary.tree
    assert len(tree) == len(expected)
    path: list[int] = []
    for node, (prefix, (byte, depth, end, token)) in enumerate(zip(expected, tree.tolist(), strict=True)):
        path[depth:] = [byte]
        assert bytes(path) == prefix
        assert end == node + sum(other.startswith(prefix) for other in expected)
        assert token == (tokens.index(prefix) if prefix in strings else -1)
        chain = []
        while token >= 0:
            chain.append(token)
            token = int(vocabulary.same_bytes[token])
        assert chain == [index for index, other in enumerate(tokens) if other == prefix]


@settings(PROPERTY, max_examples=100)
@given(token_lists, st.binary(max_size=6))
def test_encode_finds_the_fewest_tokens(tokens: list[bytes | None], data: bytes) -> None:
    vocabulary = Vocabulary(tokens, [])
    found = vocabulary.encode(data)
    strings = {token for token in read_by_automata(tokens) if token}
    fewest = None
    for many in range(len(data) + 1):
        for cuts in itertools.combinations(range(1, len(data)), max(many - 1, 0)):
            pieces = [data[a:b] for a, b in itertools.pairwise([0, *cuts, len(data)])] if data else []
            if len(pieces) == many and all(piece in strings for piece in pieces):
                fewest = many
                break
        if fewest is not None:
            break
    assert (None if found is None else len(found)) == fewest
    if found is not None:
        assert text_of(vocabulary, found) == data


@pytest.mark.parametrize("make", [bytes_vocabulary, characters_vocabulary, *LARGE])
def test_masks_of_a_vocabulary(make: Any) -> None:
    vocabulary = make()
    assert vocabulary.mask_words == -(-vocabulary.size // 32)
    ends = set(vocabulary.eos_token_ids)
    assert set(np.flatnonzero(np.unpackbits(vocabulary.eos_mask.view(np.uint8), bitorder="little"))) == ends


@pytest.mark.parametrize(("ends", "specials"), [([5], {}), ([-1], {}), ([0], {"<x>": 9})])
def test_ids_outside_the_vocabulary_are_refused(ends: list[int], specials: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="outside the vocabulary"):
        Vocabulary([b"a", b"b", None], ends, specials)


def test_end_tokens_append_nothing() -> None:
    """Even where the tokenizer gives them a text."""
    vocabulary = Vocabulary([b"a", b"</s>"], [1])
    assert vocabulary.token_bytes(1) == b""
    assert compile_grammar({"type": "regex", "pattern": ".*"}, vocabulary).allowed_tokens(1) == {0, 1}


# -- characters that cannot be spelled ---------------------------------------------------------------------------


def test_spellable_characters() -> None:
    assert characters_vocabulary().spellable == frozenset('abcdefghijklmnopqrstuvwxyzABXYZ0123456789_ {}[]":,.-+\\/\n')
    assert len(shakespeare_vocabulary().spellable or ()) == 65
    # Two bytes that have tokens of their own do not make a character spellable unless all bytes do.
    assert Vocabulary([b"a", b"\xc3", b"\xa9"], []).spellable == frozenset("a")
    assert Vocabulary([b"a", "é".encode()], []).spellable == frozenset("aé")


@pytest.mark.parametrize(
    "specification",
    [
        {"type": "regex", "pattern": "é"},
        {"type": "regex", "pattern": "a\t"},
        {"type": "choice", "choices": ["é", "aé"]},
        {"type": "json_schema", "schema": {"const": "é"}},
        {"type": "json_schema", "schema": {"type": "string", "pattern": "^é$"}},
        {"type": "json_schema", "schema": {"type": "object", "properties": {"é": True}, "required": ["é"]}},
        {"type": "json_schema", "schema": {"type": "object", "required": ["é"]}},
        {"type": "json_schema", "schema": {"const": {"é": 1}}},
        {"type": "json_schema", "schema": {"type": "array", "items": {"enum": ["é"]}, "minItems": 1}},
    ],
)
def test_what_cannot_be_spelled_is_unsatisfiable(specification: dict[str, Any]) -> None:
    with pytest.raises(UnsatisfiableError):
        compile_grammar(specification, characters_vocabulary())
    assert compile_grammar(specification, bytes_vocabulary()).allowed_tokens(1)


@pytest.mark.parametrize(
    "schema", [{"type": "null"}, {"type": "boolean"}, {"type": "string"}, {"type": "object"}, True]
)
def test_json_needs_its_punctuation(schema: Any) -> None:
    with pytest.raises(UnsatisfiableError):
        compile_grammar({"type": "json_schema", "schema": schema}, Vocabulary([b"a", b"b", b"nul", None], [3]))


def test_a_few_characters_are_enough_for_some_json() -> None:
    digits = Vocabulary([b"0", b"1", b"[", b"]", b"1]", None], [5])
    fsm = compile_grammar({"type": "json_schema", "schema": True}, digits)
    assert fsm.allowed_tokens(fsm.initial_state) <= {0, 1, 2}
    rng = random.Random(1)
    for _ in range(20):
        assert set(text_of(digits, random_walk(fsm, rng)).decode()) <= set("01[]")


@pytest.mark.parametrize(
    ("schema", "accepted", "rejected"),
    [
        ({"enum": ["é", "a"]}, ['"a"'], ['"é"']),
        ({"type": "object", "properties": {"é": True, "aé": True, "ab": True}}, ['{"ab": 1}', '{"a": 1}', "{}"], []),
        ({"type": "string", "pattern": "^(é|b)a?$"}, ['"b"', '"ba"'], ['"é"']),
        ({"type": "string"}, ['"ab"', '"\\n"', '"\\\\"', '""', '"\\""'], ['"q\tq"', '"é"', '"éa"']),
        ({"anyOf": [{"const": "é"}, {"const": 1}]}, ["1"], []),
    ],
)
def test_the_rest_of_a_language_is_kept(schema: Any, accepted: list[str], rejected: list[str]) -> None:
    """Only what cannot be spelled is gone; and no state is left from which nothing can be finished."""
    vocabulary = characters_vocabulary()
    fsm = compile_grammar({"type": "json_schema", "schema": schema}, vocabulary)
    for text in accepted:
        assert accepts(fsm, text), text
    for text in rejected:
        assert not accepts(fsm, text), text
    rng = random.Random(4)
    for _ in range(30):
        random_walk(fsm, rng, longest=15)


# -- parts of characters -----------------------------------------------------------------------------------------

PIECES = [b"a", b"b", b"ab", "é".encode(), "è".encode(), b"\xc3", b"\xa9", b"\xa8", "aé".encode(), b"a\xc3", b"\xa9b"]
PATTERNS = ["é|a", "(é|è)+", "a*é", "[^b]{2}", "aéb|b"]
GRAMMAR = 'root ::= "a" root "b" | "é"'


def is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


@settings(PROPERTY, max_examples=150)
@given(st.lists(st.sampled_from(PIECES), min_size=1, unique=True), st.sampled_from(PATTERNS))
def test_a_token_is_allowed_exactly_when_some_way_leads_on(tokens: list[bytes], pattern: str) -> None:
    """Exactly for tokens of whole characters; those that hold parts may be left out, but never lead to a dead end."""
    vocabulary = Vocabulary([*tokens, None], [len(tokens)])
    alone = {token for token in tokens if is_text(token) and len(token.decode()) == 1}
    texts = longest = {b""}
    for _ in range(5):
        longest = {text + token for text in longest for token in tokens}
        texts = texts | longest
    valid = {text for text in texts if is_text(text) and re.fullmatch(pattern, text.decode())}
    spelled = {text for text in valid if all(character.encode() in alone for character in text.decode())}
    if not spelled:
        with pytest.raises(UnsatisfiableError):
            compile_grammar({"type": "regex", "pattern": pattern}, vocabulary)
        return
    fsm = compile_grammar({"type": "regex", "pattern": pattern}, vocabulary)
    beginnings = {text[:length] for text in spelled for length in range(len(text) + 1)}
    for walk in itertools.chain([()], itertools.product(tokens, repeat=1), itertools.product(tokens, repeat=2)):
        state = fsm.initial_state
        for token in walk:
            state = fsm.next_state(state, tokens.index(token))
        begun = b"".join(walk)
        assert not fsm.is_terminal(state) or begun in spelled
        if state < 0:
            continue
        assert fsm.is_terminal(state) == (begun in spelled)
        found = fsm.allowed_tokens(state)
        for number, token in enumerate(tokens):
            goes_on = begun + token in beginnings
            allowed = number in found
            assert allowed == goes_on if is_text(token) and is_text(begun) else allowed <= goes_on, (begun, token)
        if not fsm.is_terminal(state):
            assert fsm.allowed_tokens(state)
            assert begun + text_of(vocabulary, fsm.shortest_completion(state)) in spelled


@pytest.mark.parametrize(
    ("tokens", "used"),
    [
        (["C3", "é", "a"], ["é", "a"]),
        (["C3", "A9", "é"], ["C3", "A9", "é"]),
        (["C3", "A9", "é", "è"], ["é", "è"]),
        (["E2", "82AC", "€"], ["E2", "82AC", "€"]),
        (["E2", "82", "AC", "€"], ["E2", "82", "AC", "€"]),
        (["E2", "E282", "AC", "€"], ["E282", "AC", "€"]),
        (["61C3", "A961", "é", "a"], ["é", "a"]),
        (["61C3", "A9", "A961", "é", "a"], ["61C3", "A9", "A961", "é", "a"]),
    ],
)
def test_parts_are_used_where_every_character_can_be_ended(tokens: list[str], used: list[str]) -> None:
    """Two hexadecimal digits stand for a byte. A part that no usable token comes before may stay: nothing reads it."""
    data = [token.encode() if len(token) == 1 else bytes.fromhex(token) for token in tokens]
    begins = [token for token, read in zip(tokens, read_by_automata(data), strict=True) if read]
    assert [token for token in begins if token in used or not token.startswith(("A", "8"))] == used


def test_recursive_grammars_use_no_parts_that_lead_nowhere() -> None:
    specification = {"type": "grammar", "syntax": "gbnf", "text": GRAMMAR}
    fsm = compile_grammar(specification, Vocabulary([b"a", b"b", b"\xc3", b"a\xc3", "é".encode(), None], [5]))
    assert fsm.allowed_tokens(fsm.initial_state) == {0, 4}
    assert fsm.next_state(fsm.initial_state, 2) == -1


@pytest.mark.parametrize(
    ("missing", "schema", "accepted", "rejected"),
    [
        (",", {"const": {"a": 0}}, ['{"a": 0}'], []),
        (",", {"type": "array", "items": {"const": 0}}, ["[]", "[0]"], ["[0, 0]"]),
        (",", {"properties": {"a": {"const": 0}}, "additionalProperties": False}, ["{}", '{"a": 0}'], []),
        (",", {"type": "object"}, ["{}", '{"b": 0}'], ['{"a": 0, "b": 0}']),
        (":", {"type": "object"}, ["{}"], ['{"a": 0}']),
        ('"', {"type": "object"}, ["{}"], ['{"a": 0}']),
        (" ", {"type": "array", "items": {"const": 0}}, ["[]", "[0]"], ["[0, 0]"]),
    ],
)
def test_punctuation_that_a_value_does_not_need_may_be_missing(
    missing: str, schema: Any, accepted: list[str], rejected: list[str]
) -> None:
    characters = [character.encode() for character in '{}[]", :ab0' if character != missing]
    vocabulary = Vocabulary([*characters, None], [len(characters)])
    fsm = compile_grammar({"type": "json_schema", "schema": schema}, vocabulary)
    for text in accepted:
        assert accepts(fsm, text), text
    for text in rejected:
        assert not accepts(fsm, text), text
    rng = random.Random(0)
    for _ in range(10):
        random_walk(fsm, rng, longest=8)


@pytest.mark.parametrize(
    "schema",
    [{"type": "array", "minItems": 2}, {"required": ["a", "b"], "type": "object"}, {"const": {"a": 0, "b": 1}}],
)
def test_punctuation_that_is_needed_may_not(schema: Any) -> None:
    vocabulary = Vocabulary([character.encode() for character in '{}[]" :ab0123'], [])
    with pytest.raises(UnsatisfiableError):
        compile_grammar({"type": "json_schema", "schema": schema}, vocabulary)


def test_a_declared_name_that_cannot_be_spelled_begins_nothing() -> None:
    vocabulary = Vocabulary([b" ", b'"', b":", b"{", b"}", b"\xa3", b"\xd9", b"0", None], [8])
    schema = {"type": "object", "dependentRequired": {"٣": ["a"]}}
    fsm = compile_grammar({"type": "json_schema", "schema": schema}, vocabulary)
    state = fsm.next_state(fsm.next_state(fsm.initial_state, 3), 1)
    assert state >= 0 and not fsm.allowed_tokens(state) & {5, 6}
    assert text_of(vocabulary, fsm.shortest_completion(state)).startswith(b'": ')


@pytest.mark.parametrize(
    "schema",
    [
        {"additionalProperties": False, "patternProperties": {"b": {}}, "minProperties": 1},
        {"additionalProperties": {"type": "null"}, "patternProperties": {"b$": {}}, "minProperties": 1},
        {"additionalProperties": False, "patternProperties": {"^a": False, "ab": {}}, "minProperties": 1},
    ],
)
def test_names_that_cannot_be_spelled_begin_nothing(schema: Any) -> None:
    tokens = [token.encode() for token in '{}":, a0']
    vocabulary = Vocabulary([*tokens, None], [len(tokens)])
    fsm = compile_grammar({"type": "json_schema", "schema": schema}, vocabulary)
    assert not accepts(fsm, b"{}")
    assert fsm.next_state(fsm.initial_state, tokens.index(b"{")) < 0
    assert accepts(fsm, b"0")
