"""Matchers and token bitmasks: equal to the automaton's masks, and one typed error for each wrong use."""

from __future__ import annotations

import random
import threading
from typing import Any

import numpy as np
import pytest
import torch

from grammar_workers import TokenFSM, Vocabulary, compile_grammar
from grammar_workers.errors import GrammarError, LimitExceededError
from tests.gpu_workers.other_device import Device, OnDevice
from tests.grammar_workers.specifications import CORNER_CASES
from tests.grammar_workers.vocabularies import bytes_vocabulary, random_walk
from turnstile_llm import (
    Choice,
    Grammar,
    Matcher,
    MatcherError,
    Regex,
    WidthError,
    apply_bitmask,
    compile,
    fill_bitmasks,
)

END = 258


def new_bitmask(rows: int = 1, vocabulary: Vocabulary | None = None) -> np.ndarray:
    return np.zeros((rows, (vocabulary or bytes_vocabulary()).bitmask_width), np.int32)


def words(mask: np.ndarray) -> list[int]:
    return mask.view(np.int32).tolist()


@pytest.mark.parametrize("name", CORNER_CASES)
def test_masks_are_those_of_the_automaton(name: str) -> None:
    vocabulary = bytes_vocabulary()
    grammar, alone = compile(CORNER_CASES[name], vocabulary), compile_grammar(CORNER_CASES[name], vocabulary)
    rng = random.Random(name)
    for _ in range(3):
        matcher, state = grammar.matcher(), alone.initial_state
        bitmask = new_bitmask(3)
        for token in [*random_walk(alone, rng), END]:
            matcher.fill_bitmask(bitmask, 1)
            assert bitmask[1].tolist() == words(alone.allowed_mask(state))
            assert not bitmask[0].any() and not bitmask[2].any()
            assert matcher.is_complete == alone.is_terminal(state)
            assert matcher.forced_tokens() == alone.forced_tokens(state)
            for wrong in {token ^ 1, 3, vocabulary.size, -1} - alone.allowed_tokens(state):
                assert matcher.accept(wrong) is False
            assert not matcher.has_ended and matcher.accept(token) is True
            state = alone.next_state(state, token)
        assert matcher.has_ended and matcher.is_complete


def test_rollback_and_copy() -> None:
    vocabulary = bytes_vocabulary()
    grammar = compile(Regex("abc"), vocabulary)
    matcher, bitmask = grammar.matcher(), new_bitmask(2)
    matcher.fill_bitmask(bitmask, 0)
    for token in b"abc":
        assert matcher.accept(np.int64(token))
    twin = matcher.copy()
    assert matcher.accept(END) and not twin.has_ended
    matcher.rollback(4)
    matcher.fill_bitmask(bitmask, 1)
    assert bitmask[0].tolist() == bitmask[1].tolist()
    assert twin.accept(END) and not matcher.is_complete
    matcher.rollback(0)
    for count in (1, -1):
        with pytest.raises(MatcherError, match=f"cannot roll back {count} of 0 accepted tokens"):
            matcher.rollback(count)


def test_a_matcher_whose_output_has_ended() -> None:
    matcher, bitmask = compile(Choice(["ab"]), bytes_vocabulary()).matcher(), new_bitmask()
    for token in (*b"ab", END):
        assert matcher.accept(token)
    for use in (lambda: matcher.accept(97), lambda: matcher.accept(END), lambda: matcher.fill_bitmask(bitmask)):
        with pytest.raises(MatcherError, match="the output has ended"):
            use()
    assert not bitmask.any() and matcher.forced_tokens() == []
    matcher.rollback(1)
    matcher.fill_bitmask(bitmask)
    assert bitmask.any() and matcher.accept(END)


class Halting:
    """A TokenFSM in which a step waits until the test lets it go on."""

    def __init__(self, fsm: TokenFSM) -> None:
        self._fsm = fsm
        self.entered, self.leave = threading.Event(), threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fsm, name)

    def next_state(self, state: int, token: int) -> int:
        self.entered.set()
        assert self.leave.wait(200)
        return self._fsm.next_state(state, token)


