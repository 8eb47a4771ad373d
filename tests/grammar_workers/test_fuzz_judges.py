"""The fuzzer can fail: its judges know right from wrong, and an engine that is broken on purpose is found out."""

from __future__ import annotations

import collections
import json
import random
from collections.abc import Callable, Sequence
from typing import Any

import jsonschema
import jsonschema_rs
import numpy as np
import pytest

from grammar_workers import GrammarOptions, TokenFSM, compile_grammar, warm_up
from grammar_workers.errors import UnsatisfiableError
from grammar_workers.languages.json_schema.read.formats import STRING_FORMATS
from tests.grammar_workers.fuzz import cases
from tests.grammar_workers.fuzz.alphabets import Alphabet
from tests.grammar_workers.fuzz.cases import Case, Draw, Subject
from tests.grammar_workers.fuzz.check import CPU_SECONDS, Counts, Failure, TimeIsUpError, check, cpu_limit, examine
from tests.grammar_workers.fuzz.exclusions import JSONSCHEMA, Question, is_excluded
from tests.grammar_workers.fuzz.json_judge import JsonJudge
from tests.grammar_workers.fuzz.laws import LAWS, verdict_of
from tests.grammar_workers.fuzz.readings import EcmaPatterns, PythonPatterns, UnreadableError
from tests.grammar_workers.fuzz.shrink import shrunk
from tests.grammar_workers.fuzz.specifications import draw_specification
from tests.grammar_workers.fuzz.text_judges import gbnf_as_lark, judge_of
from tests.grammar_workers.fuzz.values import FORMAT_TEXTS, ValueMaker
from tests.grammar_workers.fuzz.verdicts import Answer
from tests.grammar_workers.fuzz.vocabularies import Tokens, can_spell, every_byte, tokenizations
from tests.grammar_workers.other_formats import DRAFTS, OTHER_FORMATS, register
from tests.grammar_workers.schemas import is_valid

V, I, O = Answer.VALID, Answer.INVALID, Answer.OPEN  # noqa: E741
ORDERED = {"properties": {"a": True, "b": True}, "required": ["c"]}
DRAFT_4, DRAFT_2019 = "http://json-schema.org/draft-04/schema#", "https://json-schema.org/draft/2019-09/schema"


# -- judges --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "options", "text", "answer"),
    [
        ({}, {}, "[1, 2]", V),
        ({}, {}, "[1,2]", I),
        ({}, {}, "[1, 2", I),
        ({}, {}, "[NaN]", I),
        ({}, {}, '"\\ud800"', I),
        ({}, {"whitespace": "flexible"}, "[1 ,\n2]", V),
        ({}, {"whitespace": "flexible", "whitespace_limit": 2}, "[1,   2]", I),
        ({}, {}, '"\\u0061"', I),
        ({}, {"escapes": "any"}, '"\\u0061"', V),
        ({}, {"escapes": "any"}, '{"\\u0061": 0}', I),
        ({"enum": ["a"]}, {"escapes": "any"}, '"\\u0061"', O),
        ({"type": "integer"}, {}, "1.0", O),
        ({"type": "integer"}, {"number_spelling": "any"}, "1.0", V),
        ({"type": "integer", "$schema": DRAFT_4}, {"number_spelling": "any"}, "1.0", I),
        ({"enum": [0]}, {"number_spelling": "any"}, "-0.0", V),
        ({"minimum": 1e16}, {}, "1e+16", O),
        ({}, {}, "1e+16", V),
        ({}, {}, "1e+400", I),
        ({}, {}, "1" * 70, V),
        ({}, {}, "1" * 309, O),
        ({"multipleOf": 0.1}, {}, "0.3", V),
        ({"multipleOf": 0.1}, {}, "0.35", I),
        ({"format": "date"}, {}, '"2023-02-29"', I),
        ({"format": "date"}, {"format": "annotate"}, '"2023-02-29"', V),
        ({"pattern": r"^\w$"}, {}, '"a"', V),
        ({"pattern": r"^\w$"}, {}, '"é"', I),
        ({"pattern": r"^\W$"}, {}, '"é"', I),
        (ORDERED, {}, '{"b": 0, "c": 0, "d": 0}', V),
        (ORDERED, {}, '{"b": 0, "a": 0, "c": 0}', I),
        (ORDERED, {}, '{"a": 0, "a": 0, "c": 0}', I),
        (ORDERED, {"property_order": "any"}, '{"c": 0, "b": 0, "a": 0}', V),
        ({"allOf": [ORDERED]}, {}, '{"c": 0, "a": 0}', O),
        ({"properties": {"a": True}}, {"additional_properties": False}, '{"b": 0}', I),
        ({"allOf": [{}]}, {"additional_properties": False}, '{"b": 0}', V),
    ],
)
def test_json(schema: Any, options: dict[str, Any], text: str, answer: Answer) -> None:
    assert JsonJudge(schema, GrammarOptions(**options)).verdict(text).answer == answer


