"""The vocabularies that grammar tests run over, each made once per session, and how to walk a TokenFSM over them."""

from __future__ import annotations

import functools
import itertools
import random

import numpy as np

from benchmarks.vocabularies import sentencepiece_vocabulary, tekken_vocabulary
from grammar_workers import TokenFSM, Vocabulary
from grammar_workers.types import StateId, TokenId

_JSON_CHARACTERS = 'abcdefghijklmnopqrstuvwxyzABXYZ0123456789_ {}[]":,.-+\\/u\n'


@functools.cache
def bytes_vocabulary() -> Vocabulary:
    """Every single byte, tokens that cut JSON and characters at awkward places, duplicates, specials and padding."""
    awkward = [
        b'{"', b'"}', b'": ', b'", "', b", ", b": ", b"[]", b"{}", b"]}", b'"a', b'a"', b'ab"', b'":', b"ab", b"aa",
        b"abc", b"true", b"null", b"tru", b"12", b"0.", b"-1", b"1e", b"00", b"\\u00", b"\\u", b'\\"', b"\\n", b"\\\\",
        b'\\"}', b"a\\", "é".encode(), "éa".encode(), "é".encode()[1:] + b'"', b"\xe2\x82", b"\x82\xac", "€".encode(),
        "😀".encode(), "😀".encode()[:2], "😀".encode()[2:], b"a\xf0\x9f", b'", ', b"  ", b" \n", b"\n\n", b'b": 1',
        b"ab", b"{", b'": ', "é".encode(),
    ]  # fmt: skip
    ends = [256 + 2, 256 + 3]
    return Vocabulary(
        [*(bytes([byte]) for byte in range(256)), b"", None, b"<end>", b"</s>", *awkward],
        ends,
        {"<tool>": 256},
        size=256 + 4 + len(awkward) + 13,
    )


@functools.cache
def characters_vocabulary() -> Vocabulary:
    """A character-level vocabulary with what JSON needs and little else: most characters cannot be spelled.

    Some longer tokens hold characters that have no token of their own.
    """
    longer = [b"ab", b'": "', "éa".encode(), b'"', b"q\tq", b"xy", b"\\n", b"\\t"]
    return Vocabulary([*(c.encode() for c in _JSON_CHARACTERS), *longer, None], [len(_JSON_CHARACTERS) + len(longer)])


@functools.cache
def shakespeare_vocabulary() -> Vocabulary:
    """The 65 characters of character-level language models of Shakespeare: no quotes, no braces, one digit."""
    characters = "\n !$&',-.3:;?ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
    assert len(characters) == 65
    return Vocabulary([*(c.encode() for c in characters), None], [65])


SMALL = (bytes_vocabulary, characters_vocabulary)
LARGE = (tekken_vocabulary, sentencepiece_vocabulary)


# -- walking -----------------------------------------------------------------------------------------------------


def text_of(vocabulary: Vocabulary, tokens: list[TokenId]) -> bytes:
    """What the tokens append to the text."""
    return b"".join(map(vocabulary.token_bytes, tokens))


def states_along(fsm: TokenFSM, tokens: list[TokenId]) -> list[StateId]:
    """The initial state and the state after each token, as far as the tokens are allowed; then one -1."""
    states = [fsm.initial_state]
    for token in tokens:
        states.append(fsm.next_state(states[-1], token))
        if states[-1] < 0:
            break
    return states


def accepts(fsm: TokenFSM, text: str | bytes) -> bool:
    """Whether `text` as a whole is in the language; False too where the vocabulary cannot spell it."""
    tokens = fsm.vocabulary.encode(text.encode() if isinstance(text, str) else text)
    return tokens is not None and fsm.is_terminal(states_along(fsm, tokens)[-1])


def random_walk(fsm: TokenFSM, rng: random.Random, longest: int = 30) -> list[TokenId]:
    """Tokens drawn uniformly from the masks until an end token is drawn or `longest` are; ended by a shortest way."""
    state = fsm.initial_state
    tokens: list[TokenId] = []
    for _ in range(longest):
        allowed = np.flatnonzero(np.unpackbits(fsm.allowed_mask(state).view(np.uint8), bitorder="little"))
        assert len(allowed), f"nothing may follow {text_of(fsm.vocabulary, tokens)!r}"
        token = int(allowed[rng.randrange(len(allowed))])
        if token in fsm.vocabulary.eos_token_ids:
            return tokens
        state = fsm.next_state(state, token)
        tokens.append(token)
    return tokens + fsm.shortest_completion(state)


def visited_states(fsm: TokenFSM, rng: random.Random, walks: int = 3, limit: int = 40) -> list[StateId]:
    """Some states: those on random walks and those nearest to the initial one, at most `limit`."""
    fsm.materialize(max_states=limit // 2)
    near = range(1, min(fsm.state_count, limit // 2))
    far = itertools.chain.from_iterable(states_along(fsm, random_walk(fsm, rng)) for _ in range(walks))
    return list(dict.fromkeys([*near, *far]))[:limit]
