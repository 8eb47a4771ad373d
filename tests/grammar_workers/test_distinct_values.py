"""`uniqueItems` over values that are not listed, and property names that are counted: each value once, no dead end."""

from __future__ import annotations

import dataclasses
import json
import random
from typing import Any

import pytest

from grammar_workers import GrammarOptions, Limits, TokenFSM, Vocabulary, compile_grammar
from grammar_workers.errors import LimitExceededError, UnsatisfiableError, UnsupportedFeatureError
from grammar_workers.matching.distinct import recognizer
from grammar_workers.matching.distinct.numbers import may_become, meaning_of
from grammar_workers.matching.distinct.recognizer import DistinctRecognizer
from grammar_workers.matching.distinct.values import AT_VALUE, Position, Values
from grammar_workers.pushdown.automaton import PushdownAutomaton
from grammar_workers.pushdown.instructions import DISTINCT_ENDLESS
from tests.grammar_workers.vocabularies import accepts, bytes_vocabulary, text_of

ANY = {"type": "array", "uniqueItems": True}
CLOSED = {"additionalProperties": False}
LONG = (b"1, 1", b'["a", "a"', b'", "', b'", "a"]', b'"a", "b"', b'{"x": 1, "y"', b'": 1, "', b", 1.0]", b"true, true")
"""Tokens that end one part, begin another and perhaps end that, too."""


def compiled(schema: Any, vocabulary: Vocabulary | None = None, **options: Any) -> TokenFSM:
    specification = {"type": "json_schema", "schema": schema}
    return compile_grammar(specification, vocabulary or bytes_vocabulary(), options=GrammarOptions(**options))


def with_long_tokens() -> Vocabulary:
    return Vocabulary([bytes([byte]) for byte in range(256)] + [*LONG, None], eos_token_ids=[256 + len(LONG)])


@pytest.mark.parametrize(
    ("text", "is_unique"),
    [
        ("[1, 1]", False),
        ("[1, 1.0]", False),
        ("[1, 10e-1]", False),
        ("[0, -0]", False),
        ("[0, 0e7]", False),
        ("[100, 1e2]", False),
        ("[1, 2, 11]", True),
        ("[1, true]", True),
        ('["1", 1]', True),
        ('["a", "b", "a"]', False),
        ('["é", "\\u00e9"]', False),
        ('["\\ud83d\\ude00", "😀"]', False),
        ('["\\n", "\\u000A"]', False),
        ('["a", "aa", ""]', True),
        ('[{"a": 1, "b": 2}, {"b": 2, "a": 1}]', False),
        ('[{"a": 1, "b": 2}, {"b": 2.0, "a": 3}]', True),
        ('[{"a": 1}, {"a": 1, "b": 2}]', True),
        ("[[1, 2], [1, 2.0]]", False),
        ("[[1, 2], [2, 1], []]", True),
        ("[[[]], [], [[], []]]", True),
        ("[[{}], [[]], {}]", True),
        ("[null, false, null]", False),
    ],
)
@pytest.mark.parametrize("options", [{"escapes": "any"}, {"escapes": "any", "whitespace": "flexible"}])
def test_items_are_compared_by_what_they_mean(text: str, is_unique: bool, options: dict[str, Any]) -> None:
    assert accepts(compiled(ANY, **options), text) == is_unique


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        # In items, and in their items.
        ({"items": ANY, "uniqueItems": True}, "[[1, 2], [1]]", "[[1, 2], [1, 2]]"),
        ({"items": ANY, "uniqueItems": True}, "[[1, 2], [2, 1]]", "[[1, 1], [2]]"),
        ({"items": {"properties": {"a": ANY}}}, '[{"a": [1]}, {"a": [1]}]', '[{"a": [1, 1]}]'),
        ({"$ref": "#/$defs/d", "$defs": {"d": {"items": {"$ref": "#/$defs/d"}, **ANY}}}, "[[], [[]]]", "[[], []]"),
        # In one alternative, told apart by type; in all of them.
        ({"anyOf": [ANY, {"type": "string"}]}, '"x"', "[1, 1]"),
        ({"anyOf": [{**ANY, "minItems": 3}, {**ANY, "items": {"type": "string"}}]}, '["a"]', '["a", "a"]'),
        ({"oneOf": [ANY, {"type": "object"}]}, "[1, 2]", "[1, 1]"),
        ({"prefixItems": [{"type": "number"}, {"type": "string"}], **ANY}, '[1, "1", 2]', '[1, "1", 1]'),
        ({"contains": {"type": "string"}, **ANY}, '[1, "a", 2]', '[1, "a", 1]'),
        # Names that are counted.
        ({"type": "object", "minProperties": 2}, '{"x": 1, "y": 1}', '{"x": 1, "x": 1}'),
        ({"type": "object", "not": {"maxProperties": 2}}, '{"x": 1, "y": 1, "z": 1}', '{"x": 1, "y": 1, "x": 1}'),
        ({"patternProperties": {"^[ab]$": {}}, "additionalProperties": False, "minProperties": 2, "type": "object"},)
        + ('{"a": 1, "b": 1}', '{"a": 1, "a": 1}'),
    ],
)
def test_where_values_must_differ(schema: Any, valid: str, invalid: str) -> None:
    fsm = compiled(schema)
    assert accepts(fsm, valid)
    assert not accepts(fsm, invalid)