def test_judges_know_every_format() -> None:
    """One that they do not know is no format to them, which they would blame on the engine."""
    assert STRING_FORMATS.keys() <= jsonschema.Draft202012Validator.FORMAT_CHECKER.checkers.keys()
    assert STRING_FORMATS.keys() == FORMAT_TEXTS.keys()
    options: Any = {"validate_formats": True, "ignore_unknown_formats": False, "formats": OTHER_FORMATS}
    for name in STRING_FORMATS:
        assert jsonschema_rs.validator_for({"format": name}, **options)
    with pytest.raises(ValueError, match="nonsense"):
        jsonschema_rs.validator_for({"format": "nonsense"}, **options)


@pytest.mark.parametrize("draft", DRAFTS, ids=lambda draft: draft.__name__)
def test_judges_check_a_format_that_no_draft_defines(draft: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OTHER_FORMATS, "even", lambda value: not isinstance(value, str) or len(value) % 2 == 0)
    monkeypatch.setattr(draft.FORMAT_CHECKER, "checkers", dict(draft.FORMAT_CHECKER.checkers))
    register()
    schema = {"$schema": draft.META_SCHEMA["$schema"], "format": "even"}
    second = jsonschema_rs.validator_for(schema, validate_formats=True, formats=OTHER_FORMATS)
    for text, valid in (('"ab"', True), ('"abc"', False), ("7", True)):
        assert is_valid(schema, text) == second.is_valid(json.loads(text)) == valid
        assert (JsonJudge(schema, GrammarOptions()).verdict(text).answer == I) != valid


TAG = {
    "type": "structural_tag",
    "triggers": ["<"],
    "tags": [
        {"begin": "<a>", "content": {"type": "json_schema", "schema": {"type": "integer"}}, "end": "</>"},
        {"begin": "<b>", "content": {"type": "regex", "pattern": "[xy]+"}, "end": "x"},
    ],
}


TABLE = {
    "type": "automaton",
    "initial": 0,
    "accepting": [0],
    "transitions": [{"from": 0, "to": 1, "pattern": "[a-z]"}, {"from": 1, "to": 0, "pattern": "[0-9]"}],
}


@pytest.mark.parametrize(
    ("specification", "right", "wrong"),
    [
        ({"type": "regex", "pattern": "a+"}, ["a", "aa"], ["", "b"]),
        ({"type": "regex", "pattern": "(?i)s"}, ["s", "S"], ["ss", "x"]),
        ({"type": "choice", "choices": ["a", "b"]}, ["a"], ["", "ab"]),
        ({"type": "positions", "allowed": [["a", "b"], ["c"]]}, ["ac", "bc"], ["a", "cc", "acc"]),
        (TABLE, ["", "a1", "a1b2"], ["a", "1", "a1b"]),
        ({"type": "pattern", "elements": [["UPPER", "+"], [":", "1"], ["ANY", "?"]]}, ["AB:", "A:\n"], [":", "É:"]),
        ({"type": "grammar", "syntax": "lark", "text": 'start: "(" start ")" | "é" ~ 1..2\n'}, ["(éé)"], ["()", "ééé"]),
        (
            {"type": "grammar", "syntax": "gbnf", "text": 'root ::= "(" root ")" | [é"]{1,2} | ""'},
            ['(é")'],
            ['"""', ")"],
        ),
        ({"type": "banned_words", "words": ["ß"]}, ["s", "sas"], ["ss", "aSSa", "ẞ"]),
        ({"type": "banned_words", "words": ["a"], "whole_words": True}, ["aa", "éa"], ["a", "-a."]),
        ({"type": "banned_words", "words": ["a"], "case_sensitive": True}, ["A"], ["a"]),
        (TAG, ["", "x", "<a>1</>", "<b>yxx", "y<a>1</><a>2</>"], ["<", "<a>x</>", "<b>xx", "<a>1</><"]),
        ({**TAG, "at_least_one": True, "stop_after_first": True}, ["x<a>1</>"], ["", "<a>1</>x"]),
        (
            {"type": "all_of", "specifications": [{"type": "json_object"}, {"type": "banned_words", "words": ["n0"]}]},
            ['{"n": 0}'],
            ["[]", '{"n0": 0}', '{"a": "\\u006e0"}', '{"a": "\\u0061"}'],
        ),
    ],
)
def test_texts(specification: dict[str, Any], right: list[str], wrong: list[str]) -> None:
    judge = judge_of(specification, GrammarOptions())
    assert {text: judge.verdict(text).answer for text in right} == dict.fromkeys(right, V)
    assert {text: judge.verdict(text).answer for text in wrong} == dict.fromkeys(wrong, I)


