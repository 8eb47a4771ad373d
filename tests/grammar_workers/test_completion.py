"""Shortest completions against breadth-first search over single steps."""

from __future__ import annotations

import functools
import json
import random
import sys
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grammar_workers import GrammarOptions, TokenFSM, Vocabulary, compile_grammar
from grammar_workers.errors import LimitExceededError
from grammar_workers.pushdown import shortest
from grammar_workers.types import TokenId
from tests.grammar_workers.call_limit import at_most
from tests.grammar_workers.properties import PROPERTY
from tests.grammar_workers.specifications import CORNER_CASES, SPECIFICATIONS, compile_or_assume
from tests.grammar_workers.vocabularies import (
    LARGE,
    SMALL,
    accepts,
    bytes_vocabulary,
    random_walk,
    states_along,
    text_of,
    visited_states,
)


@functools.cache
def single_bytes(vocabulary: Vocabulary) -> list[TokenId]:
    """The tokens of a single byte: they spell all that the small vocabularies can spell."""
    return [token for token in range(vocabulary.size) if len(vocabulary.token_bytes(token)) == 1]


def fewest_bytes(fsm: TokenFSM, state: int, bound: int) -> int:
    """Bytes of a shortest way to a terminal state, breadth first; `bound` where there is none shorter."""
    seen = layer = {state}
    for length in range(bound):
        if any(map(fsm.is_terminal, layer)):
            return length
        layer = {fsm.next_state(here, token) for here in layer for token in single_bytes(fsm.vocabulary)} - seen - {-1}
        seen = seen | layer
    return bound


@pytest.mark.parametrize(
    ("schema", "length"),
    [
        ({"type": "string", "minLength": 10_000}, 10_002),
        ({"type": "string", "pattern": "^(ab)*c$", "minLength": 5001}, 5003),
        ({"type": "string", "pattern": "^é+$", "minLength": 3000}, 6002),
        ({"type": "string", "pattern": "^(ab)*c$", "minLength": 999, "maxLength": 1001}, 1001),
        ({"type": "array", "items": {"type": "integer"}, "minItems": 1_000}, 3_000),
        ({"type": "array", "items": {"type": "string", "minLength": 100}, "minItems": 100}, 10_400),
        ({"type": "array", "prefixItems": [{"type": "null"}], "items": {"const": 7}, "minItems": 500}, 1503),
        ({"anyOf": [{"type": "string", "minLength": 5000}, {"type": "array", "minItems": 1000}]}, 3000),
        ({"anyOf": [{"type": "string", "minLength": 2000}, {"type": "array", "minItems": 1000}]}, 2002),
    ],
)
@pytest.mark.parametrize("make", [bytes_vocabulary, *LARGE])
def test_counts_are_not_walked_through(schema: Any, length: int, make: Any) -> None:
    fsm = compile_grammar({"type": "json_schema", "schema": schema}, make())
    text = check_completion(fsm, fsm.initial_state)
    assert len(text) == length
    assert jsonschema.Draft202012Validator(schema).is_valid(json.loads(text))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "minLength": 10**9},
        {"type": "array", "items": {"type": "string", "minLength": 10**9}, "minItems": 10**9},
        {"type": "string", "pattern": "^(ab)*c$", "minLength": 10**6},
    ],
)
def test_what_would_be_too_long_is_refused_at_once(schema: Any) -> None:
    fsm = compile_grammar({"type": "json_schema", "schema": schema}, bytes_vocabulary())
    with at_most(500_000), pytest.raises(LimitExceededError, match="tokens"):
        fsm.shortest_completion(fsm.initial_state)


def chain(many: int, make: Callable[[Any], Any], last: Any) -> dict[str, Any]:
    """A schema of `many` definitions, each made from a reference to the next one."""
    definitions = {f"d{i}": make({"$ref": f"#/$defs/d{i + 1}"}) for i in range(many)}
    return {"$defs": {**definitions, f"d{many}": last}, "$ref": "#/$defs/d0"}


