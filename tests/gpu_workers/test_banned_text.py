"""Banned words: never in the text, whatever the pieces; taken back exactly; the output always ends."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_workers.guided.banned_text import BannedText, HeldToken
from gpu_workers.request import BannedWords
from tests.gpu_workers.support import END, engine_config, request, run, running_engine

ALPHABET = "abA é"


def pattern(banned: BannedWords) -> re.Pattern[str]:
    words = "|".join(map(re.escape, banned.words))
    text = rf"(?<!\w)(?:{words})(?!\w)" if banned.whole_words else f"(?:{words})"
    return re.compile(text, 0 if banned.case_sensitive else re.IGNORECASE)


def generate(
    banned: BannedWords, vocabulary: list[bytes], choices: list[int], length: int
) -> tuple[bytes, list[bytes]]:
    """A model that wants `choices` one after the other; what it cannot have it replaces by the next token.

    Returns the text let go and the pieces in which it was. The last token of the vocabulary is the end.
    """
    text = BannedText(banned, [])
    output: list[int] = []
    pieces: list[bytes] = []
    end = len(vocabulary) - 1
    for _ in range(10_000):
        position = len(output)
        token = choices[position % len(choices)]
        while token in text.excluded(position):
            token = (token + 1) % len(vocabulary)
        output.append(token)
        text.append(HeldToken(token, vocabulary[token], None))
        over = token == end or len(output) == length
        back_to = text.go_back(over=over)
        if back_to is not None:
            assert len(text) == back_to - len(pieces)
            del output[back_to:]
            continue
        pieces += [held.data for held in text.release(over=over)]
        if over:
            return b"".join(pieces), pieces
    raise AssertionError("no end")


def test_what_was_let_go_is_looked_at_again() -> None:
    """`aa` lets its first letter go; when the second is taken back, what replaces it may not make a word of both."""
    banned = BannedWords(words=("ab",))
    text, _ = generate(banned, [b"a", b"b", b"c", b""], [0, 0, 1], 3)
    assert text == b"acb"
    whole = BannedWords(words=("a", "cb"), whole_words=True)
    text, _ = generate(whole, [b"a", b" ", b"c", b"b", b""], [0, 2, 3, 1], 4)
    assert not pattern(whole).search(text.decode())


@settings(max_examples=300)
@given(
    st.lists(st.text(ALPHABET, min_size=1, max_size=4), min_size=1, max_size=4),
    st.booleans(),
    st.booleans(),
    st.lists(st.binary(min_size=1, max_size=3) | st.text(ALPHABET, min_size=1, max_size=3).map(str.encode), max_size=8),
    st.lists(st.integers(0, 10**6), min_size=1, max_size=20),
    st.integers(1, 20),
)
def test_no_banned_word_leaves(
    words: list[str], case_sensitive: bool, whole_words: bool, tokens: list[bytes], choices: list[int], length: int
) -> None:
    banned = BannedWords(words=tuple(words), case_sensitive=case_sensitive, whole_words=whole_words)
    vocabulary = [*(letter.encode() for letter in ALPHABET), *tokens, b"."]
    vocabulary = [*vocabulary, b""]
    text, _ = generate(banned, vocabulary, [choice % len(vocabulary) for choice in choices], length)
    assert not pattern(banned).search(text.decode("utf-8", "replace"))


@settings(max_examples=100)
@given(st.lists(st.sampled_from(["the ", "cat", "c", "at", "s ", "€", "x"]), min_size=1, max_size=12))
def test_text_without_a_banned_word_is_let_go_as_it_is_and_early(tokens: list[str]) -> None:
    banned = BannedWords(words=("cat", "dog"), whole_words=True)
    text = BannedText(banned, [])
    released = ""
    for token in tokens:
        text.append(HeldToken(0, token.encode(), None))
        if text.go_back(over=False) is not None:
            return
        released += "".join(held.data.decode() for held in text.release(over=False))
        held = "".join(tokens)[len(released) :][: len("cat") + 3]
        assert len(text) <= 4, held
    if text.go_back(over=True) is None:
        assert released + "".join(held.data.decode() for held in text.release(over=True)) == "".join(tokens)


def test_case_is_folded_character_by_character() -> None:
    """Characters with several spellings, and ones whose other case is longer than they are."""
    for word, text in (("maß", "MAß"), ("ſo", "SO"), ("kelvin", "Kelvin"), ("İx", "İX")):
        held = BannedText(BannedWords(words=(word,)), [])
        held.append(HeldToken(7, text.encode(), []))
        assert held.go_back(over=False) == 0, word
        assert held.excluded(0) == {7}


def test_the_word_begins_in_the_token_with_its_first_byte() -> None:
    held = BannedText(BannedWords(words=("€x",)), [])
    for token_id, data in enumerate((b"a", "€".encode()[:1], b"", "€".encode()[1:], b"x")):
        held.append(HeldToken(token_id, data, []))
    assert held.go_back(over=False) == 1
    assert held.excluded(1) == {1}


def test_a_stop_string_is_an_end_of_a_whole_word() -> None:
    held = BannedText(BannedWords(words=("cat",), whole_words=True), ["s"])
    for token_id, data in enumerate((b"cat", b"s")):
        held.append(HeldToken(token_id, data, []))
    assert held.go_back(over=False) == 0


# -- in the engine ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_outputs_without_their_words(temperature: float) -> None:
    """Words that the model is known to write: gone, and greedily what comes before the first is unchanged."""
    settings_ = {"max_tokens": 40, "temperature": temperature}
    with running_engine() as engine:
        prompts = [f"p{i}" for i in range(5)]
        plain = run(engine, *(request(prompt, seed=3, **settings_) for prompt in prompts))
        words = [result.text[10:12] for result in plain]
        banned = [{"words": [word, "zq"], "case_sensitive": True} for word in words]
        for config in (engine_config(), engine_config(max_num_seqs=2, long_prefill_token_threshold=3)):
            with running_engine(config=config) as other:
                requests = [
                    request(prompt, seed=3, banned_words=words_, **settings_)
                    for prompt, words_ in zip(prompts, banned, strict=True)
                ]
                results = run(other, *requests)
                assert results[0].token_ids == run(other, requests[0])[0].token_ids
            for result, before, word in zip(results, plain, words, strict=True):
                assert result.error is None
                assert word not in result.text
                if temperature == 0:
                    assert result.text[: before.text.index(word)] == before.text[: before.text.index(word)]
                assert len(result.token_ids) == 40 or result.token_ids[-1] == END
                # Penalties, KV and text are those of the tokens that stayed: a resumed output goes on the same.
        result, one = results[0], requests[0]
        for cut in (5, 12, 25):
            resumed = one.model_copy(update={"emitted_token_ids": result.token_ids[:cut]})
            (rest,) = run(engine, resumed)
            assert result.token_ids[:cut] + rest.token_ids == result.token_ids


def test_after_a_rollback_the_output_is_that_of_a_fresh_start() -> None:
    """Greedy, every token of the plain output banned at its first place: what follows must come from a clean cache."""
    rng = np.random.default_rng(0)
    with running_engine() as engine:
        for _ in range(4):
            prompt = rng.integers(0, 256, 12).tolist()
            (plain,) = run(engine, request(prompt, max_tokens=12, temperature=0))
            first = bytes(plain.token_ids[4:5])
            if first[0] >= 0x80 or first[0] in plain.token_ids[:4]:
                continue
            words = {"words": [first.decode()], "case_sensitive": True}
            (banned,) = run(engine, request(prompt, max_tokens=12, temperature=0, banned_words=words))
            at = 4
            again = prompt + banned.token_ids[: at + 1]
            bias = {first[0]: -100.0}
            (rest,) = run(engine, request(again, max_tokens=12 - at - 1, temperature=0, logit_bias=bias))
            assert banned.token_ids[at + 1 :] == rest.token_ids


def test_what_follows_a_rollback_is_drawn_anew() -> None:
    """Three letters of like probability, one pair banned: the letter after a rollback is not always the same."""
    settings_ = {"max_tokens": 2, "logit_bias": dict.fromkeys(b"abc", 100.0), "temperature": 10.0, "diagnostics": True}
    with running_engine() as engine:
        words = {"words": ["ab"]}
        results = run(engine, *(request("x", seed=i, banned_words=words, **settings_) for i in range(150)))
    after = [
        result.text[1:]
        for result in results
        if result.outputs[0].reports and result.outputs[0].reports[0]["diagnostics"]["rolled_back"]
    ]
    assert len(after) >= 6 and len(set(after)) >= 2


def test_an_output_ends_where_nothing_else_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model wants nothing but banned words, and ending is forbidden: after enough tries the output is cut."""
    monkeypatch.setattr("gpu_workers.sequence.sequence.PATIENCE", 4)
    settings_ = {"max_tokens": 5, "ignore_eos": True, "temperature": 0, "logit_bias": dict.fromkeys(b"abcdef", 100.0)}
    with running_engine() as engine:
        (ended,) = run(engine, request("x", banned_words={"words": list("ABCDEF")}, **settings_))
        (other,) = run(engine, request("x", banned_words={"words": list("abc")}, **settings_))
    assert (ended.token_ids, ended.text, ended.finish_reason) == ([], "", "length")
    assert len(other.text) == 5 and set(other.text) <= set("def")
