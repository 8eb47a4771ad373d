"""Helpers that run an automaton token by token and sample texts from it."""

from __future__ import annotations

import random
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from grammar_workers import TokenFSM
from grammar_workers.types import StateId, TokenId


def state_after(fsm: TokenFSM, tokens: Iterable[TokenId], state: StateId | None = None) -> StateId:
    """Return the state of an automaton after some tokens; -1 if one of them is disallowed.

    Args:
        fsm: The automaton.
        tokens: The tokens.
        state: State before the tokens; None: the initial state.
    """
    reached = fsm.initial_state if state is None else state
    for token in tokens:
        reached = fsm.next_state(reached, token)
    return reached


def allowed_tokens(fsm: TokenFSM, state: StateId) -> NDArray[np.intp]:
    """Return the IDs of all tokens that a state allows, ascending.

    Args:
        fsm: The automaton.
        state: The state.
    """
    return np.flatnonzero(np.unpackbits(fsm.allowed_mask(state).view(np.uint8), bitorder="little"))


def random_tokens(fsm: TokenFSM, rng: random.Random, longest: int) -> list[TokenId]:
    """Sample tokens uniformly from the masks, up to an end token or a limit. Then append the shortest completion.

    Args:
        fsm: The automaton.
        rng: Source of random numbers.
        longest: Maximum number of tokens before the completion.

    Returns:
        Token IDs of a complete text, without an end token.
    """
    state = fsm.initial_state
    tokens: list[TokenId] = []
    while len(tokens) < longest:
        token = int(rng.choice(allowed_tokens(fsm, state)))
        if token in fsm.vocabulary.eos_token_ids:
            return tokens
        tokens.append(token)
        state = fsm.next_state(state, token)
    return tokens + fsm.shortest_completion(state)


def text_of(fsm: TokenFSM, tokens: Iterable[TokenId]) -> str:
    """Return the text of tokens. UnicodeDecodeError is raised if their bytes are not UTF-8.

    Args:
        fsm: An automaton with the vocabulary of the tokens.
        tokens: The tokens.
    """
    return b"".join(map(fsm.vocabulary.token_bytes, tokens)).decode()
