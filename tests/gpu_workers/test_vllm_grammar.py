"""One request's grammar as vLLM drives it: windows of drafts, rolled back; other ends than the model's own."""

from __future__ import annotations

import math
import random
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from gpu_workers.guided.output_budget import completion_within
from gpu_workers.request import RequestError
from gpu_workers.vllm.backend import GrammarLoader, MaskBackend, new_bitmask
from gpu_workers.vllm.grammar import RequestGrammar
from gpu_workers.vllm.reference import SCHEME, Reference
from grammar_workers import TokenFSM, Vocabulary, compile_grammar
from grammar_workers.artifacts.store import open_store
from grammar_workers.options import Limits

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
    grammar, fsm = RequestGrammar(automaton(pattern), {END}), automaton(pattern)
    accepted: list[int] = []
    while not grammar.is_terminated() and len(accepted) < 12:
        proposed = [choose.randrange(261) for _ in range(choose.randrange(4))]
        drafts = grammar.validate_tokens(grammar.with_forced_tokens(proposed, forced))
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


def test_forced_tokens_replace_shorter_drafts() -> None:
    """What the proposer has after them stays, and what its drafts are worth is left to `validate_tokens`."""
    fsm = automaton("x987[yz]")
    forced = list(b"x987")
    for most, tokens, drafts in [
        (8, [7, 8], forced),
        (8, [], forced),
        (2, [], forced[:2]),
        (8, forced[:2], forced),
        (8, [*forced[:3], ord("y")], forced),
        (8, [*forced, ord("y"), END, 7], [*forced, ord("y"), END, 7]),
        (2, [*forced, ord("a")], [*forced, ord("a")]),
        (0, [7, 8], [7, 8]),
    ]:
        grammar = RequestGrammar(fsm, {END})
        assert grammar.with_forced_tokens(tokens, most) == drafts
        allowed = grammar.validate_tokens(tokens)
        assert allowed == tokens[: len(allowed)]
    assert grammar.accept_tokens("r", forced)
    assert grammar.validate_tokens([ord("y"), END]) == [ord("y"), END]
    assert grammar.accept_tokens("r", [ord("y"), END]) and grammar.with_forced_tokens([], 4) == []


def test_a_token_that_cannot_come_first_is_not_valid_where_others_are_forced() -> None:
    """vLLM 0.33 masks the tokens that end reasoning where `validate_tokens` returns nothing for them."""
    grammar = RequestGrammar(automaton("x987"), {END})
    assert grammar.validate_tokens([ord("a")]) == []


def test_tokens_after_the_end_are_taken_back_like_others() -> None:
    """vLLM accepts them where it is told to ignore end tokens, and takes back as many as it accepted."""
    for settings in ({}, {"max_tokens": 4}):
        grammar = RequestGrammar(automaton("ab?"), {END}, **settings)
        first = row(grammar)
        assert grammar.accept_tokens("r", [ord("a")])
        before = row(grammar)
        assert grammar.accept_tokens("r", [END, ord("b"), 7]) and grammar.is_terminated()
        assert grammar.accept_tokens("r", [ord("b")]) and grammar.validate_tokens([ord("b")]) == []
        for many in (0, -1, 3):
            grammar.rollback(many)
            assert grammar.is_terminated()
        grammar.rollback(1)
        assert not grammar.is_terminated() and row(grammar) == before
        grammar.rollback(1)
        assert row(grammar) == first
        assert not grammar.accept_tokens("r", [ord("b"), END]) and not grammar.is_terminated()


