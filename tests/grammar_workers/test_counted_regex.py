"""Regular expressions whose counts are not written out, against Python's `re`."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from grammar_workers import Limits, compile_grammar
from grammar_workers.dfa.charset import ALL
from grammar_workers.errors import LimitExceededError, UnsatisfiableError
from grammar_workers.languages.regex import counters
from grammar_workers.matching.pushdown_recognizer import PushdownRecognizer
from grammar_workers.matching.recognizer import Reached
from grammar_workers.matching.token_fsm import TokenFSM
from grammar_workers.pushdown.builder import PushdownBuilder
from tests.grammar_workers.properties import PROPERTY
from tests.grammar_workers.vocabularies import accepts, bytes_vocabulary, random_walk, shakespeare_vocabulary, text_of


def counted(pattern: str) -> TokenFSM | None:
    """The pattern by counting, however small its counts; None when nothing matches."""
    builder = PushdownBuilder(Limits())
    entry = counters.counted_text(pattern, ALL, builder, Limits())
    if entry is None:
        return None
    recognizer = PushdownRecognizer(builder.build(entry), bytes_vocabulary(), Limits())
    return TokenFSM(recognizer, bytes_vocabulary(), "", [], Limits())


bodies = st.sampled_from(["a", "[ab]", ".", "(?:ab|c)", "(?:ab)", "(?:a[bc])", "(?:a|bc)", "(?:ab?c)", "é"])
counts = st.tuples(st.integers(0, 4), st.integers(0, 3) | st.none()).map(
    lambda pair: f"{{{pair[0]},{'' if pair[1] is None else pair[0] + pair[1]}}}"
)
counted_parts = st.tuples(bodies, counts).map("".join)
others = st.sampled_from(["a", "b", "c", "-", "a?", "[bc]*", "(?:|ab)", "(?:b|-)"])
patterns = st.lists(counted_parts | others, min_size=1, max_size=4).map("".join)
wrapped = patterns | st.tuples(patterns, patterns).map("|".join) | patterns.map(lambda p: f"^(?:{p}-)*$")


@settings(PROPERTY, max_examples=80)
@given(wrapped, st.integers(0, 1000))
def test_counting_is_the_same_as_writing_out(pattern: str, seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counters, "_LARGE", 0)
        try:
            fsm = counted(pattern)
        except counters.NotCountableError:
            assume(False)
    expected = re.compile(pattern)
    if fsm is None:
        return
    rng = random.Random(seed)
    for _ in range(4):
        walk = text_of(fsm.vocabulary, random_walk(fsm, rng, longest=8)).decode()
        assert expected.fullmatch(walk), walk
    for _ in range(30):
        text = "".join(rng.choice("aaabbcé-") for _ in range(rng.randrange(9)))
        assert accepts(fsm, text) == bool(expected.fullmatch(text)), text
    for state in range(1, min(fsm.state_count, 30)):
        bits = np.unpackbits(fsm.allowed_mask(state).view(np.uint8), bitorder="little")
        assert all((fsm.next_state(state, t) >= 0) == bool(bits[t]) for t in range(0, fsm.vocabulary.size, 3))


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        (".{2,100000}", ["ab", "a" * 100_000], ["a", "a" * 100_001, "a\n"]),
        ("[a-z]{0,50000}[0-9]{50000}", ["1" * 50_000, "ab" + "1" * 50_000], ["a" + "1" * 49_999, "1" * 50_001]),
        ("^x(?:ab|c){100000}y$", ["x" + "ab" * 50_000 + "c" * 50_000 + "y"], ["x" + "c" * 99_999 + "y"]),
        ("(?:[a-z]{2},){0,30000}end", ["end", "ab," * 30_000 + "end"], ["ab," * 30_001 + "end", "abc,end"]),
        ("a{40000,}|b", ["b", "a" * 40_000, "a" * 40_777], ["a" * 39_999, "", "ab"]),
        ("(?:a{1,50000}b)*", ["", "ab" * 9, "a" * 50_000 + "bab"], ["b", "a" * 50_001 + "b"]),
        ("é{50000}", ["é" * 50_000], ["é" * 49_999]),
    ],
)
def test_counts_too_large_to_write_out(pattern: str, good: list[str], bad: list[str]) -> None:
    # The states that long texts visit are few, but each count is a configuration: feed bytes, not tokens.
    fsm = compile_grammar({"type": "regex", "pattern": pattern}, bytes_vocabulary())
    assert len(fsm.to_bytes()) < 100_000
    recognizer = fsm._recognizer
    for text in good + bad:
        configuration = recognizer.start()
        reached: Reached | None = (configuration, recognizer.may_end(configuration), -1)
        for byte in text.encode():
            reached = recognizer.advance(configuration, byte)
            if reached is None:
                break
            configuration = reached[0]
        assert (reached is not None and reached[1]) == (text in good)


@pytest.mark.parametrize(
    "pattern", ["(?:a|ab){60000}", "(?:a?){60000}", "a{0,60000}a{60000}", "(?=.{60000}).*", "(?:.*a){50000}"]
)
def test_counts_that_the_register_cannot_tell_apart_stay_refused(pattern: str) -> None:
    with pytest.raises(LimitExceededError, match=r"max_regex_states|max_steps"):
        compile_grammar({"type": "regex", "pattern": pattern}, bytes_vocabulary())


def test_counting_only_what_the_vocabulary_can_spell() -> None:
    fsm = compile_grammar({"type": "regex", "pattern": "(?:1|a){2,50000}"}, shakespeare_vocabulary())
    assert {fsm.vocabulary.token_bytes(token) for token in fsm.allowed_tokens(fsm.initial_state)} == {b"a"}
    with pytest.raises(UnsatisfiableError):
        compile_grammar({"type": "regex", "pattern": "1{2,50000}"}, shakespeare_vocabulary())