def every_text(fsm: TokenFSM, most: int) -> set[str]:
    """All texts of an automaton without an endless output; each state on the way must have one that goes on."""
    found = set()
    pending = [(fsm.initial_state, b"")]
    while pending:
        state, text = pending.pop()
        assert fsm.count_allowed(state), f"a dead end after {text!r}"
        assert len(found) < most
        for token in fsm.allowed_tokens(state):
            if token in fsm.vocabulary.eos_token_ids:
                found.add(text.decode())
            else:
                following = fsm.next_state(state, token)
                assert following >= 0
                pending.append((following, text + fsm.vocabulary.token_bytes(token)))
    return found


@pytest.mark.parametrize(
    ("items", "values"),
    [
        ({"type": "string", "pattern": "^a?b?$"}, ["", "a", "b", "ab"]),
        ({"type": "integer", "minimum": 8, "maximum": 11}, [8, 9, 10, 11]),
        ({"type": ["null", "boolean"]}, [None, False, True]),
        ({"type": "array", "items": {"type": "null"}, "maxItems": 2}, [[], [None], [None, None]]),
        (
            {"type": "object", "properties": {"a": {"type": "boolean"}}, "additionalProperties": False},
            [{}, {"a": True}, {"a": False}],
        ),
    ],
)
@pytest.mark.parametrize("least", [0, 2])
@pytest.mark.parametrize("vocabulary", [bytes_vocabulary, with_long_tokens])
def test_exactly_the_arrays_without_repetition(items: Any, values: list[Any], least: int, vocabulary: Any) -> None:
    fsm = compiled({"type": "array", "items": items, "minItems": least, "uniqueItems": True}, vocabulary())
    arrays: list[list[Any]] = [[]]
    for array in arrays:
        arrays += [[*array, value] for value in values if not any(value == other for other in array)]
    expected = {json.dumps(array) for array in arrays if len(array) >= least}
    assert {text.replace("-0", "0") for text in every_text(fsm, 1000)} == expected


@pytest.mark.parametrize("schema", [ANY, {"type": "object", "minProperties": 2}, {"items": ANY, "uniqueItems": True}])
def test_the_mask_is_what_can_be_stepped_over(schema: Any) -> None:
    """Also with tokens that reach over the borders of parts."""
    fsm = compiled(schema, with_long_tokens())
    texts = ['[1, ["a", "b"], "a", true, 1.5]', '{"a": {"x": 1, "y": 2}, "": 1, "aa": []}', '[["a"], [1, 2], []]']
    for text in texts:
        state = fsm.initial_state
        for byte in text.encode():
            stepped = {token for token in range(fsm.vocabulary.size) if fsm.next_state(state, token) >= 0}
            assert fsm.allowed_tokens(state) == stepped
            state = fsm.next_state(state, byte)
            if state < 0:
                break


