"""The automaton around a state, as diagnostics tell it: complete where it is small, cut and counted where it is not."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from deployments.openai.logprobs import AutomatonGraph
from gpu_workers.guided.automaton_view import MOST_STATES, MOST_SUCCESSORS, MOST_TOKENS, add_surroundings
from grammar_workers import TokenFSM, Vocabulary, compile_grammar
from grammar_workers.errors import LimitExceededError

END = 256
VOCABULARY = Vocabulary([*(bytes([byte]) for byte in range(256)), b"", b"ab", b"abc"], [END], {"<|end|>": END})


def told_of(pattern: str, drawn: int, *likely: int, after: bytes = b"") -> tuple[TokenFSM, dict[str, Any]]:
    """The automaton, and the diagnostics of a step that drew `drawn` after the text `after`; few states are visited."""
    fsm = compile_grammar({"type": "regex", "pattern": pattern}, VOCABULARY)
    state = fsm.initial_state
    for byte in after:
        state = fsm.next_state(state, byte)
    before = fsm.state_count
    choices = [{"token_id": token} for token in (drawn, *likely)]
    report: dict[str, Any] = {"token_id": drawn, "diagnostics": {"state": state, "masked_choices": choices}}
    add_surroundings([report], fsm, VOCABULARY)
    assert fsm.state_count <= before + (MOST_STATES + 256 if state == fsm.initial_state else 0)
    return fsm, report["diagnostics"]


def around(pattern: str, drawn: int, *likely: int, after: bytes = b"") -> dict[str, Any]:
    """The surroundings in such diagnostics."""
    automaton: dict[str, Any] = told_of(pattern, drawn, *likely, after=after)[1]["automaton"]
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
        raise LimitExceededError("too many stacks (fixed limit max_fsm_bytes)")

    monkeypatch.setattr(TokenFSM, "successors", full)
    assert around("a", ord("a")) is None


@pytest.mark.parametrize("pattern", ["(ab)*c?", "[a-z]{3}", "yes|no|ja", "é+(a|bc)*", ".*", "a?"])
def test_a_small_automaton_is_told_whole_at_its_beginning(pattern: str) -> None:
    """Against steps of every token from every state that is told."""
    fsm, told = told_of(pattern, 97)
    graph = told["graph"]
    states = [one["state"] for one in graph["states"]]
    assert states[0] == fsm.initial_state and len(states) == len(set(states))
    edges = {(edge["source"], edge["target"]): edge for edge in graph["edges"]}
    counts: dict[tuple[int, int], int] = {}
    for state, token in itertools.product(states, range(VOCABULARY.size)):
        target = fsm.next_state(state, token)
        if target >= 0 and token != END:
            counts[state, target] = counts.get((state, target), 0) + 1
    assert {pair: len(edge["tokens"]) + edge["more_tokens"] for pair, edge in edges.items()} == counts
    assert {state for pair in counts for state in pair} <= set(states)
    assert [one["terminal"] for one in graph["states"]] == [fsm.is_terminal(state) for state in states]
    assert AutomatonGraph.model_validate(graph).model_dump() == graph


def test_a_large_automaton_and_later_steps_have_no_graph() -> None:
    assert told_of("a{30}", 97)[1]["graph"] is None
    assert told_of(f"a{{{MOST_STATES - 1}}}", 97)[1]["graph"] is not None
    assert told_of("ab", 98, after=b"a")[1]["graph"] is None
