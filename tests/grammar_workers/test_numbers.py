"""Numbers: which spellings, and bounds compared exactly (the oracle is `decimal`)."""

from __future__ import annotations

import decimal
import itertools
import json
import math
import random
import re
from decimal import Decimal
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.vocabularies import tekken_vocabulary
from grammar_workers import GrammarOptions, TokenFSM, compile_grammar
from grammar_workers.errors import UnsatisfiableError
from tests.grammar_workers.properties import PROPERTY
from tests.grammar_workers.schemas import exact, is_valid
from tests.grammar_workers.vocabularies import (
    accepts,
    bytes_vocabulary,
    random_walk,
    text_of,
    visited_states,
)

MAX_DIGITS = 308
PLAIN = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?")
SPELLINGS = ["".join(part) for n in range(1, 6) for part in itertools.product("-019.", repeat=n)]
"""Every text of up to five characters out of which plain numbers are made."""


def compiled(schema: dict[str, Any]) -> TokenFSM:
    return compile_grammar({"type": "json_schema", "schema": schema}, bytes_vocabulary())


def decimals(**limits: int) -> st.SearchStrategy[Decimal]:
    return st.decimals(allow_nan=False, allow_infinity=False, **limits)


@pytest.mark.parametrize("text", ["0", "-0", "7", "-12", "1.0", "1.50", "0.001", "1e5", "1E+2", "-1.5e-10", "1e307"])
def test_number_spellings(text: str) -> None:
    assert accepts(compiled({"type": "number"}), text)
    assert math.isfinite(json.loads(text))


@pytest.mark.parametrize(
    "text",
    ["", "-", "+1", "01", "-01", ".5", "1.", "1.e5", "1e", "1e+", "1 ", " 1", "0x1", "1_0", "Infinity", "NaN", "1e400"]
    + ["1e1000", "--1", "1.5.5", "1e5.5", "٣"],
)
def test_what_is_no_number(text: str) -> None:
    assert not accepts(compiled({"type": "number"}), text)
    assert not accepts(compiled(True), text)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["1.0", "1e2", "0.0", "true", "1.5"])
def test_integers_have_no_fraction_and_no_exponent(text: str) -> None:
    assert not accepts(compiled({"type": "integer"}), text)


def test_minus_zero_equals_zero() -> None:
    for schema in ({"minimum": 0}, {"maximum": 0}, {"type": "integer", "minimum": 0, "maximum": 0}):
        fsm = compiled({"type": "number", **schema})
        assert accepts(fsm, "-0")
        assert accepts(fsm, "0")
        assert not accepts(fsm, "-1") or "minimum" not in schema
    for schema in ({"exclusiveMinimum": 0}, {"exclusiveMaximum": 0}):
        fsm = compiled({"type": "number", **schema})
        assert not accepts(fsm, "-0")
        assert not accepts(fsm, "-0.00")
        assert not accepts(fsm, "0")


