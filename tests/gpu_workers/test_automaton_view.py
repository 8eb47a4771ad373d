"""The automaton around a state, as diagnostics tell it: complete where it is small, cut and counted where it is not."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_workers.guided.automaton_view import MOST_SUCCESSORS, MOST_TOKENS, add_surroundings
from grammar_workers import TokenFSM, Vocabulary, compile_grammar
from grammar_workers.errors import LimitExceededError

END = 256
VOCABULARY = Vocabulary([*(bytes([byte]) for byte in range(256)), b"", b"ab", b"abc"], [END], {"<|end|>": END})


def around(pattern: str, drawn: int, *likely: int, after: bytes = b"") -> dict[str, Any]:
    """What is told about a step that drew `drawn` after the text `after`; nothing is visited for it."""
    fsm = compile_grammar({"type": "regex", "pattern": pattern}, VOCABULARY)
    state = fsm.initial_state
    for byte in after:
        state = fsm.next_state(state, byte)
    before = fsm.state_count
    choices = [{"token_id": token} for token in (drawn, *likely)]
    report = {"token_id": drawn, "diagnostics": {"state": state, "masked_choices": choices}}
    add_surroundings([report], fsm, VOCABULARY)
    assert fsm.state_count == before
    automaton: dict[str, Any] = report["diagnostics"]["automaton"]  # type: ignore[index]
    return automaton


def texts(successor: dict[str, Any]) -> list[str]:
    return [token["text"] for token in successor["tokens"]]


def test_a_small_state_is_told_whole() -> None:
    told = around("(ab)*c?", 257, after=b"ab")
    assert told["terminal"] and told["more_successors"] == 0
    assert texts(told["successors"][0]) == ["ab"]
    assert {(text, one["terminal"]) for one in told["successors"] for text in texts(one)} == {
        ("ab", True),
        ("a", False),
        ("c", True),
        ("<|end|>", True),
    }


def test_the_token_drawn_comes_first_and_the_rest_is_counted() -> None:
    told = around("|".join(f"{letter}{i}" for i, letter in enumerate("ABCDEFGHIJ")) + "|[a-z]", ord("q"), ord("C"))
    assert texts(told["successors"][0])[0] == "q" and told["successors"][0]["more_tokens"] == 26 - MOST_TOKENS
    assert texts(told["successors"][1]) == ["C"]
    assert len(told["successors"]) == MOST_SUCCESSORS and told["more_successors"] == 11 - MOST_SUCCESSORS


def test_beyond_the_budget_of_the_grammar_there_is_nothing_to_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise LimitExceededError("too many stacks (limit max_fsm_bytes)")

    monkeypatch.setattr(TokenFSM, "successors", full)
    assert around("a", ord("a")) is None