TWICE: dict[str, Callable[[Any], Any]] = {
    "items": lambda part: {"type": "array", "items": part, "minItems": 2},
    "many items": lambda part: {"type": "array", "items": part, "minItems": 100_000},
    "prefix": lambda part: {"type": "array", "prefixItems": [part, part], "minItems": 2},
    "properties": lambda part: {"type": "object", "properties": {"a": part, "b": part}, "required": ["a", "b"]},
    "contains": lambda part: {"type": "array", "contains": part, "minContains": 2, "maxItems": 2},
    "unique": lambda part: {"type": "array", "items": part, "minItems": 2, "uniqueItems": True},
}


@pytest.mark.parametrize("many", [22, 200])
@pytest.mark.parametrize("make", TWICE.values(), ids=TWICE)
def test_a_text_that_doubles_with_each_level_is_not_written_out(make: Callable[[Any], Any], many: int) -> None:
    """Also where its length, of more than 1024 bits with many items, is larger than any float."""
    schema = chain(many, make, {"type": "integer"})
    fsm = compile_grammar({"type": "json_schema", "schema": schema}, bytes_vocabulary())
    tracemalloc.start()
    try:
        with pytest.raises(LimitExceededError):
            fsm.shortest_completion(fsm.initial_state, 150)
        assert tracemalloc.get_traced_memory()[1] < 50 << 20
    finally:
        tracemalloc.stop()


def test_a_shared_text_is_spelled_in_each_place() -> None:
    schema = chain(8, TWICE["items"], {"const": 7})
    fsm = compile_grammar({"type": "json_schema", "schema": schema}, bytes_vocabulary())
    value: Any = 7
    for _ in range(8):
        value = [value, value]
    assert json.loads(check_completion(fsm, fsm.initial_state)) == value


def test_a_chain_of_long_texts_is_spelled_without_recursion() -> None:
    schema = chain(1500, lambda part: {"type": "array", "items": part, "minItems": 1}, {"const": "a" * 2000})
    fsm = compile_grammar({"type": "json_schema", "schema": schema}, bytes_vocabulary())
    tokens = fsm.shortest_completion(fsm.initial_state)
    assert len(text_of(fsm.vocabulary, tokens)) == 2002 + 2 * 1500


def test_the_length_of_a_shortest_text_may_have_more_digits_than_python_prints() -> None:
    rules = [f"r{i} ::= r{i + 1} r{i + 1}" for i in range(2_200)]
    text = "\n".join(["root ::= r0", *rules, 'r2200 ::= "a" | "(" r0 ")"'])
    most = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(640)
    try:
        with pytest.raises(LimitExceededError, match="shortest text"):
            compile_grammar({"type": "grammar", "syntax": "gbnf", "text": text}, bytes_vocabulary())
    finally:
        sys.set_int_max_str_digits(most)


def test_a_limit_of_tokens() -> None:
    fsm = compile_grammar({"type": "json_schema", "schema": {"type": "string", "minLength": 40}}, bytes_vocabulary())
    tokens = fsm.shortest_completion(fsm.initial_state)
    assert fsm.shortest_completion(fsm.initial_state, len(tokens)) == tokens
    with pytest.raises(LimitExceededError, match=f"more than {len(tokens) - 1} tokens"):
        fsm.shortest_completion(fsm.initial_state, len(tokens) - 1)


def test_nobody_waits_while_a_completion_is_found() -> None:
    fsm = compile_grammar({"type": "json_schema", "schema": {"type": "string", "minLength": 3}}, bytes_vocabulary())
    with fsm._lock, ThreadPoolExecutor(1) as pool:
        assert pool.submit(fsm.shortest_completion, fsm.initial_state).result(timeout=60)


def check_completion(fsm: TokenFSM, state: int) -> bytes:
    """It is spelled by allowed tokens and ends where the text may stop, at the first such place; its bytes."""
    tokens = fsm.shortest_completion(state)
    states = [state]
    for token in tokens:
        assert not any(map(fsm.is_terminal, states))
        states.append(fsm.next_state(states[-1], token))
        assert states[-1] >= 0
    assert fsm.is_terminal(states[-1])
    return text_of(fsm.vocabulary, tokens)