@pytest.mark.parametrize("bound", ["0", "1", "-1", "0.9", "-0.1", "10", "9.09", "-19", "0.01", "1e1", "1.10"])
@pytest.mark.parametrize("keyword", ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"])
def test_all_short_spellings_against_decimal(keyword: str, bound: str) -> None:
    fsm = compiled({"type": "number", keyword: json.loads(bound)})
    limit = Decimal(bound)
    for text in SPELLINGS:
        expected = False
        if PLAIN.fullmatch(text):
            value = Decimal(text)
            expected = {
                "minimum": value >= limit,
                "maximum": value <= limit,
                "exclusiveMinimum": value > limit,
                "exclusiveMaximum": value < limit,
            }[keyword]
        assert accepts(fsm, text) == expected, text


bounds = st.one_of(
    st.integers(-1000, 1000),
    st.integers(-(10**30), 10**30),
    st.floats(allow_nan=False, allow_infinity=False, min_value=-1e20, max_value=1e20),
    st.sampled_from([1e-7, -1e-7, 1e22, 1.5e15, 0.1, -0.1, 2.0, 1e16, 123456789.125, 5e-324]),
)


@settings(PROPERTY, max_examples=150)
@given(
    keywords=st.fixed_dictionaries(
        {}, optional=dict.fromkeys(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"], bounds)
    ),
    kind=st.sampled_from(["integer", "number"]),
    offsets=st.lists(
        st.sampled_from(["0", "1", "-1", "0.5", "1e-9", "-1e-9", "1e-30", "-0.1"]), min_size=3, max_size=3
    ),
    others=st.lists(decimals(min_value=-(10**6), max_value=10**6, places=3), min_size=3, max_size=3),
)
def test_any_bounds_against_the_validator(
    keywords: dict[str, Any], kind: str, offsets: list[str], others: list[Decimal]
) -> None:
    schema = {"type": kind, **keywords}
    limits = [Decimal(str(value)) for value in keywords.values()]
    with decimal.localcontext(prec=400):
        numbers = [*others, *(limit + Decimal(offset) for limit in limits for offset in offsets)]
    texts = [format(number, "f") for number in numbers]
    texts += [format(Decimal(int(number)), "f") for number in numbers]
    if kind == "integer":
        # 1.0 is an integer that is never spelled like this.
        texts = [text for text in texts if "." not in text]
    try:
        fsm = compiled(schema)
    except UnsatisfiableError:
        assert not any(is_valid(schema, text) for text in texts)
        return
    for text in texts:
        assert accepts(fsm, text) == is_valid(schema, text), text


@settings(PROPERTY, max_examples=40)
@given(low=bounds, high=bounds, kind=st.sampled_from(["integer", "number"]), rng=st.randoms(use_true_random=False))
def test_walks_stay_within_bounds(low: float, high: float, kind: str, rng: random.Random) -> None:
    schema = {"type": kind, "minimum": low, "exclusiveMaximum": high}
    try:
        fsm = compiled(schema)
    except UnsatisfiableError:
        integers = kind == "integer" and math.ceil(Decimal(str(low))) >= Decimal(str(high))
        assert integers or Decimal(str(low)) >= Decimal(str(high))
        return
    for _ in range(5):
        text = text_of(fsm.vocabulary, random_walk(fsm, rng, longest=rng.randrange(40))).decode()
        assert PLAIN.fullmatch(text)
        assert Decimal(str(low)) <= Decimal(text) < Decimal(str(high))


@pytest.mark.parametrize(
    ("low", "high"), [(5, 4), (3.1, 3.9), (-0.9, -0.1), (7, 7.5), (10**20 + 1, 10**20), (0.1, 0.9)]
)
def test_an_empty_range_of_integers_is_unsatisfiable(low: float, high: float) -> None:
    schema = {"type": "integer", "exclusiveMinimum": low, "maximum": high}
    with pytest.raises(UnsatisfiableError):
        compiled(schema)


def test_close_bounds_leave_what_lies_between() -> None:
    fsm = compiled({"type": "number", "exclusiveMinimum": 0.1, "exclusiveMaximum": 0.11})
    assert accepts(fsm, "0.1001")
    assert accepts(fsm, "0.109999")
    assert not accepts(fsm, "0.1")
    assert not accepts(fsm, "0.1000")
    assert not accepts(fsm, "0.110")


@pytest.mark.parametrize("bound", [10**41 + 1, -(10**60 - 1), int("123" * 30)])
def test_bounds_are_exact_however_many_digits_they_have(bound: int) -> None:
    """The default context of `decimal` has 28."""
    for keyword, allowed in (
        ("minimum", [0, 1, 1]), ("maximum", [1, 1, 0]), ("exclusiveMinimum", [0, 0, 1]), ("exclusiveMaximum", [1, 0, 0])
    ):  # fmt: skip
        fsm = compiled({"type": "number", keyword: bound})
        assert [accepts(fsm, str(bound + offset)) for offset in (-1, 0, 1)] == allowed


# -- digits ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["integer", "number"])
def test_digits_before_the_point_are_limited_and_behind_it_they_are_not(kind: str) -> None:
    fsm = compiled({"type": kind})
    assert accepts(fsm, "9" * MAX_DIGITS)
    assert accepts(fsm, "-" + "9" * MAX_DIGITS)
    assert not accepts(fsm, "9" * (MAX_DIGITS + 1))
    if kind == "number":
        assert accepts(fsm, "0." + "1" * 1000)
        assert accepts(fsm, "9" * MAX_DIGITS + "." + "1" * 1000)
        assert accepts(fsm, "9" * MAX_DIGITS + ".5")
        assert not accepts(fsm, "9" * (MAX_DIGITS + 1) + ".5")


@pytest.mark.parametrize("fraction", ["", ".5", "." + "5" * 400])
@pytest.mark.parametrize("sign", ["", "+", "-"])
def test_an_exponent_takes_the_room_of_99_digits(fraction: str, sign: str) -> None:
    fsm = compiled({"type": "number"})
    for many, fits in ((MAX_DIGITS - 99, True), (MAX_DIGITS - 98, False)):
        text = "9" * many + fraction
        assert accepts(fsm, text)
        assert accepts(fsm, f"{text}e{sign}99") == fits
        assert math.isfinite(float(f"{text}e{sign}99")) or not fits
    assert accepts(fsm, f"1{fraction}e{sign}307")


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "number"},
        {"type": "number", "minimum": 10 ** (MAX_DIGITS - 2)},
        {"type": "integer", "minimum": 10 ** (MAX_DIGITS - 1)},
        {"type": "integer", "multipleOf": 7, "minimum": 10 ** (MAX_DIGITS - 1)},
        {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1e-60},
        {"type": "number", "exclusiveMinimum": 10 ** (MAX_DIGITS - 1), "exclusiveMaximum": 10 ** (MAX_DIGITS - 1) + 1},
        {"enum": [10 ** (MAX_DIGITS - 1), 1.5]},
        {"anyOf": [{"type": "integer", "minimum": 10 ** (MAX_DIGITS - 3)}, {"const": 0.5}]},
    ],
)
def test_digits_never_run_out_in_the_middle(schema: dict[str, Any]) -> None:
    """However digits are spent, the number can be finished, and it is a finite double."""
    exact = jsonschema.Draft202012Validator(schema)
    for vocabulary in (bytes_vocabulary(), tekken_vocabulary()):
        fsm = compile_grammar({"type": "json_schema", "schema": schema}, vocabulary)
        rng = random.Random(5)
        for state in visited_states(fsm, rng):
            assert fsm.allowed_tokens(state)
        for _ in range(20):
            text = text_of(vocabulary, random_walk(fsm, rng, longest=400)).decode()
            assert exact.is_valid(json.loads(text, parse_float=Decimal))
            assert len(text.lstrip("-").partition(".")[0].partition("e")[0]) <= MAX_DIGITS
            assert math.isfinite(float(text))


