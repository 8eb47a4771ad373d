"""One request's grammar as vLLM drives it: windows of drafts, rolled back; other ends than the model's own."""

from __future__ import annotations

import random
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from gpu_workers.vllm.backend import SCHEME, GrammarLoader, MaskBackend
from gpu_workers.vllm.grammar import RequestGrammar
from grammar_workers import TokenFSM, Vocabulary, compile_grammar
from grammar_workers.artifacts.store import open_store

END, OTHER_END = 256, 257
PADDED = 300
"""Width of the model's logits."""


def vocabulary() -> Vocabulary:
    pairs = [b"ab", b"bc", b"12"]
    return Vocabulary([*(bytes([byte]) for byte in range(256)), None, None, *pairs], [END])


def automaton(pattern: str) -> TokenFSM:
    return compile_grammar({"type": "regex", "pattern": pattern}, vocabulary())


def row(grammar: RequestGrammar) -> set[int]:
    bitmask = torch.full((2, -(-PADDED // 32)), -1, dtype=torch.int32)
    grammar.fill_bitmask(bitmask, 1)
    assert (bitmask[0] == -1).all()
    bits = np.unpackbits(bitmask[1].numpy().view(np.uint8), bitorder="little")
    return set(np.flatnonzero(bits).tolist())


def spelled(tokens: list[int]) -> bytes:
    return b"".join(vocabulary().token_bytes(token) for token in tokens)


@pytest.mark.parametrize("forced", [0, 3])
@pytest.mark.parametrize("seed", range(20))
def test_windows_of_drafts_are_taken_back_exactly(seed: int, forced: int) -> None:
    """As vLLM's manager does: advance over the drafts, a row before each, go back, accept what came true."""
    choose = random.Random(seed)
    pattern = choose.choice([r"[abc]{2,5}(12)*", r"(ab|bc)+|a{3,9}", r"[^x]{0,6}", r"(x9y8z7[pq])+"])
    grammar, fsm = RequestGrammar(automaton(pattern), {END}, drafts=forced), automaton(pattern)
    accepted: list[int] = []
    while not grammar.is_terminated() and len(accepted) < 12:
        drafts = grammar.validate_tokens([choose.randrange(261) for _ in range(choose.randrange(4))])
        before = row(grammar)
        rows = []
        for draft in drafts:
            rows.append(row(grammar))
            assert grammar.accept_tokens("r", [draft])
        if drafts:
            grammar.rollback(len(drafts))
        assert row(grammar) == before and before < set(range(PADDED))
        assert all(draft in allowed for draft, allowed in zip(drafts, rows, strict=True))
        state = fsm.initial_state
        for token in accepted:
            state = fsm.next_state(state, token)
        assert before == set(fsm.allowed_tokens(state))
        token = choose.choice(sorted(before))
        wrong = choose.choice(sorted(set(range(259)) - before))
        assert not grammar.accept_tokens("r", [wrong])
        assert grammar.accept_tokens("r", [token])
        accepted.append(token)
    if accepted[-1] == END:
        assert re.fullmatch(pattern, spelled(accepted[:-1]).decode(), re.DOTALL)
    grammar.reset()
    assert not grammar.is_terminated() and row(grammar) == set(fsm.allowed_tokens(fsm.initial_state))


def test_a_rejected_window_leaves_the_state() -> None:
    grammar = RequestGrammar(automaton("abc"), {END})
    before = row(grammar)
    assert not grammar.accept_tokens("r", [ord("a"), ord("x")])
    assert row(grammar) == before


def test_tokens_after_the_end_are_no_drafts() -> None:
    grammar = RequestGrammar(automaton("a?"), {END})
    assert grammar.validate_tokens([ord("a"), END, ord("a"), END]) == [ord("a"), END]


def test_stop_tokens_of_the_user_end_only_what_is_complete() -> None:
    grammar = RequestGrammar(automaton("[ax]{2,3}"), {END, OTHER_END, ord("x")})
    assert row(grammar) == {ord("a")}
    assert grammar.accept_tokens("r", [ord("a")])
    # `x` would end the output where it is not complete.
    assert row(grammar) == {ord("a")}
    assert grammar.accept_tokens("r", [ord("a")])
    assert row(grammar) == {ord("a"), ord("x"), END, OTHER_END}
    assert grammar.accept_tokens("r", [OTHER_END]) and grammar.is_terminated()


def test_an_end_token_that_vllm_does_not_know_is_never_allowed() -> None:
    grammar = RequestGrammar(automaton("a?"), {OTHER_END})
    assert row(grammar) == {ord("a"), OTHER_END}


def test_min_tokens_holds_where_the_grammar_can_go_on() -> None:
    grammar = RequestGrammar(automaton("a{0,2}"), {END}, min_tokens=3)
    assert row(grammar) == {ord("a")} and grammar.accept_tokens("r", [ord("a")])
    assert row(grammar) == {ord("a")} and grammar.accept_tokens("r", [ord("a")])
    assert row(grammar) == {END}


def test_forced_tokens_are_drafts() -> None:
    """In place of the proposer's where they are more; what it proposes after them stays."""
    fsm = automaton("x987[yz]")
    forced = list(b"x987")
    for least, tokens, drafts in [
        (8, [7, 8], forced),
        (8, [], forced),
        (2, [], forced[:2]),
        (8, forced[:2], forced),
        (8, [*forced[:3], ord("y")], forced),
        (8, [*forced, ord("y"), END, 7], [*forced, ord("y"), END]),
        (2, [*forced, ord("a")], forced),
        (0, [7, 8], []),
    ]:
        grammar = RequestGrammar(fsm, {END}, drafts=least)
        assert grammar.validate_tokens(tokens) == drafts
    assert grammar.accept_tokens("r", forced)
    assert grammar.validate_tokens([ord("y"), END]) == [ord("y"), END]
    assert grammar.accept_tokens("r", [ord("y"), END]) and grammar.validate_tokens([ord("y")]) == []


def test_tokens_after_the_end_count_for_nothing() -> None:
    """As where vLLM is told to ignore end tokens."""
    grammar = RequestGrammar(automaton("a?"), {END}, drafts=4)
    assert grammar.accept_tokens("r", [ord("a"), END, ord("b"), 7]) and grammar.is_terminated()
    assert grammar.accept_tokens("r", [ord("b")]) and grammar.is_terminated()
    assert grammar.validate_tokens([ord("a")]) == []
    grammar.reset()
    assert not grammar.accept_tokens("r", [ord("b"), END]) and not grammar.is_terminated()


def test_the_backend_loads_what_others_have_compiled(tmp_path: Path) -> None:
    known = vocabulary()
    url = f"file://{tmp_path}"
    fsm = automaton("[ab]{2,3}")
    open_store(url, known.fingerprint).put(fsm.key, fsm.to_bytes())
    backend = MaskBackend(known, GrammarLoader(known, url), PADDED)
    try:
        assert backend.allocate_token_bitmask(3).shape == (3, -(-PADDED // 32))
        grammar = backend.compile_grammar(None, f"{SCHEME}{fsm.key}?min_tokens=3", {END})
        assert grammar.accept_tokens("r", list(b"ab")) and row(grammar) == {ord("a"), ord("b")}
        for text in ('{"type": "object"}', SCHEME + "0" * 64):
            with pytest.raises(ValueError, match=r"Turnstile's plugin|grammar_not_found"):
                backend.compile_grammar(None, text, {END})
    finally:
        backend.destroy()
