"""A numeric witness of token masks: 17 tokens, the automaton of one retrieval call, and a model of fixed logits.

The eleven assertions of the published witness hold for our TokenFSM and sampler, and its numbers are exact.
"""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from py_mini_racer import MiniRacer
from torch import Tensor, nn

from deployments.explorer import PAGE
from gpu_workers.guided.mask_loss import rejection_mass
from gpu_workers.model.output_head import OutputHead
from gpu_workers.request import SamplingParameters
from gpu_workers.sampling.allowed_tokens import AllowedTokens, read_row
from gpu_workers.sampling.logprobs import reports
from gpu_workers.sampling.sampler import Draw, Sampler
from grammar_workers import TokenFSM, Vocabulary, compile_grammar

TOKENS = [
    *["{", "}", ":", ",", '"tool"', '"source"', '"k"', '"retrieve"', '"lookup"', '"docs"', '"tickets"', "1", "2"],
    *['"DROP"', '"extra"', "true", "<eos>"],
]
"""The position is the token ID; the last one is the end token."""
END = len(TOKENS) - 1
CALL = [
    *[["{"], ['"tool"'], [":"], ['"retrieve"', '"lookup"'], [","], ['"source"'], [":"], ['"docs"', '"tickets"']],
    *[[","], ['"k"'], [":"], ["1", "2"], ["}"]],
]
"""The tokens that lead from state i to state i + 1; the end token follows in the last state."""
RETRIEVE_TWO = [
    *["{", '"tool"', ":", '"retrieve"', ",", '"source"', ":", '"docs"', ",", '"k"', ":", "2", "}", "<eos>"],
]
PREFERRED = {3: '"retrieve"', 7: '"docs"', 11: "2"}
SPARSE_LIMITS = pytest.mark.parametrize("sparse_limit", [0, 256], ids=["dense", "sparse"])

HEAD = OutputHead(nn.Identity(), len(TOKENS), separable=False)
"""The hidden states are the logits."""


def ids(*texts: str) -> list[int]:
    return [TOKENS.index(text) for text in texts]


def call_fsm(*more: dict[str, Any]) -> TokenFSM:
    """Return the automaton of CALL, with `more` transitions, over the 17 tokens."""
    transitions = [{"from": i, "to": i + 1, "tokens": ids(*texts)} for i, texts in enumerate(CALL)]
    specification = {
        "type": "automaton", "initial": 0, "accepting": [len(CALL)], "transitions": [*transitions, *more],
    }  # fmt: skip
    vocabulary = Vocabulary([*(text.encode() for text in TOKENS[:END]), None], [END])
    return compile_grammar(specification, vocabulary)


def states(fsm: TokenFSM) -> list[int]:
    """Return the states 0 to 14 of the witness as `fsm` numbers them."""
    found = [fsm.initial_state]
    for text in RETRIEVE_TWO:
        found.append(fsm.next_state(found[-1], TOKENS.index(text)))
    return found


def logits(step: int, profile: str) -> Tensor:
    """Return the model's logits float64 [1, 17] in state `step` of the witness."""
    row = torch.full((1, len(TOKENS)), -2.0, dtype=torch.float64)
    row[0, ids(*CALL[step]) if step < len(CALL) else [END]] = 1.0
    if step in PREFERRED:
        row[0, ids(PREFERRED[step])] = 2.0
    if profile == "format-confused":
        row[0, ids('"DROP"', '"extra"')] = torch.tensor([5.0, 4.0], dtype=torch.float64)
    if profile == "semantic-mismatch" and step == 7:
        row[0, ids('"tickets"', '"docs"')] = torch.tensor([5.0, 1.0], dtype=torch.float64)
    return row


def read(fsm: TokenFSM, state: int, sparse_limit: int = 256) -> AllowedTokens:
    return read_row(fsm.allowed_mask(state), [END], sparse_limit)


def draw_one(row: Tensor, allowed: AllowedTokens | None, position: int = 0, **settings: Any) -> tuple[Draw, int]:
    """Return the draw of our sampler and its token; greedy by default."""
    draw = Draw(SamplingParameters(**{"seed": 1, "temperature": 0.0, **settings}), 0, position, allowed)
    return draw, Sampler(HEAD).sample(row, [draw])[0]


def decode(profile: str, fsm: TokenFSM, *, constrained: bool = True, sparse_limit: int = 256) -> tuple[list[str], bool]:
    """Return the tokens of a greedy decoding, and whether it was accepted."""
    state, output = fsm.initial_state, []
    while state not in (-1, fsm.end_state):
        allowed = read(fsm, state, sparse_limit) if constrained else None
        _, token = draw_one(logits(len(output), profile), allowed, len(output))
        output.append(TOKENS[token])
        state = fsm.next_state(state, token)
    return output, state == fsm.end_state


