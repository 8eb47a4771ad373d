"""The automaton around each state of a generation, for people who look at one: a small part of a large graph.

Every edge of a byte automaton is the edge of a token of one byte, so these tokens show where one can go from a state;
longer tokens are paths over several edges, and only the likely ones among them are shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from gpu_workers.sampling.logprobs import TokenNames
from grammar_workers import GrammarError, TokenFSM, Vocabulary
from grammar_workers.types import Successor

MOST_SUCCESSORS = 6
MOST_TOKENS = 4
"""Of the successors of a state, and of the tokens that lead to one of them: the rest is only counted."""
MOST_STATES = 24
"""Of an automaton that is told whole."""


def add_surroundings(reports: Iterable[dict[str, Any]], fsm: TokenFSM, vocabulary: Vocabulary) -> None:
    """Adds `automaton` to the diagnostics of each report: the state's surroundings, None beyond the FSM's budget.

    And `graph` where the state is the initial one: the whole automaton, None unless it is small. Takes up to some 260
    steps of the FSM per report and visits nothing, but for a graph's `MOST_STATES`; call it off the engine's thread.
    """
    names = TokenNames(vocabulary)
    for report in reports:
        step = report["diagnostics"]
        likely = [report["token_id"], *(choice["token_id"] for choice in step["masked_choices"])]
        try:
            step["automaton"] = _surroundings(fsm, step["state"], likely, vocabulary, names)
            step["graph"] = _graph(fsm, vocabulary, names) if step["state"] == fsm.initial_state else None
        except GrammarError:
            step["automaton"] = step["graph"] = None


def _surroundings(
    fsm: TokenFSM, state: int, likely: Iterable[int], vocabulary: Vocabulary, names: TokenNames
) -> dict[str, Any]:
    tokens = dict.fromkeys([*likely, *vocabulary.eos_token_ids[:1], *vocabulary.single_bytes])
    found = fsm.successors(state, tokens)
    return {
        "terminal": fsm.is_terminal(state),
        "successors": [_described(one, names) for one in found[:MOST_SUCCESSORS]],
        "more_successors": max(0, len(found) - MOST_SUCCESSORS),
    }


def _graph(fsm: TokenFSM, vocabulary: Vocabulary, names: TokenNames) -> dict[str, Any] | None:
    """All states, breadth first, and all edges between them; None where there are more than `MOST_STATES`.

    Steps of single bytes find out cheaply that there are many; then every token is asked for where it leads.
    """
    states = [fsm.initial_state]
    for state in states:
        reached = (fsm.next_state(state, token) for token in vocabulary.single_bytes)
        states += dict.fromkeys(one for one in reached if one >= 0 and one not in states)
        if len(states) > MOST_STATES:
            return None
    edges = []
    for state in states:
        targets, places = fsm.targets(state)
        states += [target for target in targets if target not in states]
        if len(states) > MOST_STATES:
            return None
        for place, target in enumerate(targets):
            tokens = np.flatnonzero(places == place).tolist()
            tokens.sort(key=lambda token: len(vocabulary.token_bytes(token)) != 1)
            edges.append({"source": state, "target": target, **_some_of(tokens, names)})
    return {"states": [{"state": one, "terminal": fsm.is_terminal(one)} for one in states], "edges": edges}


def _described(successor: Successor, names: TokenNames) -> dict[str, Any]:
    tokens = _some_of(successor.token_ids, names)
    return {"state": successor.state, "terminal": successor.terminal, **tokens}


def _some_of(token_ids: Sequence[int], names: TokenNames) -> dict[str, Any]:
    """The first tokens, and how many more there are."""
    shown = [names.name(token_id) for token_id in token_ids[:MOST_TOKENS]]
    return {"tokens": shown, "more_tokens": len(token_ids) - len(shown)}
