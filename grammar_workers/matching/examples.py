"""Example outputs of a compiled grammar, drawn from its automaton without any model."""

from __future__ import annotations

import random
from collections.abc import Iterator

from grammar_workers.matching.token_fsm import TokenFSM
from grammar_workers.types import TokenId

_CLOSING = 0.25
"""Chance of a step on the shortest way to an end: a uniform draw would hardly ever find the one closing quote."""
_STOPPING = 0.5
"""Chance of ending where the text may end."""


def draw_examples(fsm: TokenFSM, count: int, *, seed: int = 0, max_tokens: int = 60) -> Iterator[bytes]:
    """The shortest output first, then random walks: at most `count` different outputs, fewer of a small language.

    A walk takes allowed tokens, printable ASCII where there is any, and after `max_tokens` the shortest way to an end,
    so every example is complete. Equal seeds give equal examples. Special tokens, which add no text, are not shown.
    """
    generator = random.Random(seed)
    seen: set[bytes] = set()
    for attempt in range(8 * count):
        tokens = _walk(fsm, generator, max_tokens if attempt else 0)
        example = b"".join(map(fsm.vocabulary.token_bytes, tokens))
        if example not in seen:
            seen.add(example)
            yield example
        if len(seen) == count:
            return


def _walk(fsm: TokenFSM, generator: random.Random, max_tokens: int) -> list[TokenId]:
    tokens: list[TokenId] = []
    state = fsm.initial_state
    while len(tokens) < max_tokens:
        if fsm.only_ends(state) or (fsm.is_terminal(state) and generator.random() < _STOPPING):
            return tokens
        token = _step(fsm, state, generator)
        tokens.append(token)
        state = fsm.next_state(state, token)
    return tokens + fsm.shortest_completion(state)


def _step(fsm: TokenFSM, state: int, generator: random.Random) -> TokenId:
    if not fsm.is_terminal(state) and generator.random() < _CLOSING:
        return fsm.shortest_completion(state)[0]
    allowed = sorted(fsm.allowed_tokens(state).difference(fsm.vocabulary.eos_token_ids))
    texts = {token: fsm.vocabulary.token_bytes(token) for token in allowed}
    readable = [token for token, text in texts.items() if text and text.isascii() and text.decode().isprintable()]
    return generator.choice(readable or allowed)