def test_dialects_are_those_of_others() -> None:
    assert PythonPatterns.search(r"\w", "é") and not EcmaPatterns.search(r"\w", "é")
    assert EcmaPatterns.search("(?i)σ", "ς") and not EcmaPatterns.fullmatch("σ", "σσ")
    assert PythonPatterns.fullmatch(r"\p{Lu}(?<n>a)", "Aa") and EcmaPatterns.fullmatch(r"\p{Lu}(?P<n>a)", "Aa")
    for patterns in (PythonPatterns, EcmaPatterns):
        with pytest.raises(UnreadableError):
            patterns.search("(", "")


def test_a_grammar_in_the_other_notation() -> None:
    assert gbnf_as_lark('root ::= "]{1,2}" ["]{1,2} root?\n') == 'start : "]{1,2}" /["]/ ~ 1..2 start?\n'


def question(schema: dict[str, Any], text: str) -> Question:
    draft = 2019 if schema.get("$schema") == DRAFT_2019 else 2020
    names = frozenset(schema.get("patternProperties", {}))
    return Question(schema, draft, text, frozenset(schema), json.dumps(schema), names)


@pytest.mark.parametrize(
    ("schema", "value", "valid", "who"),
    [
        ({"$schema": DRAFT_2019, "contains": {"const": 1}, "unevaluatedItems": False}, [1], False, "both"),
        (
            {"$schema": DRAFT_2019, "additionalProperties": {"const": 1}, "unevaluatedProperties": False},
            {"a": 1},
            True,
            JSONSCHEMA,
        ),
        ({"format": "relative-json-pointer"}, "٣", False, JSONSCHEMA),
        ({"format": "duration"}, "P1Y2T3S", False, JSONSCHEMA),
    ],
)
def test_what_is_excluded_is_wrong(schema: dict[str, Any], value: Any, valid: bool, who: str) -> None:
    """When this fails, a judge has been mended: take the exclusion out."""
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    first = kind(schema, format_checker=kind.FORMAT_CHECKER).is_valid(value)
    second = jsonschema_rs.validator_for(schema, validate_formats=True).is_valid(value)
    assert first != valid
    assert (second != valid) == (who == "both")
    assert is_excluded(JSONSCHEMA, question(schema, json.dumps(value)))


@pytest.mark.parametrize(
    ("patterns", "name", "is_additional"),
    [(("",), "a", False), (("(?i)x", "[^k]y"), "Ky", False), (("(?i)x", "[^k]y"), "ky", True), ((), "a", True)],
)
def test_patterns_of_names_are_searched_one_by_one(patterns: tuple[str, ...], name: str, is_additional: bool) -> None:
    """`jsonschema` alone joins them: `` is then no pattern, and the flag of the first is one of all."""
    schema = {"patternProperties": dict.fromkeys(patterns, True), "additionalProperties": False}
    verdict = JsonJudge(schema, GrammarOptions()).verdict(json.dumps({name: 0}))
    assert verdict.answer == (Answer.INVALID if is_additional else Answer.VALID)


# -- what is drawn -------------------------------------------------------------------------------------------------


def test_every_kind_of_specification_is_drawn() -> None:
    rng = random.Random(1)
    drawn = [draw_specification(rng, Alphabet(rng)).specification for _ in range(400)]
    assert {one["type"] for one in drawn} == {
        "json_schema", "regex", "choice", "positions", "pattern", "grammar", "banned_words", "all_of", "structural_tag",
        "automaton", "substring",
    }  # fmt: skip
    text = json.dumps(drawn)
    for keyword in ("unevaluatedItems", "dependentSchemas", "propertyNames", "oneOf", "$ref", "contains", "multipleOf"):
        assert f'"{keyword}"' in text


def test_vocabularies_are_spelled_in_many_ways() -> None:
    vocabulary = Tokens((b"a", b"aa", b"\xc3", b"\xa9", "é".encode(), None), (5,)).vocabulary()
    found = tokenizations(vocabulary, b"aaa", random.Random(1), 9)
    assert sorted(map(tuple, found))[0] == (0, 0, 0)
    assert len(set(map(tuple, found))) == 3
    assert all(b"".join(map(vocabulary.token_bytes, tokens)) == b"aaa" for tokens in found)
    assert tokenizations(vocabulary, b"b", random.Random(1), 1) == []
    assert can_spell(vocabulary, "aé") and not can_spell(vocabulary, "è")