def test_two_threads_in_one_matcher() -> None:
    fsm: Any = Halting(compile(Regex("abc"), bytes_vocabulary()).automaton())
    matcher, accepted, bitmask = Matcher(fsm), [], new_bitmask()
    thread = threading.Thread(target=lambda: accepted.append(matcher.accept(97)))
    thread.start()
    assert fsm.entered.wait(200)
    uses = [
        lambda: matcher.accept(97),
        lambda: matcher.fill_bitmask(bitmask),
        lambda: matcher.rollback(0),
        matcher.forced_tokens,
        matcher.copy,
        lambda: fill_bitmasks([matcher], bitmask),
    ]
    for use in uses:
        with pytest.raises(MatcherError, match="two threads use this matcher at once"):
            use()
    fsm.leave.set()
    thread.join()
    assert accepted == [True] and not bitmask.any()
    # Nothing is corrupted, and an error releases the matcher.
    assert matcher.accept(98) and not matcher.accept(98) and matcher.accept(99)


def test_matchers_of_one_grammar_in_many_threads() -> None:
    vocabulary = bytes_vocabulary()
    specification = CORNER_CASES["tree"]
    grammar, alone = compile(specification, vocabulary), compile_grammar(specification, vocabulary)
    wrong: list[str] = []

    def follow(seed: int) -> None:
        matcher, state, bitmask = grammar.matcher(), alone.initial_state, new_bitmask()
        for token in random_walk(alone, random.Random(seed)):
            matcher.fill_bitmask(bitmask)
            if bitmask[0].tolist() != words(alone.allowed_mask(state)) or not matcher.accept(token):
                wrong.append(f"{seed} {token}")
            state = alone.next_state(state, token)

    threads = [threading.Thread(target=follow, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_batch_of_matchers() -> None:
    vocabulary = bytes_vocabulary()
    one, other = (compile(Regex(pattern), vocabulary).matcher() for pattern in ("a+", "[bc]"))
    bitmask, expected = new_bitmask(4), new_bitmask(4)
    fill_bitmasks([one, None, other], bitmask)
    one.fill_bitmask(expected, 0)
    expected[1] = -1
    other.fill_bitmask(expected, 2)
    assert bitmask.tolist() == expected.tolist()
    on_torch = torch.zeros(4, vocabulary.bitmask_width, dtype=torch.int32)
    fill_bitmasks([one, None, other], on_torch)
    assert on_torch.tolist() == expected.tolist()
    with pytest.raises(WidthError, match="3 matchers need as many rows"):
        fill_bitmasks([one, None, other], bitmask[:2])


@pytest.mark.parametrize(
    "bitmask",
    [
        np.zeros((1, 5), np.int32),
        np.zeros((1, bytes_vocabulary().bitmask_width), np.int64),
        np.zeros(bytes_vocabulary().bitmask_width, np.int32),
        torch.zeros(1, 5, dtype=torch.int32),
    ],
)
def test_a_bitmask_of_another_width(bitmask: Any) -> None:
    matcher = compile(Regex("a+"), bytes_vocabulary()).matcher()
    with pytest.raises(WidthError, match=rf"int32 \[rows, {bytes_vocabulary().bitmask_width}\]"):
        matcher.fill_bitmask(bitmask)
    assert not bitmask.any()


def test_a_bitmask_on_another_device_is_applied_there() -> None:
    bitmask, logits = torch.randint(-(2**31), 2**31, (2, 3), dtype=torch.int32), torch.randn(2, 90)
    with Device() as device:
        device.watching = True
        there = apply_bitmask(OnDevice(logits.clone()), OnDevice(bitmask))
    assert torch.equal(there.host, apply_bitmask(logits, bitmask)) and not device.waits


@pytest.mark.parametrize("tokens", [1, 31, 32, 33, 100])
@pytest.mark.parametrize("kind", [np.float32, np.float16, torch.float32, torch.bfloat16])
def test_logits_under_a_bitmask(tokens: int, kind: Any) -> None:
    rng = np.random.default_rng(tokens)
    allowed = rng.random((3, tokens)) < 0.5
    padded = np.zeros((3, -(-tokens // 32) * 32), bool)
    padded[:, :tokens] = allowed
    bitmask = np.packbits(padded, axis=1, bitorder="little").view(np.int32)
    values = rng.standard_normal((3, tokens))
    if isinstance(kind, torch.dtype):
        logits: Any = torch.tensor(values).to(kind)
        before = logits.clone().float().numpy()
        assert apply_bitmask(logits, torch.from_numpy(bitmask)) is logits
        after = logits.float().numpy()
        again = torch.tensor(values).to(kind)
        assert torch.equal(apply_bitmask(again, bitmask), logits)
    else:
        logits = values.astype(kind)
        before = logits.astype(np.float32)
        assert apply_bitmask(logits, bitmask) is logits
        after = logits.astype(np.float32)
    assert (after == np.where(allowed, before, -np.inf)).all()


@pytest.mark.parametrize("shape", [(2, 4), (3, 3), (3, 5)])
def test_logits_of_another_width(shape: tuple[int, int]) -> None:
    logits = np.zeros((3, 100), np.float32)
    with pytest.raises(WidthError, match=r"does not fit logits \[3, 100\]: set vocab_size=100"):
        apply_bitmask(logits, np.zeros(shape, np.int32))
    assert not logits.any()


def test_the_repr_shows_what_a_grammar_allows() -> None:
    vocabulary = bytes_vocabulary()
    shown = repr(compile(Choice(["yes", "no"]), vocabulary)).splitlines()
    assert shown[1:] == ["  first tokens (2): 'n', 'y'", "  examples:", "    no", "    yes)"]
    many = repr(compile({"type": "json_schema", "schema": True}, vocabulary))
    assert many.splitlines()[1].endswith(", ...") and len(many.splitlines()) == 6
    special = compile({"type": "positions", "allowed": [[256]]}, vocabulary)
    assert "first tokens (1): '<tool>'" in repr(special)


class Exhausted(TokenFSM):
    def allowed_tokens(self, state: int) -> set[int]:
        raise LimitExceededError("too large")


def test_the_repr_of_a_grammar_that_exceeds_a_limit() -> None:
    grammar = compile(Regex("a"), bytes_vocabulary())
    grammar._fsm.__class__ = Exhausted
    try:
        assert repr(grammar) == f"Grammar({grammar.key[:12]}: too large)"
    finally:
        grammar._fsm.__class__ = TokenFSM


def test_a_worn_automaton_is_loaded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    grammar = Grammar(compile_grammar(CORNER_CASES["tree"], bytes_vocabulary()))
    first = grammar.automaton()
    assert grammar.automaton() is first
    matcher = grammar.matcher()
    monkeypatch.setattr(TokenFSM, "is_worn", property(lambda fsm: fsm is first))
    second = grammar.automaton()
    assert second is not first and second.key == first.key and grammar.automaton() is second
    assert matcher._fsm is first
    monkeypatch.undo()
    monkeypatch.setattr(TokenFSM, "nbytes", property(lambda fsm: 1 << 40 if fsm is second else 1000))
    assert grammar.automaton() not in (first, second)


def test_errors_are_typed() -> None:
    assert issubclass(WidthError, ValueError) and issubclass(MatcherError, RuntimeError)
    with pytest.raises(GrammarError):
        compile(Regex("("), bytes_vocabulary())
    with pytest.raises(TypeError):
        compile(Regex("a"), bytes_vocabulary()).matcher().accept(1.5)  # type: ignore[arg-type]