@settings(PROPERTY, max_examples=30)
@given(specification=SPECIFICATIONS, make=st.sampled_from(SMALL), rng=st.integers(0, 1 << 30).map(random.Random))
def test_completions_end_and_are_spelled(specification: dict[str, Any], make: Any, rng: random.Random) -> None:
    fsm = compile_or_assume(specification, make())
    for state in visited_states(fsm, rng, limit=10):
        check_completion(fsm, state)


@settings(PROPERTY, max_examples=30)
@given(specification=SPECIFICATIONS, make=st.sampled_from(SMALL), rng=st.integers(0, 1 << 30).map(random.Random))
def test_no_completion_is_shorter(specification: dict[str, Any], make: Any, rng: random.Random) -> None:
    fsm = compile_or_assume(specification, make())
    for state in visited_states(fsm, rng, walks=1, limit=6):
        found = check_completion(fsm, state)
        # The search ends at the length found; it need not look further than a few bytes to fail.
        bound = min(len(found), 7)
        assert fewest_bytes(fsm, state, bound) == bound


@pytest.mark.parametrize("make", LARGE)
@pytest.mark.parametrize("name", [name for name in CORNER_CASES if name != "text with a limit in tokens"])
def test_completions_in_large_vocabularies(name: str, make: Any) -> None:
    """The same bytes as with single bytes for tokens, in no more tokens than bytes."""
    fsm = compile_grammar(CORNER_CASES[name], make())
    plain = compile_grammar(CORNER_CASES[name], bytes_vocabulary())
    rng = random.Random(name)
    for _ in range(5):
        tokens = random_walk(fsm, rng, longest=12)
        cut = tokens[: rng.randrange(len(tokens) + 1)]
        state = states_along(fsm, cut)[-1]
        same = states_along(plain, list(text_of(fsm.vocabulary, cut)))[-1]
        found = check_completion(fsm, state)
        assert len(found) == len(check_completion(plain, same))
        assert len(fsm.shortest_completion(state)) <= len(found)


@pytest.mark.parametrize(
    ("schema", "prefix", "completion"),
    [
        ({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}, "", '{"a": 0}'),
        ({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}, '{"a', '": 0}'),
        ({"type": "string"}, '"ab', '"'),
        ({"type": "string"}, '"ab\\', None),
        ({"type": "string"}, '"ab\\u00', None),
        ({"type": "string", "minLength": 5}, '"a', None),
        ({"type": "array", "items": {"type": "number"}, "minItems": 3}, "[1, ", "0, 0]"),
        ({"type": "number"}, "-", "0"),
        ({"type": "number"}, "1.", "0"),
        ({"type": "number"}, "12", ""),
        ({"type": "integer", "minimum": 1000}, "", "1000"),
        ({"enum": ["abc", "abcdef", "z"]}, '"abc', '"'),
        ({"anyOf": [{"type": "array", "minItems": 4}, {"const": "a long text"}]}, "", "[0, 0, 0, 0]"),
        (True, '{"a": [[', "]]}"),
    ],
)
def test_examples(schema: Any, prefix: str, completion: str | None) -> None:
    fsm = compile_grammar({"type": "json_schema", "schema": schema}, bytes_vocabulary())
    state = states_along(fsm, list(prefix.encode()))[-1]
    found = check_completion(fsm, state)
    if completion is not None:
        assert len(found) == len(completion.encode())
        assert accepts(fsm, prefix + completion)
    assert accepts(fsm, prefix.encode() + found)