# -- broken engines ------------------------------------------------------------------------------------------------


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"enum": [0, 1]}, "b": {"type": "string", "maxLength": 2}},
    "required": ["a"],
    "additionalProperties": False,
}
VALUES = [
    {"a": 0},
    {"a": 1, "b": ""},
    {"a": 2},
    {"a": 0, "b": "ab"},
    {"a": 0, "b": "abc"},
    {"b": ""},
    {},
    {"a": 0, "c": 0},
]


@pytest.fixture(scope="module", autouse=True)
def warm() -> None:
    """Kernels that are compiled first take longer than a case may."""
    warm_up(every_byte().vocabulary())


def laws_broken(schema: Any = SCHEMA, options: dict[str, Any] | None = None) -> set[str]:
    """The laws that a check of one case finds broken."""
    case = Case({"type": "json_schema", "schema": schema}, options or {}, every_byte())
    rng = random.Random(3)
    alphabet = Alphabet(rng)
    texts = [json.dumps(value) for value in VALUES]
    drawn = Draw(case, texts, VALUES, alphabet, ValueMaker(rng, alphabet, schema, {}))
    counts: collections.Counter[str] = collections.Counter()
    failures = check(drawn, rng, counts)
    assert counts["CPU milliseconds"] < 1000 * CPU_SECONDS
    return {failure.law for failure in failures}


def test_nothing_is_wrong_with_what_is_right() -> None:
    assert laws_broken() == set()


@pytest.mark.parametrize(
    ("change", "law"),
    [
        ({"additionalProperties": True}, "sound"),
        ({"required": []}, "sound"),
        ({"properties": {"a": {"enum": [0, 1]}, "b": {"type": "string"}}}, "sound"),
        ({"maxProperties": 1}, "complete"),
        ({"properties": {"a": {"enum": [0, 1]}, "b": {"type": "string", "maxLength": 1}}}, "complete"),
        ({"properties": {"b": SCHEMA["properties"]["b"], "a": {"enum": [0, 1]}}}, "completion_is_sound"),
        ({"properties": {"b": SCHEMA["properties"]["b"], "a": {"enum": [0, 1]}}}, "complete"),
    ],
)
def test_an_engine_that_reads_another_schema(change: dict[str, Any], law: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def other(specification: Any, vocabulary: Any, **arguments: Any) -> TokenFSM:
        schema = {**specification["schema"], **change}
        return compile_grammar({"type": "json_schema", "schema": schema}, vocabulary, **arguments)

    monkeypatch.setattr(cases, "compile_grammar", other)
    assert law in laws_broken()


def test_an_engine_that_spells_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "compile_grammar", lambda specification, vocabulary, **_: compile_grammar(
        specification, vocabulary, options=GrammarOptions(whitespace="flexible", escapes="any")))  # fmt: skip
    assert "sound" in laws_broken()
    assert laws_broken(options={"whitespace": "flexible", "escapes": "any"}) == set()