class Model:
    """The contract of vLLM's `StructuredOutputGrammar` by a list of tokens."""

    def __init__(self, fsm: TokenFSM, most: int | None) -> None:
        self._fsm = fsm
        self._most = most
        self.tokens: list[int] = []

    def state(self, tokens: list[int]) -> int:
        """The state after `tokens`; what follows an end token changes nothing."""
        state = self._fsm.initial_state
        for token in tokens:
            state = self._fsm.next_state(state, token)
            if state == self._fsm.end_state:
                break
        return state

    def is_terminated(self) -> bool:
        return self.state(self.tokens) == self._fsm.end_state

    def allowed(self, tokens: list[int]) -> set[int]:
        state = self.state(tokens)
        if state == self._fsm.end_state:
            return set()
        if self._most is None:
            return set(self._fsm.allowed_tokens(state))
        return fitting(self._fsm, state, self._most - len(tokens))

    def valid(self, tokens: list[int]) -> list[int]:
        many = 0
        while many < len(tokens) and tokens[many] in self.allowed(self.tokens + tokens[:many]):
            many += 1
        return tokens[:many]

    def accept(self, tokens: list[int]) -> bool:
        valid = self.valid(tokens)
        if len(valid) < len(tokens) and self.state(self.tokens + valid) != self._fsm.end_state:
            return False
        self.tokens += tokens
        return True