def test_the_best_alternative_may_be_deep_in_a_recursion() -> None:
    """A rule whose shortest text is known only once that of another is."""
    schema = {
        "$defs": {
            "pair": {"type": "array", "items": {"$ref": "#/$defs/term"}, "minItems": 2, "maxItems": 2},
            "term": {"anyOf": [{"$ref": "#/$defs/pair"}, {"const": 1234567}]},
        },
        "$ref": "#/$defs/pair",
    }
    fsm = compile_grammar({"type": "json_schema", "schema": schema}, bytes_vocabulary())
    assert check_completion(fsm, fsm.initial_state) == b"[1234567, 1234567]"
    deep = states_along(fsm, list(b"[" * 40))[-1]
    assert len(check_completion(fsm, deep)) == len(b"1234567, 1234567]") + 39 * len(b", 1234567]")


def test_white_space_is_left_out() -> None:
    options = GrammarOptions(whitespace="flexible")
    schema = {"type": "object", "properties": {"a": {"type": "array", "minItems": 2}}, "required": ["a"]}
    fsm = compile_grammar({"type": "json_schema", "schema": schema}, bytes_vocabulary(), options=options)
    assert check_completion(fsm, fsm.initial_state) == b'{"a":[0,0]}'
    padded = states_along(fsm, list(b'{  "a" \n:\t'))[-1]
    assert check_completion(fsm, padded) == b"[0,0]}"


def test_a_way_that_is_found_later_may_be_shorter() -> None:
    """The text of a call that is known already may be long: what it leads to has not been reached by a shortest way."""
    vocabulary = Vocabulary([b",", b"6", b"[", b"]", None], [4])
    schema = {"minItems": 2, "contains": {"type": "number"}}
    options = GrammarOptions(whitespace="flexible")
    fsm = compile_grammar({"type": "json_schema", "schema": schema}, vocabulary, options=options)
    assert check_completion(fsm, fsm.next_state(fsm.initial_state, 2)) == b"6,6]"


def test_plans_of_a_completion_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that look alike, in objects in objects: each detour asks anew for the shortest text, which is work, too."""
    popped = 0
    pop = shortest.heapq.heappop

    def counting(queue: list[Any]) -> Any:
        nonlocal popped
        popped += 1
        return pop(queue)

    names = {"b{1,1}$": {"$ref": "#"}, "^(?:b(?i:(?i:[^\u2028]b+?\\b[AAA-b]){2})*|A)$": {"type": "object"}}
    schema = {"type": "object", "additionalProperties": False, "patternProperties": names, "minProperties": 3}
    options = GrammarOptions(whitespace="flexible", property_order="any", number_spelling="any")
    fsm = compile_grammar({"type": "json_schema", "schema": schema}, bytes_vocabulary(), options=options)
    state = fsm.initial_state
    for byte in b'{"':
        state = fsm.next_state(state, byte)
    monkeypatch.setattr(shortest.heapq, "heappop", counting)
    with pytest.raises(LimitExceededError):
        fsm.shortest_completion(state)
    assert popped < 60_000


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": {"enum": [*range(12)]}, "uniqueItems": True, "minItems": 8},
        {
            "type": "object",
            "patternProperties": {"p[0-9]$": True},
            "additionalProperties": {"const": 0},
            "minProperties": 4,
        },
    ],
)
def test_threads_find_the_completions_that_one_thread_finds(schema: dict[str, Any]) -> None:
    vocabulary = bytes_vocabulary()
    options = GrammarOptions(property_order="any")
    alone, shared = (
        compile_grammar({"type": "json_schema", "schema": schema}, vocabulary, options=options) for _ in range(2)
    )
    assert shared.remembers_values
    outputs = [random_walk(alone, random.Random(seed)) for seed in range(24)]
    known = [[alone.shortest_completion(state) for state in states_along(alone, output)] for output in outputs]

    def differences(number: int) -> int:
        states = [shared.initial_state]
        found = [shared.shortest_completion(states[0]) != known[number][0]]
        for token, expected in zip(outputs[number], known[number][1:], strict=True):
            states.append(shared.next_state(states[-1], token))
            found.append(states[-1] < 0 or shared.shortest_completion(states[-1]) != expected)
        return sum(found)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(8) as threads:
            assert sum(threads.map(differences, range(len(outputs)))) == 0
    finally:
        sys.setswitchinterval(interval)