def with_nasty_tokens(rng: random.Random) -> Vocabulary:
    """Single bytes, and pieces of arrays and objects that end, begin and repeat parts in all kinds of ways."""
    parts = [
        '"a"',
        '"b\\""',
        '"\\u0061"',
        "1",
        "1.0",
        "-0",
        "null",
        "[]",
        "[1, 1]",
        "{}",
        '{"a": 1}',
        '{"a": {"a": 1}}',
    ]
    pieces: set[bytes] = set()
    while len(pieces) < 300:
        text = rng.choice((", ", ",", " , ", '": ', "], [", "}, {")).join(rng.choices(parts, k=4))
        first = rng.randrange(len(text))
        pieces.add(text[first : first + rng.randint(2, 14)].encode())
    tokens = sorted(piece for piece in pieces if len(piece) > 1)
    return Vocabulary([bytes([byte]) for byte in range(256)] + [*tokens, None], eos_token_ids=[256 + len(tokens)])


NASTY = [
    ANY,
    {"type": "array", "uniqueItems": True, "items": {"anyOf": [{"type": "string"}, {"enum": [1, None]}]}},
    {"type": "array", "uniqueItems": True, "items": {"type": "string", "pattern": "^a?b*$"}, "minItems": 3},
    {"type": "array", "uniqueItems": True, "items": {"type": "integer", "minimum": 0, "maximum": 20}},
    {"type": "array", "uniqueItems": True, "items": {"type": "object", "properties": {"a": True}}},
    {"type": "array", "items": {"type": "array", "uniqueItems": True, "items": {"enum": [*range(17), "a", "b"]}}},
    {"type": "object", "minProperties": 2},
    {"type": "object", "properties": {"a": ANY}, "patternProperties": {"^[ab]": ANY}, "minProperties": 2, **CLOSED},
    {"type": "array", "uniqueItems": True, "items": {"type": "object", "minProperties": 1}},
]


@pytest.mark.parametrize("schema", NASTY)
@pytest.mark.parametrize("whitespace", ["compact", "flexible"])
def test_the_mask_is_what_can_be_stepped_over_on_random_walks(schema: Any, whitespace: Any) -> None:
    """Which tokens are looked at is decided beforehand, by what they contain; stepping knows nothing of that.

    And a token leads where its bytes lead.
    """
    for seed in range(3):
        rng = random.Random(seed)
        fsm = compiled(schema, with_nasty_tokens(rng), whitespace=whitespace)
        ends = fsm.vocabulary.eos_token_ids
        state = fsm.initial_state
        for _ in range(40):
            stepped = {token for token in range(fsm.vocabulary.size) if fsm.next_state(state, token) >= 0}
            assert fsm.allowed_tokens(state) == stepped
            tokens = sorted(stepped - set(ends))
            if not tokens:
                break
            likely = [token for token in tokens if token > 255 or chr(token) in '[{,":ab1 ']
            token = rng.choice(likely or tokens)
            reached = fsm.next_state(state, token)
            for byte in fsm.vocabulary.token_bytes(token):
                state = fsm.next_state(state, byte)
            assert state == reached


