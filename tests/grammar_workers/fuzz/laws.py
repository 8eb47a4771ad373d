"""What must hold of a case. Each law looks at one witness, a text or some tokens, and says what is wrong, or None.

A law can be asked again about a smaller case, which is how failures are shrunk.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from grammar_workers import TokenFSM
from grammar_workers.errors import LimitExceededError, UnsatisfiableError
from tests.grammar_workers.fuzz.cases import Subject
from tests.grammar_workers.fuzz.json_judge import JsonJudge
from tests.grammar_workers.fuzz.spelling import (
    NotJsonError,
    many_orders,
    numbers_in,
    orders,
    parse,
    plain,
    strings_in,
)
from tests.grammar_workers.fuzz.verdicts import Answer, Verdict
from tests.grammar_workers.fuzz.vocabularies import can_spell, tokenizations
from tests.grammar_workers.fuzz.walks import allowed_tokens, text_of

Witness = bytes | tuple[int, ...] | None
Law = Callable[[Subject, Any], "str | None"]
_MOST_ORDERS = 24
_SEARCHED_STATES = 300
_LONGEST_NUMBER = 40
_ESCAPES = '\\"/bfnrtu0123456789abcdefABCDEF'
"""What a vocabulary must spell for the option `escapes: any` to mean anything."""


def accepts(fsm: TokenFSM, tokens: Sequence[int]) -> bool:
    return fsm.is_terminal(state_after(fsm, tokens))


def state_after(fsm: TokenFSM, tokens: Sequence[int]) -> int:
    state = fsm.initial_state
    for token in tokens:
        state = fsm.next_state(state, token)
    return state


def is_accepted(subject: Subject, data: bytes) -> bool | None:
    """Whether the text is accepted; None where the vocabulary cannot spell it, or the specification was refused."""
    if subject.fsm is None:
        # A tag that cannot be spelled is refused as a whole, although text without it can be.
        is_tag = "structural_tag" in str(subject.case.specification)
        return False if isinstance(subject.refusal, UnsatisfiableError) and not is_tag else None
    if data not in subject.accepted:
        tokens = subject.vocabulary.encode(data)
        subject.accepted[data] = None if tokens is None else accepts(subject.fsm, tokens)
    return subject.accepted[data]


def verdict_of(subject: Subject, data: bytes) -> Verdict:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return Verdict(Answer.INVALID, "not UTF-8")
    with subject.judging():
        return subject.judge.verdict(text)


def compiles(subject: Subject, witness: None) -> str | None:
    """A case that is no subject raises; the judge must know it, too."""
    assert subject.judge is not None
    return None


# -- texts ---------------------------------------------------------------------------------------------------------


def sound(subject: Subject, data: bytes) -> str | None:
    """Nothing invalid is accepted."""
    if not is_accepted(subject, data):
        return None
    verdict = verdict_of(subject, data)
    return f"accepted: {verdict.reason}" if verdict.answer == Answer.INVALID else None


def complete(subject: Subject, data: bytes) -> str | None:
    """What is valid, and spelled as the options say, is accepted."""
    text = data.decode(errors="replace")
    if is_accepted(subject, data) is not False or not can_spell(subject.vocabulary, text):
        return None
    if "\\" in text and subject.options.escapes == "any" and not _can_escape(subject, text):
        return None
    if verdict_of(subject, data).answer != Answer.VALID:
        return None
    return f"valid, but refused ({subject.refusal})" if subject.refusal else "valid, but refused"


def _can_escape(subject: Subject, text: str) -> bool:
    """Whether `escapes: any` is about this text: a character that is escaped must have tokens of its own, too."""
    try:
        strings = strings_in(plain(parse(text)))
    except NotJsonError:
        return True
    needed = "".join(subject.write(character)[1:-1] for character in {*"".join(strings)})
    return can_spell(subject.vocabulary, _ESCAPES + needed)


def complete_in_some_order(subject: Subject, data: bytes) -> str | None:
    """A valid value is accepted in at least one order of its properties."""
    if not isinstance(subject.judge, JsonJudge) or is_accepted(subject, data) is not False:
        return None
    try:
        value = plain(parse(data.decode(), subject.judge.draft > 4))
    except (NotJsonError, UnicodeDecodeError):
        return None
    text = subject.write(value)
    if many_orders(value) > _MOST_ORDERS or _has_long_numbers(text):
        return None
    with subject.judging():
        verdict = subject.judge.of_value(value, data.decode())
    if verdict.answer != Answer.VALID:
        return None
    texts = [text for order in orders(value) for text in subject.write_both(order)]
    if not all(can_spell(subject.vocabulary, text) for text in texts):
        return None
    if any(is_accepted(subject, text.encode()) is not False for text in texts):
        return None
    return f"valid, but refused in every order of its properties ({subject.refusal or 'compiled'})"


def _has_long_numbers(text: str) -> bool:
    return any(len(literal) > _LONGEST_NUMBER for literal in numbers_in(text))


def same_state(subject: Subject, data: bytes) -> str | None:
    """However a text is cut into tokens, the same state is reached."""
    if subject.fsm is None:
        return None
    found = tokenizations(subject.vocabulary, data, random.Random(len(data)), 3)
    states = {state_after(subject.fsm, tokens) for tokens in found}
    return f"tokenizations lead to the states {sorted(states)}" if len(states) > 1 else None


# -- states --------------------------------------------------------------------------------------------------------


def consistent(subject: Subject, tokens: tuple[int, ...]) -> str | None:
    """A bit is set exactly where there is a step; end tokens are allowed exactly where the text may end."""
    fsm = subject.fsm
    if fsm is None or (state := state_after(fsm, tokens)) < 0:
        return None
    allowed = set(allowed_tokens(fsm, state))
    stepping = {token for token in range(-1, fsm.vocabulary.size + 2) if fsm.next_state(state, token) >= 0}
    ends = set(fsm.vocabulary.eos_token_ids)
    if allowed != stepping:
        return f"the mask allows {sorted(allowed - stepping)}, steps {sorted(stepping - allowed)} more"
    if allowed & ends != (ends if fsm.is_terminal(state) else set()):
        return f"end tokens {sorted(allowed & ends)}, terminal: {fsm.is_terminal(state)}"
    if any(fsm.next_state(state, token) != fsm.end_state for token in allowed & ends):
        return "an end token leads elsewhere"
    if fsm.count_allowed(state) != len(allowed):
        return "count_allowed differs"
    if fsm.forced_tokens(state, 1) != (sorted(allowed) if len(allowed) == 1 and not allowed & ends else []):
        return "forced_tokens differs"
    return None


def has_a_way_on(subject: Subject, tokens: tuple[int, ...]) -> str | None:
    """No dead ends: the shortest completion is allowed step by step, ends first where the text may end, is shortest."""
    try:
        return _way_on(subject, tokens)
    except LimitExceededError:
        # One that is too long to be written out, or too many ways to read one token.
        return None


def _way_on(subject: Subject, tokens: tuple[int, ...]) -> str | None:
    fsm = subject.fsm
    if fsm is None or (state := state_after(fsm, tokens)) < 0 or fsm.is_terminal(state):
        return None
    text = text_of(fsm, tokens)
    if not allowed_tokens(fsm, state):
        return f"a dead end after {text!r}"
    way = fsm.shortest_completion(state)
    if not way:
        return f"no completion after {text!r}"
    for number, token in enumerate(way):
        state = fsm.next_state(state, token)
        if state < 0 or fsm.is_terminal(state) != (number == len(way) - 1):
            return f"the completion {text_of(fsm, way)!r} after {text!r} does not end where it should"
    if len(text) % 3 or fsm.remembers_values:
        # The search takes longer than all the rest. Where values must differ, ways are only short.
        return None
    shorter = _shorter_way(fsm, tokens, len(text_of(fsm, way)))
    return None if shorter is None else f"{shorter!r} is shorter than {text_of(fsm, way)!r} after {text!r}"


def _shorter_way(fsm: TokenFSM, tokens: tuple[int, ...], fewest: int) -> bytes | None:
    """A way to an end of fewer bytes, as far as a small search finds one."""
    layers: dict[int, dict[int, bytes]] = {0: {state_after(fsm, tokens): b""}}
    seen: set[int] = set()
    for length in range(fewest):
        for state, text in layers.pop(length, {}).items():
            if fsm.is_terminal(state):
                return text
            if state in seen or len(seen) > _SEARCHED_STATES:
                continue
            seen.add(state)
            for token in allowed_tokens(fsm, state):
                data = fsm.vocabulary.token_bytes(token)
                if data and length + len(data) < fewest:
                    layers.setdefault(length + len(data), {}).setdefault(fsm.next_state(state, token), text + data)
    return None


def completion_is_sound(subject: Subject, tokens: tuple[int, ...]) -> str | None:
    """What a shortest completion makes is valid."""
    fsm = subject.fsm
    if fsm is None or (state := state_after(fsm, tokens)) < 0:
        return None
    try:
        data = text_of(fsm, [*tokens, *fsm.shortest_completion(state)])
    except LimitExceededError:
        return None
    verdict = verdict_of(subject, data)
    return f"completed to {data[:200]!r}: {verdict.reason}" if verdict.answer == Answer.INVALID else None


def stored(subject: Subject, tokens: tuple[int, ...]) -> str | None:
    """An automaton that was stored and loaded has the same masks along a walk, also where rows were made ahead."""
    if subject.fsm is None:
        return None
    loaded = TokenFSM.from_bytes(subject.fsm.to_bytes(), subject.vocabulary, key=subject.fsm.key)
    loaded.prefetch_masks(100)
    here, there = subject.fsm.initial_state, loaded.initial_state
    for token in (*tokens, None):
        if not np.array_equal(subject.fsm.allowed_mask(here), loaded.allowed_mask(there)):
            return "masks differ after loading"
        if subject.fsm.is_terminal(here) != loaded.is_terminal(there):
            return "terminal states differ after loading"
        if token is not None:
            here, there = subject.fsm.next_state(here, token), loaded.next_state(there, token)
    return None


LAWS: dict[str, Law] = {
    law.__name__: law
    for law in (
        compiles,
        sound,
        complete,
        complete_in_some_order,
        same_state,
        consistent,
        has_a_way_on,
        completion_is_sound,
        stored,
    )
}
