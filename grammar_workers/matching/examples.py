"""Example outputs of a compiled grammar, sampled from its automaton without a model."""

from __future__ import annotations

import random
from collections.abc import Iterator

from grammar_workers.matching.token_fsm import TokenFSM
from grammar_workers.types import TokenId

# Probability of a step on the shortest completion. A uniform sample would rarely find the single closing quote.
_CLOSING = 0.25
# Probability of ending in a terminal state.
_STOPPING = 0.5


def draw_examples(fsm: TokenFSM, count: int, *, seed: int = 0, max_tokens: int = 60) -> Iterator[bytes]:
    """Sample complete example outputs: the shortest output first, then random outputs.

    A random output consists of random allowed tokens, printable ASCII tokens if possible. After `max_tokens` tokens,
    the shortest text that completes the output is appended. Equal seeds give equal examples. Special tokens add no
    bytes to an example. LimitExceededError is raised if the grammar exceeds a limit on work or memory.

    Args:
        fsm: The compiled grammar.
        count: Maximum number of examples. A grammar with few outputs has fewer examples.
        seed: Seed of the random number generator.
        max_tokens: Maximum number of random tokens in an output.

    Yields:
        Distinct outputs as bytes, at most `count`. The search ends after 8 * `count` samples.
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