def test_the_values_of_a_finite_kind_are_used_up() -> None:
    schema = {"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 3}, "uniqueItems": True}
    fsm = compiled(schema)
    assert accepts(fsm, "[1, 3, 2]")
    assert not accepts(fsm, "[1, 3, 2, 4]")
    state = fsm.initial_state
    for byte in b"[1, 3, 2":
        state = fsm.next_state(state, byte)
    assert bytes(fsm.allowed_tokens(state)) == b"]"
    with pytest.raises(UnsatisfiableError):
        compiled({**schema, "minItems": 4})


@pytest.mark.parametrize("least", [2, 5, 40])
def test_completions_repeat_nothing(least: int) -> None:
    for schema in ({**ANY, "minItems": least}, {**ANY, "minItems": least, "items": {"type": "string"}}):
        fsm = compiled(schema)
        items = json.loads(text_of(fsm.vocabulary, fsm.shortest_completion(fsm.initial_state)))
        assert len(items) == least == len({json.dumps(item) for item in items})
    fsm = compiled({"type": "object", "minProperties": least})
    assert len(json.loads(text_of(fsm.vocabulary, fsm.shortest_completion(fsm.initial_state)))) == least


@pytest.mark.parametrize(
    "schema",
    [
        {"not": {"uniqueItems": True}},
        {"type": "array", "anyOf": [{"uniqueItems": True}, {"items": {"type": "string"}}]},
        {"contains": {"const": 1}, "minContains": 2, **ANY},
        {"prefixItems": [{"type": "boolean"}] * 3, "minItems": 3, **ANY, "items": {"type": "string"}},
    ],
)
def test_what_cannot_be_exact_is_refused(schema: Any) -> None:
    with pytest.raises(UnsupportedFeatureError) as caught:
        compiled(schema)
    assert caught.value.pointer is not None and caught.value.pointer.endswith("/uniqueItems")
    left = compiled(schema, on_unsupported="report").unenforced
    assert left


_THREE_OF_TWO = {"type": "array", "prefixItems": [{"type": "boolean"}] * 3, "minItems": 3, "uniqueItems": True}


@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        ({"properties": {"a": ANY, "b": _THREE_OF_TWO}}, "/properties/b/uniqueItems"),
        ({"properties": {"a": ANY, "b": {"not": ANY}}}, "/properties/b/not/uniqueItems"),
        (
            {"properties": {"a": ANY, "b": {"$ref": "#/$defs/three"}}, "$defs": {"three": _THREE_OF_TWO}},
            "/$defs/three/uniqueItems",
        ),
        (
            {
                "properties": {
                    "a": ANY,
                    "b": {"allOf": [{"type": "array", "minItems": 3}, {**_THREE_OF_TWO, "minItems": 0}]},
                }
            },
            "/properties/b/allOf/1/uniqueItems",
        ),
    ],
)
def test_the_refused_place_is_named(schema: Any, pointer: str) -> None:
    with pytest.raises(UnsupportedFeatureError) as caught:
        compiled(schema)
    assert caught.value.pointer == pointer


def test_one_mask_takes_bounded_work() -> None:
    """Beyond it that request is refused, not held up."""
    hard = {
        "type": "array",
        "items": {"type": "string", "pattern": "^[ab]{12}$"},
        "minItems": 4000,
        "uniqueItems": True,
    }
    fsm = compiled(hard)
    with pytest.raises(LimitExceededError, match="steps"):
        fsm.shortest_completion(fsm.initial_state)
    assert fsm.count_allowed(fsm.initial_state) > 0


def test_outputs_are_bounded_in_memory() -> None:
    specification = {"type": "json_schema", "schema": {"type": "array", "uniqueItems": True}}
    fsm = compile_grammar(specification, bytes_vocabulary(), limits=Limits(max_fsm_bytes=1 << 20))
    text = "[" + ", ".join(f'"{number}"' for number in range(1000))
    with pytest.raises(LimitExceededError, match="max_fsm_bytes"):
        accepts(fsm, text)
    assert fsm.is_worn and fsm.device_tables() is None


NUMBERS = [
    "0",
    "-0",
    "0.0",
    "0e5",
    "1",
    "1.0",
    "1.00",
    "10e-1",
    "0.1e1",
    "-1",
    "12",
    "1.2e1",
    "120e-1",
    "0.012e+3",
    "1e22",
]


def test_a_beginning_of_a_number_may_become_what_it_means() -> None:
    for text in NUMBERS:
        meaning = meaning_of(text.encode())
        assert meaning is not None
        assert all(may_become(text[:length].encode(), meaning) for length in range(1, len(text) + 1))
        for other in NUMBERS:
            assert (meaning == meaning_of(other.encode())) == (float(text) == float(other))


def test_a_beginning_may_become_what_it_is_one_of() -> None:
    texts = ['"aé\\u00e9"', '{"a": [1, {"b": null}], "c": "d"}', "[[], [[1.50]]]", "-0.5e1", "true"]
    values = Values()
    read: list[list[Position]] = []
    for text in texts:
        positions = [AT_VALUE]
        for byte in text.encode():
            positions.append(values.read(positions[-1], byte))
        read.append(positions)
    meant = [values.finish(positions[-1]) for positions in read]
    for positions, own in zip(read, meant, strict=True):
        assert all(values.may_become(position, own) for position in positions)
        assert not any(values.may_become(positions[-1], other) for other in meant if other != own)


