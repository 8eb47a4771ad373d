"""Makes a failure smaller while the same law is broken in the same way."""

from __future__ import annotations

import dataclasses
import json
import re
import time
from collections.abc import Iterator
from typing import Any

from tests.grammar_workers.fuzz.cases import Case
from tests.grammar_workers.fuzz.check import Failure, examine
from tests.grammar_workers.fuzz.laws import Witness
from tests.grammar_workers.fuzz.vocabularies import Tokens, every_byte

Attempt = tuple[Case, Witness]


def shrunk(failure: Failure, seconds: float = 6.0) -> Failure:
    """The smallest failure found within so many seconds of CPU time, and at most as many seconds again."""
    deadline = time.process_time() + seconds
    kind = kind_of(failure.message)
    smaller = True
    while smaller and time.process_time() < deadline:
        smaller = False
        for case, witness in _attempts(failure):
            if time.process_time() > deadline:
                break
            found = examine(failure.law, case, witness, 2.0)
            if found is not None and kind_of(found) == kind:
                failure = dataclasses.replace(failure, case=case, witness=witness, message=found)
                smaller = True
                break
    return failure


def kind_of(message: str) -> str:
    """What a message says beside names, texts and numbers."""
    return re.sub(r"['\"\d].*", "", ":".join(message.split(":")[:2]))


def _attempts(failure: Failure) -> Iterator[Attempt]:
    """Smaller cases, those first that help most."""
    case, witness = failure.case, failure.witness
    if case.tokens != every_byte() and not isinstance(witness, tuple):
        yield dataclasses.replace(case, tokens=every_byte()), witness
    for name in case.options:
        options = {other: value for other, value in case.options.items() if other != name}
        yield dataclasses.replace(case, options=options), witness
    for specification in _smaller_json(case.specification):
        yield dataclasses.replace(case, specification=specification), witness
    if isinstance(witness, tuple):
        for shorter in _without_some(witness, 1):
            yield case, shorter
    elif witness:
        yield from ((case, shorter) for shorter in _smaller_texts(witness))
    if case.tokens != every_byte():
        yield from _fewer_tokens(case, witness)


def _smaller_json(value: Any) -> Iterator[Any]:
    """Everything that differs in one place and is smaller."""
    if isinstance(value, dict):
        for name in value:
            yield {other: part for other, part in value.items() if other != name}
        for name, part in value.items():
            if isinstance(part, dict | bool) and name != "type":
                yield part
            if name in ("allOf", "anyOf", "oneOf", "specifications") and isinstance(part, list):
                yield from part
            for smaller in _smaller_json(part):
                yield {other: smaller if other == name else kept for other, kept in value.items()}
    elif isinstance(value, list):
        yield from map(list, _without_some(tuple(value), 0))
        for place, part in enumerate(value):
            for smaller in _smaller_json(part):
                yield [*value[:place], smaller, *value[place + 1 :]]
    elif isinstance(value, str):
        for place in range(len(value)):
            yield value[:place] + value[place + 1 :]
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield from (smaller for smaller in (0, 1, 2, int(value)) if smaller != value and abs(smaller) <= abs(value))


def _without_some(items: tuple[Any, ...], kept: int) -> Iterator[tuple[Any, ...]]:
    """Without a half, a quarter, ... one of the items."""
    size = len(items) // 2 or 1
    while size and len(items) > kept:
        for start in range(0, len(items), size):
            yield items[:start] + items[start + size :]
        size //= 2


def _smaller_texts(data: bytes) -> Iterator[bytes]:
    for size in (8, 4, 2, 1):
        for start in range(0, len(data) - size + 1, 1 if size < 4 else 2):
            yield data[:start] + data[start + size :]
    for place in range(len(data)):
        for simpler in (b"0", b"a"):
            if data[place] not in b'0a{}[]":, \\':
                yield data[:place] + simpler + data[place + 1 :]


def _fewer_tokens(case: Case, witness: Witness) -> Iterator[Attempt]:
    tokens = case.tokens
    needed = set(tokens.ends[:1]) | (set(witness) if isinstance(witness, tuple) else set())
    others = tuple(token for token in range(len(tokens.tokens)) if token not in needed)
    for kept in _without_some(others, 0):
        yield _with_tokens(case, witness, sorted(needed | set(kept)))


def _with_tokens(case: Case, witness: Witness, kept: list[int]) -> Attempt:
    new = {token: number for number, token in enumerate(kept)}
    tokens = Tokens(
        tuple(case.tokens.tokens[token] for token in kept),
        tuple(new[end] for end in case.tokens.ends if end in new),
        tuple((name, new[token]) for name, token in case.tokens.special if token in new),
    )
    found = tuple(new[token] for token in witness) if isinstance(witness, tuple) else witness
    return dataclasses.replace(case, tokens=tokens), found


def signature(failure: Failure) -> str:
    """Equal for failures that are likely the same: the law, the keywords and options that take part."""
    words = re.findall(r'"(\w+)":', json.dumps(failure.case.specification))
    keywords = sorted({word for word in words if len(word) > 2})
    return f"{failure.law} {kind_of(failure.message)} {keywords} {sorted(failure.case.options)}"