@pytest.mark.parametrize("seed", range(60))
def test_any_sequence_of_calls_is_that_of_a_list_of_tokens(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # Rows would be narrower on a busy machine.
    monkeypatch.setattr("gpu_workers.guided.output_budget._SLOW_S", math.inf)
    choose = random.Random(seed)
    known = Vocabulary([*(bytes([byte]) for byte in range(256)), None], [END])
    pattern = choose.choice(["ab?", "x987[yz]", "[ab]{0,4}", "(ab|ba)*c", "a*"])
    fsm = compile_grammar({"type": "regex", "pattern": pattern}, known)
    most = choose.choice([None, fewest(fsm, fsm.initial_state) + choose.randrange(3)])
    grammar, model = RequestGrammar(fsm, {END}, max_tokens=most), Model(fsm, most)
    for _ in range(60):
        tokens: list[int] = []
        for _ in range(choose.randrange(4)):
            allowed = sorted(model.allowed(model.tokens + tokens))
            tokens.append(
                choose.choice(allowed) if allowed and choose.random() < 0.8 else choose.choice([*b"abx9", END])
            )
        call = choose.choice(["accept", "accept", "validate", "forced", "rollback", "reset"])
        if call == "accept":
            assert grammar.accept_tokens("r", tokens) == model.accept(tokens)
        elif call == "validate":
            assert grammar.validate_tokens(tokens) == model.valid(tokens)
        elif call == "forced":
            drafts = grammar.validate_tokens(grammar.with_forced_tokens(tokens, 3))
            assert drafts == model.valid(drafts) and drafts[: len(model.valid(tokens))] == model.valid(tokens)
        elif call == "rollback":
            many = choose.randrange(min(4, len(model.tokens)) + 1)
            grammar.rollback(many)
            del model.tokens[len(model.tokens) - many :]
        elif choose.random() < 0.1:
            grammar.reset()
            model.tokens.clear()
        assert grammar.is_terminated() == model.is_terminated()
        if not model.is_terminated():  # vLLM fills no row after the end
            assert row(grammar) == model.allowed(model.tokens)


def windows(grammar: RequestGrammar, steps: int, choose: random.Random) -> int:
    """Steps of vLLM's manager and scheduler: drafts, a row before each, back, what came true; how many were accepted.

    Returns where the request ends. vLLM's engine dies of an exception, and of a draft that is valid and not accepted.
    """
    for accepted in range(steps):
        bitmask = torch.zeros((1, 10), dtype=torch.int32)
        proposed = [choose.choice(b"ab(c") for _ in range(choose.randrange(4))]
        drafts = grammar.validate_tokens(grammar.with_forced_tokens(proposed, accepted % 3))
        advanced = 0
        for draft in drafts:
            grammar.fill_bitmask(bitmask, 0)
            if not grammar.is_terminated():
                assert grammar.accept_tokens("r", [draft])
                advanced += 1
        grammar.fill_bitmask(bitmask, 0)
        grammar.rollback(advanced)
        grammar.fill_bitmask(bitmask, 0)
        if not grammar.accept_tokens("r", [choose.choice(b"ab(")]):
            return accepted
    return steps


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("budget", [None, 1 << 16])
def test_an_automaton_that_grows_past_its_limits_ends_its_request_alone(
    seed: int, budget: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Return stacks without end, in an automaton that another request follows, too."""
    monkeypatch.setattr("gpu_workers.guided.output_budget._SLOW_S", math.inf)  # on a busy machine it would stop looking
    whole = compile_grammar(specification('root ::= ("(" root | "a" root | "b" root "c")?'), vocabulary())
    fsm = TokenFSM.from_bytes(
        whole.to_bytes(), whole.vocabulary, limits=Limits(max_fsm_bytes=whole.nbytes + (40_000 if budget else 90_000))
    )
    other = RequestGrammar(fsm, {END})
    assert other.accept_tokens("s", list(b"ba"))
    before = row(other)
    assert other.accept_tokens("s", list(b"c"))  # a way that is known then
    after = row(other)
    other.rollback(1)
    grammar = RequestGrammar(fsm, {END}, max_tokens=budget)
    assert 0 < windows(grammar, 2000, random.Random(seed)) < 2000
    assert grammar.failed and grammar.is_terminated()
    assert not grammar.accept_tokens("r", [ord("a")]) and grammar.validate_tokens([ord("a")]) == []
    assert row(other) == before and other.accept_tokens("s", list(b"c")) and row(other) == after
    assert not other.is_terminated()


GROWING = [
    r"a{0,4}(b123456789|)",
    r"[ab]*(12)?x{0,9}",
    r"(ab|bc)+c",
    r"(a|bcbcbc){2,4}",
    r"[^x]{3,5}",
    r"(a(b(c|12))*)?",
]


NESTED = 'root ::= "a" root "b" | "a" root "12b" | "b"'


def specification(text: str) -> dict[str, str]:
    if "::=" in text:
        return {"type": "grammar", "syntax": "gbnf", "text": text}
    return {"type": "regex", "pattern": text}


def fewest(fsm: TokenFSM, state: int) -> int:
    """How many tokens there are on a shortest way to an end, by breadth."""
    distance, level, seen = 0, {state}, {state}
    while not any(map(fsm.is_terminal, level)):
        level = {fsm.next_state(one, token) for one in level for token in fsm.allowed_tokens(one)} - seen
        seen |= level
        distance += 1
    return distance


def fitting(fsm: TokenFSM, state: int, left: int) -> set[int]:
    """What may come where `left` tokens are left, an end token not counted."""
    return {
        token for token in fsm.allowed_tokens(state) if token == END or fewest(fsm, fsm.next_state(state, token)) < left
    }


@pytest.mark.parametrize("pattern", [*GROWING, NESTED])
@pytest.mark.parametrize("pairs", [False, True])
def test_within_a_budget_only_what_can_still_be_completed_is_allowed(
    pattern: str, pairs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows of drafts and rollbacks included. Completions are looked up by bytes: with tokens of several, the fewest
    tokens may be fewer, and rows are allowed to be narrower.
    """
    # Rows would be narrower on a busy machine.
    monkeypatch.setattr("gpu_workers.guided.output_budget._SLOW_S", float("inf"))
    known = vocabulary() if pairs else Vocabulary([*(bytes([byte]) for byte in range(256)), None], [END])
    fsm = compile_grammar(specification(pattern), known)
    shortest = fewest(fsm, fsm.initial_state)
    for seed in range(12):
        choose = random.Random(seed)
        most = shortest + seed % 6 + pairs
        grammar = RequestGrammar(fsm, {END}, max_tokens=most)
        accepted: list[int] = []
        state = fsm.initial_state
        while not grammar.is_terminated():
            for depth in range(choose.randrange(4), -1, -1):
                state_then, window = state, []
                for _ in range(depth):
                    token = choose.choice(sorted(row(grammar)))
                    if token == END:
                        break
                    assert grammar.validate_tokens([token, 300]) == [token]
                    assert grammar.accept_tokens("r", [token])
                    state_then = fsm.next_state(state_then, token)
                    window.append(token)
                left = most - len(accepted) - len(window)
                expected, allowed = fitting(fsm, state_then, left), row(grammar)
                assert allowed <= expected and allowed
                if not pairs:
                    assert allowed == expected
                for token in choose.sample(range(259), 8):
                    assert grammar.validate_tokens([token]) == ([token] if token in allowed else [])
                    if token not in allowed:
                        assert not grammar.accept_tokens("r", [token])
                grammar.rollback(len(window))
            # What costs most is liked best.
            allowed = row(grammar)
            token = max(allowed - {END} or {END}, key=lambda one: fewest(fsm, max(fsm.next_state(state, one), 0)))
            if choose.random() < 0.5:
                token = choose.choice(sorted(allowed))
            assert grammar.accept_tokens("r", [token])
            state = fsm.next_state(state, token)
            accepted.append(token)
        assert accepted[-1] == END and len(accepted) - 1 <= most
        grammar.reset()
        assert row(grammar) <= fitting(fsm, fsm.initial_state, most)


def test_a_budget_that_nothing_fits_into_is_refused() -> None:
    fsm = automaton("x{5}")
    for emitted, most in (([], 4), ([ord("x")] * 3, 4)):
        with pytest.raises(RequestError, match="`finish_within_budget`: the shortest output found needs"):
            RequestGrammar(fsm, {END}, emitted_token_ids=emitted, max_tokens=most)
    grammar = RequestGrammar(fsm, {END}, max_tokens=5)
    assert grammar.accept_tokens("r", [ord("x")] * 5) and row(grammar) == {END}


def test_a_budget_leaves_what_min_tokens_and_other_ends_ask_for() -> None:
    grammar = RequestGrammar(automaton("a*"), {END, OTHER_END}, min_tokens=2, max_tokens=3)
    for _ in range(2):
        assert row(grammar) == {ord("a")} and grammar.accept_tokens("r", [ord("a")])
    assert row(grammar) == {ord("a"), END, OTHER_END} and grammar.accept_tokens("r", [ord("a")])
    assert row(grammar) == {END, OTHER_END}
    never = RequestGrammar(automaton("a*"), {END}, min_tokens=9, max_tokens=1)
    assert never.accept_tokens("r", [ord("a")]) and row(never) == {END}


def test_a_grammar_that_is_slow_to_look_up_follows_its_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up = []

    def look_up(fsm: TokenFSM, state: int, limit: int) -> list[int] | None:
        looked_up.append(state)
        return completion_within(fsm, state, limit)

    monkeypatch.setattr("gpu_workers.guided.output_budget._SLOW_S", 0.0)
    monkeypatch.setattr("gpu_workers.guided.output_budget.completion_within", look_up)
    fsm = automaton("[ab]{2}(c|d1|e22){2,9}")
    grammar = RequestGrammar(fsm, {END}, max_tokens=9)
    assert row(grammar) >= {ord("a"), ord("b")}  # the last one that anything was looked up for
    before, tokens = len(looked_up), []
    while not grammar.is_terminated():
        allowed = row(grammar)
        tokens.append(max(allowed - {END} or {END}))
        assert grammar.accept_tokens("r", tokens[-1:])
    assert 0 < before == len(looked_up)
    assert len(tokens) <= 10 and re.fullmatch("[ab]{2}(c|d1|e22){2,9}", spelled(tokens[:-1]).decode())


@pytest.mark.parametrize("seed", range(6))
def test_an_output_goes_on_where_it_was_broken_off(seed: int) -> None:
    """With the tokens that came out already: the same rows as without the break, wherever it was."""
    choose = random.Random(seed)
    pattern = choose.choice(GROWING)
    most = fewest(automaton(pattern), automaton(pattern).initial_state) + 5
    settings = choose.choice([{}, {"min_tokens": 3}, {"max_tokens": most}, {"min_tokens": 2, "max_tokens": most}])
    whole = RequestGrammar(automaton(pattern), {END}, **settings)
    tokens: list[int] = []
    while not whole.is_terminated() and len(tokens) < 10:
        rest = RequestGrammar(automaton(pattern), {END}, emitted_token_ids=tokens, **settings)
        assert row(rest) == row(whole)
        ahead = choose.choice(sorted(row(rest)))
        assert rest.accept_tokens("r", [ahead])
        rest.rollback(1)
        assert row(rest) == row(whole)
        rest.reset()
        assert row(rest) == row(whole)
        tokens.append(ahead)
        assert whole.accept_tokens("r", [ahead])


@pytest.mark.parametrize("emitted", [[ord("b")], [ord("a"), END], [END, ord("a")], [-1], [9999], [257]])
def test_emitted_tokens_that_cannot_have_come_out(emitted: list[int]) -> None:
    with pytest.raises(ValueError, match="emitted before"):
        RequestGrammar(automaton("a{0,3}"), {END}, emitted_token_ids=emitted)


def test_references_say_what_a_request_adds() -> None:
    key = "0a" * 32
    for reference in (Reference(key), Reference(key, 3), Reference(key, 3, (12, 99, 4), 0), Reference(key, 0, (7,))):
        assert Reference.parse(str(reference)) == reference
    assert str(Reference(key, emitted_token_ids=(12, 99, 4))) == f"turnstile:{key}?emitted=12,99,4"


@pytest.mark.parametrize(
    "query",
    ["?emitted=", "?emitted=1,,2", "?emitted=-1", "?max_tokens=x", "?min_tokens=1&min_tokens=2", "?a=1", "?min_tokens"]
    + ["?", "?&", "?max_tokens=", "?max_tokens=²", "?max_tokens=1_0", "?max_tokens=" + "9" * 5000],
)
def test_malformed_references_are_refused_by_name(query: str) -> None:
    if query == "?":
        assert Reference.parse(SCHEME + "0" * 64 + query) == Reference("0" * 64)
        return
    with pytest.raises(ValueError, match="reference"):
        Reference.parse(SCHEME + "0" * 64 + query)
    for text in ("0" * 64, SCHEME, SCHEME + "0" * 63, SCHEME + "A" * 64, SCHEME + "../" * 20):
        with pytest.raises(ValueError, match=r"reference|key"):
            Reference.parse(text + query)


def test_a_bitmask_opens_no_context_on_a_gpu_that_others_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """With workers of their own vLLM's engine core sees the GPU and does not use it; pinned memory would."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    bitmask = new_bitmask(2, 40)
    assert bitmask.eq(-1).all() and bitmask.shape == (2, 2) and not torch.cuda.is_initialized()


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
        grammar = backend.compile_grammar(None, f"{SCHEME}{fsm.key}?emitted=97&max_tokens=2", {END})
        assert row(grammar) == {ord("a"), ord("b"), 258} and grammar.accept_tokens("r", [258])
        assert row(grammar) == {END}
        for text, message in (
            ('{"type": "object"}', "Turnstile's plugin"),
            (SCHEME + "0" * 64, "grammar_not_found"),
            (f"{SCHEME}{fsm.key}?max_tokens=1", "budget_too_small"),
            (f"{SCHEME}{fsm.key}?emitted=1", "emitted before"),
            (f"{SCHEME}{fsm.key}?other=1", "other"),
        ):
            with pytest.raises(ValueError, match=message):
                backend.compile_grammar(None, text, {END})
    finally:
        backend.destroy()