ENDLESS = [
    {"type": "string"},
    {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    {"anyOf": [{"type": "string", "pattern": "^a?b*$"}, {"const": None}]},
    {"type": "array", "items": {"type": "boolean"}},
]
NOT_ENDLESS = [{"type": "integer", "minimum": 0, "maximum": 4000}, {"type": "string", "pattern": "^[ab]{0,5}$"}]


@pytest.mark.parametrize(
    ("schema", "endless"),
    [
        *[({"type": "array", "items": items, "uniqueItems": True}, True) for items in ENDLESS],
        *[({"type": "array", "items": items, "uniqueItems": True}, False) for items in NOT_ENDLESS],
        ({"type": "array", "prefixItems": [{"const": 1}], "items": ENDLESS[0], "uniqueItems": True}, True),
        ({"type": "array", "prefixItems": [ENDLESS[0]], "items": NOT_ENDLESS[0], "uniqueItems": True}, False),
        ({"type": "array", "prefixItems": [ENDLESS[0], ENDLESS[1]], "items": False, "uniqueItems": True}, True),
        ({"type": "object", "minProperties": 2, "additionalProperties": {"type": "boolean"}}, True),
        ({"type": "object", "minProperties": 2, "patternProperties": {"^[ab]{9}$": True}, **CLOSED}, False),
        ({"type": "object", "minProperties": 2, "patternProperties": {"^a": True}, **CLOSED}, True),
    ],
)
def test_where_values_never_run_out_nothing_is_searched_for(schema: Any, endless: bool) -> None:
    """The masks are those of an automaton that does not know it, and searches."""
    fsm = compiled(schema, with_long_tokens())
    assert isinstance(fsm._recognizer, DistinctRecognizer)
    tables = PushdownAutomaton.from_bytes(fsm._recognizer.to_bytes())
    assert tables.distinct[:, DISTINCT_ENDLESS].tolist() == [endless] * len(tables.distinct)
    unaware = tables.distinct.copy()
    unaware[:, DISTINCT_ENDLESS] = 0
    recognizer = DistinctRecognizer(dataclasses.replace(tables, distinct=unaware), fsm.vocabulary, Limits())
    searching = TokenFSM(recognizer, fsm.vocabulary, fsm.key, fsm.notes, Limits())
    for seed in range(20):
        states = (fsm.initial_state, searching.initial_state)
        for choice in random.Random(seed).choices(range(1 << 30), k=25):
            tokens = sorted(fsm.allowed_tokens(states[0]))
            assert tokens == sorted(searching.allowed_tokens(states[1]))
            tokens = [token for token in tokens if token not in fsm.vocabulary.eos_token_ids]
            if not tokens:
                break
            # Structure, and letters that begin earlier values again, more often than the other 250 bytes.
            likely = [token for token in tokens if token > 256 or (token < 256 and chr(token) in '[]{},":ab1 ')]
            token = (likely or tokens)[choice % len(likely or tokens)]
            states = (fsm.next_state(states[0], token), searching.next_state(states[1], token))


def test_beside_declared_names_earlier_names_have_no_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """A declared name begins without a call where no other name can come: an end is then found at once."""
    monkeypatch.setattr(recognizer, "_QUESTIONS_AT_MOST", Limits().max_steps // 100)
    values = dict.fromkeys(("dbMigrations", "clientEntryPoint", "dbOverrides", "dbURL", "Template"), "some words")
    application = {"type": "object", "properties": {name: {"type": "string"} for name in values}, **CLOSED}
    names = {"^[a-z]+$": {"oneOf": [application, {"const": True}]}}
    lone = {"single": {"const": True}}
    many = {"type": "object", "properties": lone, "patternProperties": names, "minProperties": 2, **CLOSED}
    fsm = compiled({"anyOf": [application, many]}, with_long_tokens())
    assert accepts(fsm, json.dumps(values))
    assert accepts(fsm, json.dumps({"a": values, "b": True}))
    assert not accepts(fsm, '{"a": true, "a": true}')