@pytest.mark.parametrize(
    "schema",
    [{"type": "number", "minimum": 10**MAX_DIGITS}, {"enum": [10 ** (MAX_DIGITS + 6)]}, {"const": -(10**MAX_DIGITS)}],
)
def test_numbers_that_need_more_digits_do_not_exist(schema: dict[str, Any]) -> None:
    with pytest.raises(UnsatisfiableError):
        compiled(schema)
    # Elsewhere they are an alternative less, not a dead end.
    fsm = compiled({"anyOf": [schema, {"type": "null"}]})
    assert accepts(fsm, "null")
    assert all(fsm.allowed_tokens(state) for state in range(1, fsm.materialize()))
    fsm = compiled({"type": "object", "properties": {"a": schema}, "additionalProperties": False})
    assert accepts(fsm, "{}")
    assert not accepts(fsm, '{"a')


# -- enumerations ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "spellings"),
    [
        (1, {"1"}),
        (-0.0, {"-0.0", "0"}),
        (0, {"0"}),
        (2.0, {"2.0", "2"}),
        (0.5, {"0.5"}),
        (1e-7, {"1e-07"}),
        (1e22, {"1e+22", "10000000000000000000000"}),
        (-3, {"-3"}),
    ],
)
def test_enumerated_numbers_are_spelled_as_json_writes_them(value: float, spellings: set[str]) -> None:
    fsm = compiled({"enum": [value]})
    for text in (
        "1",
        "1.0",
        "0",
        "-0",
        "-0.0",
        "0.0",
        "2",
        "2.0",
        "0.5",
        "0.50",
        "1e-07",
        "1e+22",
        "-3",
        "3",
        str(10**22),
    ):
        if text in spellings:
            assert accepts(fsm, text)
        if accepts(fsm, text):
            assert exact(text) == Decimal(str(value))
    assert accepts(fsm, json.dumps(value))