@SPARSE_LIMITS
def test_the_eleven_assertions(sparse_limit: int) -> None:
    fsm = call_fsm()
    state = states(fsm)
    assert fsm.allowed_tokens(state[0]) == set(ids("{"))
    assert fsm.allowed_tokens(state[3]) == set(ids('"retrieve"', '"lookup"'))
    assert fsm.allowed_tokens(state[13]) == {END}

    bad, accepted = decode("format-confused", fsm, constrained=False)
    assert accepted is False
    assert bad[0] == '"DROP"'

    good, accepted = decode("format-confused", fsm, sparse_limit=sparse_limit)
    assert accepted is True
    assert good == RETRIEVE_TWO

    row, allowed = logits(3, "format-confused"), read(fsm, state[3], sparse_limit)
    draws = [Draw(SamplingParameters(seed=1), 0, position, allowed) for position in range(500)]
    assert TOKENS.index('"DROP"') not in Sampler(HEAD).sample(row.expand(500, -1), draws)
    assert rejection_mass(HEAD, row[0], allowed) > 0.90

    mismatch, accepted = decode("semantic-mismatch", fsm, sparse_limit=sparse_limit)
    assert accepted is True
    assert mismatch[mismatch.index('"source"') + 2].strip('"') == "tickets"


@SPARSE_LIMITS
def test_the_numbers_of_one_step(sparse_limit: int) -> None:
    """In state 3 two of 17 tokens are left: 95 % of the probability is rejected, and the ratio e : 1 is kept."""
    fsm = call_fsm()
    row, allowed = logits(3, "format-confused"), read(fsm, states(fsm)[3], sparse_limit)
    draw, token = draw_one(row, allowed, logprobs=5, diagnostics=True)
    (report,) = reports(HEAD, row, [draw], [token])
    assert report is not None and report.diagnostics is not None
    kept = math.exp(2) + math.exp(1)
    rejected = 1 - kept / (kept + math.exp(5) + math.exp(4) + 13 * math.exp(-2))
    assert report.diagnostics.rejection_mass == pytest.approx(rejected, abs=1e-12)
    assert rejection_mass(HEAD, row[0], allowed) == pytest.approx(rejected, abs=1e-12)
    assert rejected == pytest.approx(0.95296, abs=1e-5)
    shares = {TOKENS[one.token_id]: math.exp(one.logprob) for one in report.top}
    assert shares == pytest.approx({'"retrieve"': math.e / (math.e + 1), '"lookup"': 1 / (math.e + 1)})
    assert [TOKENS[one.token_id] for one in report.diagnostics.raw_choices[:2]] == ['"DROP"', '"extra"']


@SPARSE_LIMITS
def test_top_p_is_taken_of_what_the_mask_left(sparse_limit: int) -> None:
    """Of all tokens, top-p 0.5 keeps `"DROP"` alone, which is not allowed; of the allowed ones, `"retrieve"`."""
    fsm = call_fsm()
    row, allowed = logits(3, "format-confused"), read(fsm, states(fsm)[3], sparse_limit)
    settings = {"temperature": 1.0, "top_p": 0.5}
    for position in range(50):
        assert TOKENS[draw_one(row, None, position, **settings)[1]] == '"DROP"'
        assert TOKENS[draw_one(row, allowed, position, **settings)[1]] == '"retrieve"'


def test_a_transition_into_a_dead_end_is_not_allowed() -> None:
    fsm = call_fsm({"from": 1, "to": 20, "tokens": ids('"extra"')}, {"from": 20, "to": 20, "tokens": ids("true")})
    second = fsm.next_state(fsm.initial_state, TOKENS.index("{"))
    assert fsm.allowed_tokens(second) == set(ids('"tool"'))
    assert any("20" in note for note in fsm.notes)


class CheckCounts:
    """Counts token checks along decodings: of every token at every step, and of every token once for each state."""

    def __init__(self) -> None:
        self.naive = self.cached = self.steps = self.made = 0

    def follow(self, fsm: TokenFSM, texts: list[str]) -> list[int]:
        """Compare both masks at each step of `texts`; return the states."""
        state, followed = fsm.initial_state, []
        for text in texts:
            followed.append(state)
            self.steps += 1
            if fsm.known_mask(state) is None:
                self.made += 1
                self.cached += len(TOKENS)
            self.naive += len(TOKENS)
            checked = {token for token in range(len(TOKENS)) if fsm.next_state(state, token) >= 0}
            assert checked == fsm.allowed_tokens(state)
            state = fsm.next_state(state, TOKENS.index(text))
        return followed


def test_naive_and_cached_checks() -> None:
    """One decoding visits 14 states once: 238 checks either way. Three are 714 naive checks, and 238 cached ones."""
    fsm, counts, followed = call_fsm(), CheckCounts(), []
    expected = {"schema-friendly": (238, 238), "format-confused": (476, 238), "semantic-mismatch": (714, 238)}
    for profile, (naive, cached) in expected.items():
        # Greedy decoding over an automaton of its own: reading masks here would fill the cache that is counted.
        texts, _ = decode(profile, call_fsm())
        followed += counts.follow(fsm, texts)
        assert (counts.naive, counts.cached) == (naive, cached)
    assert (counts.steps, counts.made) == (42, 14)

    # The explorer says the same of these steps.
    context = MiniRacer()
    context.eval((PAGE / "steps.js").read_text())
    steps = json.dumps([{"state": state} for state in followed])
    words = str(context.eval(f"checksOf({steps})"))
    assert "each of 42 steps" in words
    assert "14 mask rows" in words and "28 look-ups" in words
