"""The part of a grammar's automaton around each state of a generation, for display on the explorer page.

For each state, the next states after all one-byte tokens are searched. They cover every continuation of the text. A
longer token has the effect of several one-byte tokens, so only likely longer tokens are shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from gpu_workers.sampling.logprobs import TokenNames
from grammar_workers import GrammarError, TokenFSM, Vocabulary

# Maximum number of successors of a state that are listed. The others are counted.
MOST_SUCCESSORS = 6
# Maximum number of tokens that are listed per successor. The others are counted.
MOST_TOKENS = 4
# Maximum number of states of an automaton that is shown as a whole.
MOST_STATES = 24


def add_surroundings(reports: Iterable[dict[str, Any]], fsm: TokenFSM, vocabulary: Vocabulary) -> None:
    """Add to each token's report the part of the automaton around the grammar state in which the token was sampled.

    For each report, the automaton is advanced up to about 260 times, so call this function outside of the engine
    thread. Two fields are added to `report["diagnostics"]`:

    - `automaton`: dict with `terminal` (true if the output may end in the state), `successors` and `more_successors`
      (number of next states that are not listed). `successors` is a list of dicts, one per next state: `state`,
      `terminal`, `tokens` (some tokens that lead to it) and `more_tokens` (number of other tokens). None if the
      automaton exceeds a limit.
    - `graph`: dict with all `states` (dicts with `state` and `terminal`) and `edges` (dicts with `source`, `target`,
      `tokens` and `more_tokens`) of the automaton. None if the state is not the initial one, if the automaton has more
      than `MOST_STATES` states, or if it exceeds a limit.

    Args:
        reports: Reports with diagnostics, from `TokenNames.describe`; changed in place.
        fsm: Automaton of the generation.
        vocabulary: Vocabulary of the model.
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
        "successors": [
            {"state": one.state, "terminal": one.terminal, **_some_of(one.token_ids, names)}
            for one in found[:MOST_SUCCESSORS]
        ],
        "more_successors": max(0, len(found) - MOST_SUCCESSORS),
    }


def _graph(fsm: TokenFSM, vocabulary: Vocabulary, names: TokenNames) -> dict[str, Any] | None:
    """Return all states, breadth first, and their edges; None with more than `MOST_STATES` states.

    Steps of single bytes detect a large automaton cheaply. After that, all tokens are followed.

    Returns:
        `states` and `edges` as plain data, or None.
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


def _some_of(token_ids: Sequence[int], names: TokenNames) -> dict[str, Any]:
    """Return the names of the first tokens, and the number of the others."""
    shown = [names.name(token_id) for token_id in token_ids[:MOST_TOKENS]]
    return {"tokens": shown, "more_tokens": len(token_ids) - len(shown)}