@pytest.mark.parametrize(
    ("schema", "valid"),
    [
        ({"enum": [1, 2.5, 4], "minimum": 2}, {"2.5", "4"}),
        ({"enum": [1, 2.5, 4], "type": "integer"}, {"1", "4"}),
        ({"enum": [2.0, 2.5], "type": "integer"}, {"2"}),
        ({"enum": [1e-7, 5], "minimum": 0}, {"1e-07", "5"}),
        ({"enum": [1e-7, 5], "maximum": 1}, {"1e-07"}),
        ({"enum": [1, True, "1", None], "minimum": 2}, {"true", '"1"', "null"}),
        ({"enum": [True, False], "minimum": 2}, {"true", "false"}),
        ({"enum": [0, False]}, {"0", "false"}),
    ],
)
def test_enumerations_meet_their_siblings(schema: dict[str, Any], valid: set[str]) -> None:
    fsm = compiled(schema)
    for text in valid:
        assert accepts(fsm, text), text
        assert is_valid(schema, text)
    for text in {"1", "2", "2.0", "2.5", "4", "5", "1e-07", "true", "false", "0", '"1"', "null"} - valid:
        assert not (accepts(fsm, text) and not is_valid(schema, text)), text


@pytest.mark.parametrize(
    ("asked", "draft_4", "newest"),
    [
        ({"type": "integer"}, {str(10**20), "2"}, {"1e+20", str(10**20), "2"}),
        ({"not": {"type": "integer"}}, {"1e+20", "2.0"}, set()),
    ],
)
def test_in_draft_4_a_listed_number_is_an_integer_by_its_spelling(
    asked: dict[str, Any], draft_4: set[str], newest: set[str]
) -> None:
    """An exponent makes it no integer; later drafts go by the value."""
    listed = {"enum": [1e20, 2.0], **asked}
    for schema, valid in (({"$schema": "http://json-schema.org/draft-04/schema#"} | listed, draft_4), (listed, newest)):
        if not valid:
            with pytest.raises(UnsatisfiableError):
                compiled(schema)
            continue
        fsm = compiled(schema)
        assert {text for text in ("1e+20", str(10**20), "2", "2.0") if accepts(fsm, text)} == valid
        for text in valid:
            jsonschema.validate(json.loads(text), schema)


@pytest.mark.parametrize(
    "text",
    ["1e+308", "-1e308", "1.7976931348623157e+308", "1.7e308", "5e-324", "2.2250738585072014e-308", "9.99e-310"],
)
def test_every_finite_double_is_a_number(text: str) -> None:
    assert math.isfinite(float(text))
    assert accepts(compiled({}), text)


@pytest.mark.parametrize("text", ["1.8e308", "2e308", "1.7976931348623159e308", "1e309", "-9e308"])
def test_no_other_is(text: str) -> None:
    assert not math.isfinite(float(text))
    assert not accepts(compiled({}), text)


def test_a_listed_zero_may_have_a_sign() -> None:
    options = GrammarOptions(number_spelling="any")
    fsm = compile_grammar({"type": "json_schema", "schema": {"enum": [0, 2]}}, bytes_vocabulary(), options=options)
    assert all(accepts(fsm, text) for text in ("0", "-0", "0.0", "-0.0", "2", "2.0"))
    assert not any(accepts(fsm, text) for text in ("-2", "1", "0.1"))


@pytest.mark.parametrize("keyword", ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"])
def test_that_bounded_numbers_have_no_exponent_is_noted(keyword: str) -> None:
    fsm = compiled({"type": "number", keyword: 100})
    assert any("without an exponent" in note for note in fsm.notes)
    assert compiled({"type": "number"}).notes == []


def test_only_what_has_too_many_digits_is_said_to_have() -> None:
    with pytest.raises(UnsatisfiableError) as caught:
        compiled({"type": "number", "minimum": 10**MAX_DIGITS})
    assert f"{MAX_DIGITS} digits" in caught.value.message
    with pytest.raises(UnsatisfiableError) as caught:
        compiled({"type": "number", "minimum": 5, "maximum": 4})
    assert "digits" not in caught.value.message