def test_an_engine_that_refuses_what_can_be_satisfied(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> TokenFSM:
        raise UnsatisfiableError("nothing")

    monkeypatch.setattr(cases, "compile_grammar", refuse)
    assert laws_broken() == {"complete"}


@pytest.mark.parametrize("error", [AssertionError, RecursionError, MemoryError, ZeroDivisionError])
def test_an_engine_that_crashes(error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: Any, **__: Any) -> TokenFSM:
        raise error

    monkeypatch.setattr(cases, "compile_grammar", crash)
    assert laws_broken() == {"compiles"}


def test_an_engine_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def loop(*_: Any, **__: Any) -> TokenFSM:
        while True:
            pass

    monkeypatch.setattr(cases, "compile_grammar", loop)
    found = examine("compiles", Case({"type": "json_object"}, {}, every_byte()), None, 0.2)
    assert found is not None and "CPU time" in found


def test_a_judge_that_does_not_end() -> None:
    case = Case({"type": "regex", "pattern": "(a*)*b"}, {}, every_byte())
    with pytest.raises(TimeIsUpError), cpu_limit(0.2):
        verdict_of(Subject(case), 40 * b"a")
    assert examine("complete", case, 40 * b"a", 0.2) is None


@pytest.mark.parametrize("judging_s", [0.0, 0.6 * CPU_SECONDS])
def test_time_that_is_up_after_a_slow_judge_is_not_the_engines(
    monkeypatch: pytest.MonkeyPatch, judging_s: float
) -> None:
    def late(subject: Subject, _: Any) -> str | None:
        subject.judging_s = judging_s
        raise TimeIsUpError

    monkeypatch.setitem(LAWS, "stored", late)
    rng = random.Random(1)
    case = Case({"type": "regex", "pattern": "a"}, {}, every_byte())
    counts: Counts = Counts()
    failures = check(Draw(case, [], [], Alphabet(rng), None), rng, counts)
    assert [failure.law for failure in failures] == ([] if judging_s else ["stored"])
    assert counts["cut short by a judge that takes too long"] == bool(judging_s)


def one_bit_more(fsm: TokenFSM, state: int) -> Any:
    row = TokenFSM.allowed_mask(fsm, state).copy()
    row[ord("~") >> 5] |= np.uint32(1 << (ord("~") & 31))
    return row


def nothing_after_a_name(fsm: TokenFSM, state: int) -> Any:
    row = TokenFSM.allowed_mask(fsm, state)
    return np.zeros_like(row) if row[ord(":") >> 5] >> (ord(":") & 31) & 1 else row


def first_token_twice(fsm: TokenFSM, state: int) -> Sequence[int]:
    way = TokenFSM.shortest_completion(fsm, state)
    return [*way[:1], *way]


def detour(fsm: TokenFSM, state: int) -> Sequence[int]:
    """By way of property b, where there is none yet."""
    way = TokenFSM.shortest_completion(fsm, state)
    longer = [*way[:-1], *b', "b": ""}'] if bytes(way).endswith(b"0}") else way
    return longer


@pytest.mark.parametrize(
    ("method", "broken", "law"),
    [
        ("allowed_mask", one_bit_more, "consistent"),
        ("allowed_mask", nothing_after_a_name, "consistent"),
        ("is_terminal", lambda fsm, state: state == 3 or TokenFSM.is_terminal(fsm, state), "consistent"),
        ("count_allowed", lambda fsm, state: 7, "consistent"),
        ("forced_tokens", lambda fsm, state, limit=64: [], "consistent"),
        ("shortest_completion", lambda fsm, state: [], "has_a_way_on"),
        ("shortest_completion", first_token_twice, "has_a_way_on"),
        ("shortest_completion", detour, "has_a_way_on"),
        ("to_bytes", lambda fsm: compile_grammar({"type": "json_object"}, fsm.vocabulary).to_bytes(), "stored"),
    ],
)
def test_an_automaton_that_breaks_its_contract(
    method: str, broken: Callable[..., Any], law: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(TokenFSM):
        pass

    setattr(Broken, method, broken)

    def compile_broken(*arguments: Any, **options: Any) -> TokenFSM:
        fsm = compile_grammar(*arguments, **options)
        fsm.__class__ = Broken
        return fsm

    monkeypatch.setattr(cases, "compile_grammar", compile_broken)
    assert law in laws_broken()


def test_tokens_that_lead_elsewhere_than_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = Tokens((*every_byte().tokens, b'{"'), (256,))

    class Broken(TokenFSM):
        def next_state(self, state: int, token_id: int) -> int:
            return -1 if token_id == 257 else TokenFSM.next_state(self, state, token_id)

    def compile_broken(*arguments: Any, **options: Any) -> TokenFSM:
        fsm = compile_grammar(*arguments, **options)
        fsm.__class__ = Broken
        return fsm

    case = Case({"type": "json_schema", "schema": SCHEMA}, {}, tokens)
    assert examine("same_state", case, b'{"a": 0}') is None
    monkeypatch.setattr(cases, "compile_grammar", compile_broken)
    assert examine("same_state", case, b'{"a": 0}') is not None


def test_failures_are_made_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that knows no `maxLength`: what is left of a large case is about that alone."""

    def without(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: without(part) for name, part in value.items() if name != "maxLength"}
        return [without(part) for part in value] if isinstance(value, list) else value

    monkeypatch.setattr(cases, "compile_grammar", lambda specification, vocabulary, **options: compile_grammar(
        without(specification), vocabulary, **options))  # fmt: skip
    tokens = Tokens((*every_byte().tokens, b"ab", b'": "'), (256,))
    text = b'{"a": 1, "b": "abcdefgh"}'
    case = Case({"type": "json_schema", "schema": SCHEMA}, {"number_spelling": "any"}, tokens)
    message = examine("sound", case, text)
    assert message is not None
    found = shrunk(Failure("sound", case, text, message))
    assert found.case.tokens == every_byte()
    assert found.case.options == {}
    assert found.case.specification == {"type": "json_schema", "schema": {"properties": {"b": {"maxLength": 0}}}}
    assert isinstance(found.witness, bytes) and len(found.witness) == len('{"b": "a"}')
