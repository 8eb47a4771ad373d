"""Structural tags made of formats: what they allow, token by token, and what is refused where."""

from __future__ import annotations

import ast
import random
from typing import Any

import jsonschema
import pytest

from grammar_workers import Vocabulary, compile_grammar
from grammar_workers.errors import GrammarError, InvalidSpecificationError, UnsatisfiableError, UnsupportedFeatureError
from grammar_workers.keys import grammar_key
from tests.grammar_workers.vocabularies import random_walk, text_of

Format = dict[str, Any]

OBJECT = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
JSON = {"type": "json_schema", "json_schema": OBJECT}
ANY = {"type": "any_text"}

CALL, END_OF_CALL, END = 256, 257, 258
VOCABULARY = Vocabulary(
    [*(bytes([byte]) for byte in range(256)), None, None, None],
    eos_token_ids=[END],
    special_tokens={"<|call|>": CALL, "<|/call|>": END_OF_CALL, "<|end|>": END},
)


def const(value: str) -> Format:
    return {"type": "const_string", "value": value}


def tag(begin: Any, content: Format, end: Any) -> Format:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def specification(one: Format) -> dict[str, Any]:
    return {"type": "structural_tag", "format": one}


def accepts(one: Format, *pieces: str | int) -> bool:
    """Whether a text of characters and special tokens is allowed as a whole."""
    grammar = compile_grammar(specification(one), VOCABULARY)
    state = grammar.initial_state
    for piece in pieces:
        for token in [piece] if isinstance(piece, int) else piece.encode():
            state = grammar.next_state(state, token)
            if state < 0:
                return False
    return grammar.is_terminal(state)


def refusal(one: Format) -> GrammarError:
    with pytest.raises(GrammarError) as caught:
        compile_grammar(specification(one), VOCABULARY)
    return caught.value


def test_texts_that_name_special_tokens_are_these() -> None:
    call = tag("<|call|>f", JSON, "<|/call|>")
    calls = {"type": "triggered_tags", "triggers": ["<|call|>"], "tags": [call]}
    assert accepts(calls, "some text ", CALL, 'f{"a": 1}', END_OF_CALL, " and more")
    assert not accepts(calls, '<|call|>f{"a": 1}<|/call|>')
    assert not accepts(calls, "as text: <|call|>")
    assert not accepts(calls, CALL, 'f{"a": 1}</call>')


def test_tokens_and_free_text_stand_side_by_side() -> None:
    one = {
        "type": "sequence",
        "elements": [
            tag(
                {"type": "token", "token": "<|call|>"}, {"type": "any_tokens"}, {"type": "token", "token": END_OF_CALL}
            ),
            ANY,
        ],
    }
    assert accepts(one, CALL, "anything", END_OF_CALL, "text")
    assert not accepts(one, CALL, "anything")
    # What is any token may be a special one, too, but not the end.
    assert accepts(one, CALL, CALL, END_OF_CALL)
    assert not accepts(one, CALL, END_OF_CALL, END_OF_CALL)


def test_all_tokens_may_be_excluded() -> None:
    vocabulary = Vocabulary([b"a", b"b", None], [2])
    none = {"exclude_tokens": [0, 1]}
    for one in (
        {"type": "sequence", "elements": [{"type": "any_tokens", **none}, const("a")]},
        {"type": "or", "elements": [{"type": "exclude_token", **none}, const("a")]},
    ):
        grammar = compile_grammar(specification(one), vocabulary)
        assert grammar.allowed_tokens(grammar.initial_state) == {0}
    with pytest.raises(UnsatisfiableError):
        compile_grammar(specification({"type": "exclude_token", **none}), vocabulary)


@pytest.mark.parametrize("at_least_one", [False, True])
@pytest.mark.parametrize("stop_after_first", [False, True])
def test_tags_behind_trigger_tokens(at_least_one: bool, stop_after_first: bool) -> None:
    begin = {"type": "token", "token": "<|call|>"}
    tags = [tag(begin, JSON, "</a>"), tag(begin, const("!"), {"type": "token", "token": END_OF_CALL})]
    one = {
        "type": "token_triggered_tags",
        "trigger_tokens": ["<|call|>"],
        "tags": tags,
        "at_least_one": at_least_one,
        "stop_after_first": stop_after_first,
    }
    first, second = [CALL, '{"a": 1}</a>'], [CALL, "!", END_OF_CALL]
    assert accepts(one, *first) and accepts(one, *second)
    assert accepts(one, "text ", *first) is not at_least_one
    assert accepts(one) is accepts(one, "text") is not at_least_one
    assert accepts(one, *first, " text ", *second) is accepts(one, *second, *first) is not stop_after_first
    assert not accepts(one, CALL, "!</a>") and not accepts(one, CALL, '{"a": 1}', END_OF_CALL)
    assert not accepts(one, CALL, '{"a": 1}') and not accepts(one, CALL, "text")


def test_tags_that_share_their_end() -> None:
    ends: list[Any] = ["}>", "}>", ["}>", "}."], {"type": "token", "token": END_OF_CALL}]
    tags = [tag(f"<{name}:", {"type": "regex", "pattern": name}, end) for name, end in zip("abcd", ends, strict=True)]
    one = {"type": "triggered_tags", "triggers": ["<"], "tags": tags}
    told = {"}>": "abc", "}.": "c", END_OF_CALL: "d", "": ""}
    for name in "abcd":
        for end, names in told.items():
            text = [f"x<{name}:{name}", end]
            assert accepts(one, *text) is accepts(one, *text, *text, "y") is (name in names), text


def test_a_token_may_stand_for_its_text() -> None:
    one = {"type": "sequence", "elements": [{"type": "any_tokens", "exclude_tokens": ["b"]}, const("ab")]}
    assert accepts(one, "aaab")
    assert accepts(one, "cab")
    assert not accepts(one, "abab")
    assert not accepts(one, "ca")


def test_several_schemas_are_one_value() -> None:
    other = {"type": "json_schema", "json_schema": {"type": "object", "required": ["b"]}}
    one = tag("[", {"type": "or", "elements": [JSON, other, const("none")]}, "]")
    assert accepts(one, '[{"a": 1}]')
    assert accepts(one, '[{"b": 1}]')
    assert accepts(one, "[none]")
    assert not accepts(one, "[{}]")


def test_recursive_grammars() -> None:
    nested = {"type": "grammar", "grammar": 'root ::= "(" root ")" | "x"'}
    one = {"type": "plus", "content": tag("<", nested, ">")}
    assert accepts(one, "<((x))><x>")
    assert not accepts(one, "<((x)>")
    beside = {"type": "sequence", "elements": [nested, JSON]}
    assert accepts(beside, '((x)){"a": 1}') and not accepts(beside, '((x){"a": 1}')
    counted = {"type": "sequence", "elements": [nested, {"type": "any_text", "max_tokens": 2}]}
    error = refusal(counted)
    assert isinstance(error, UnsupportedFeatureError) and "put a fixed text between them" in error.message
    assert error.pointer == "/format/elements/0"
    counted["elements"].insert(1, const(";"))
    assert accepts(counted, "(x);ab") and not accepts(counted, "(x);abc")


def test_a_grammar_in_a_tag_may_read_every_character() -> None:
    one = tag("<", {"type": "grammar", "grammar": 'root ::= "(" root ")" | [^()]'}, ">")
    # Of the second character, the reader makes a placeholder if the grammar has tokens.
    for character in ("é", "\U0010f000", "\U0010ffff"):
        assert accepts(one, f"<(({character}))>") and not accepts(one, f"<({character}>")


def test_limits_of_free_text() -> None:
    one = tag("<", {"type": "any_text", "max_chars": 2}, ">")
    assert accepts(one, "<é€>")
    assert not accepts(one, "<abc>")
    assert "limit" in str(refusal({"type": "any_text", "max_chars": 10**9}))


def test_json_has_its_fields() -> None:
    both = {"type": "object", "properties": {"a": {"const": 1}, "b": {"type": "string"}}, "required": ["a", "b"]}
    value = {"type": "json_schema", "json_schema": {**both, "additionalProperties": False}}
    assert not accepts(value, '{"b": "x", "a": 1}')
    assert accepts({**value, "any_order": True}, '{"b": "x", "a": 1}')
    assert not accepts({**value, "any_order": True}, '{"b": "x", "b": "x"}')
    assert accepts({**value, "max_whitespace_cnt": 2}, '{  "a":1,\n"b": "x"}')
    assert not accepts({**value, "max_whitespace_cnt": 2}, '{   "a": 1, "b": "x"}')
    assert accepts({**value, "excludes": ["</"]}, '{"a": 1, "b": "<a"}')
    assert not accepts({**value, "excludes": ["</"]}, '{"a": 1, "b": "</a"}')


def arguments(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def test_arguments_in_the_markup_of_a_family() -> None:
    schema = arguments(city={"type": "string", "maxLength": 5}, days={"type": "integer", "maximum": 9})
    one = {"type": "json_schema", "style": "qwen_xml", "json_schema": schema}
    assert accepts(one, "<parameter=city>Paris</parameter>\n<parameter=days> 3</parameter>")
    assert not accepts(one, "<parameter=city>Lisbon</parameter>\n<parameter=days> 3</parameter>")
    assert not accepts(one, "<parameter=city>Paris</parameter><parameter=days>10</parameter>")
    assert not accepts(one, "<parameter=days>3</parameter><parameter=city>Paris</parameter>")
    own = {"type": "parameters", "json_schema": schema, "element": "[$key: $value]\n"}
    assert accepts(own, "[city: a ]\n[days: 3]\n")
    assert not accepts(own, "[city: a]\n [days: 3]\n")
    assert not accepts(own, "[city: ]]\n[days: 3]\n")


def test_what_may_be_a_string_never_looks_like_other_json() -> None:
    schema = arguments(a={"type": ["string", "null", "array"], "items": {"const": 1}})
    one = {"type": "json_schema", "style": "qwen_xml", "json_schema": schema}
    for text, allowed in (("x", 1), ("null", 1), ("[1]", 1), ("[2]", 0), ("1", 0), ("true", 0), ('"x"', 0), ("1x", 1)):
        assert accepts(one, f"<parameter=a>{text}</parameter>") == bool(allowed), text
    told = {"type": "json_schema", "style": "kimi_k3_xml", "json_schema": schema}
    element = '<|open|>argument key="a" type="{}"<|sep|>{}<|close|>argument<|sep|>'
    assert accepts(told, element.format("string", "1"))
    assert accepts(told, element.format("null", "null"))
    assert not accepts(told, element.format("null", "x"))


@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        ({"type": "object", "anyOf": [{}]}, "/format/json_schema/anyOf"),
        (arguments(**{"a>b": {}}), "/format/json_schema/properties/a>b"),
        ({"required": ["a"]}, "/format/json_schema"),
        (arguments(a={"type": "string", "pattern": "("}), "/format"),
    ],
)
def test_arguments_that_markup_cannot_hold(schema: Any, pointer: str) -> None:
    assert refusal({"type": "json_schema", "style": "qwen_xml", "json_schema": schema}).pointer == pointer


PAIR = {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 3}
RECURSIVE = {"$defs": {"a": {"items": {"$ref": "#/$defs/a"}, "type": "array"}}}
NESTED = {
    "type": "object",
    "properties": {
        "a": {"type": "string"},
        "b": {"enum": [True, None, "x", {"c": [False, "y"]}]},
        "c": {"type": "object", "properties": {"d": {"type": ["boolean", "number"]}, "e": {"$ref": "#/$defs/e"}}},
        "d": {
            "anyOf": [{"type": "null"}, {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 3}]
        },
    },
    "required": ["b", "d"],
    "$defs": {"e": {"type": "array", "items": {"type": "string", "maxLength": 3}}},
}
KEYWORDS = {"type": "parameters", "element": "$key=$value", "separator": ", ", "notation": "python"}
BARE = {"type": "parameters", "element": "$key:$value", "separator": ",", "notation": "bare", "quote": "<q>"}


def test_arguments_as_python_writes_them() -> None:
    one = {**KEYWORDS, "json_schema": NESTED}
    fsm = compile_grammar(specification(one), VOCABULARY)
    rng = random.Random(3)
    several = set()
    for _ in range(60):
        text = text_of(VOCABULARY, random_walk(fsm, rng)).decode()
        (call,) = ast.parse(f"f({text})").body
        assert isinstance(call, ast.Expr) and isinstance(call.value, ast.Call) and not call.value.args
        found = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.value.keywords}
        jsonschema.validate(found, NESTED)
        several.add(frozenset(found))
    assert len(several) == 4
    for text in ("b=True, d=None", 'a="\\"\\n", b={"c": [False, "y"]}, d=[1, 2]', 'b="x", c={"e": ["é"]}, d=None'):
        assert accepts(one, text)
    for text in ("b=true, d=None", "b=True,d=None", "d=None, b=True", "b='x', d=None", "b=True, d=None, ", "d=None"):
        assert not accepts(one, text)


def test_arguments_in_gemmas_notation() -> None:
    one = {**BARE, "json_schema": NESTED}
    for text in (
        'a:<q>x, "y"\n<q>,b:true,d:null',
        "b:{c:[false,<q>y<q>]},c:{d:2,e:[<q>a<q>,<q><q>]},d:[1,2]",
        "b:null,d:null",
    ):
        assert accepts(one, text)
    for text in (
        "b:true",
        "b:<q>y<q>,d:null",
        "b:null,d:[1]",
        "b:null,c:{e:[<q>abcd<q>]},d:null",
        'b:"x",d:null',
        ",b:null,d:null",
    ):
        assert not accepts(one, text)


def test_gemmas_notation_is_a_style() -> None:
    one = {"type": "json_schema", "style": "gemma", "json_schema": NESTED, "excludes": ["<|channel>", "zz"]}
    for text in ("{b:null,d:null}", '{a:<|"|>x, "y"<|"|>,b:{c:[false,<|"|>y<|"|>]},c:{e:[<|"|>a<|"|>]},d:[1,2]}'):
        assert accepts(one, text)
    for text in (
        "b:null,d:null",
        "{b:null,d:null }",
        "{b: null,d:null}",
        '{a:<|"|>azzb<|"|>,b:null,d:null}',
        '{a:<|"|><|channel><|"|>,b:null,d:null}',
    ):
        assert not accepts(one, text)
    assert accepts({**one, "excludes": []}, '{a:<|"|>azzb<|"|>,b:null,d:null}')
    for schema, pointer in ((arguments(zz={}), "/properties/zz"), (arguments(a={"const": ["zz"]}), "/properties/a")):
        found = refusal({**one, "json_schema": schema})
        assert isinstance(found, UnsupportedFeatureError) and found.pointer == f"/format/json_schema{pointer}"


def test_a_grammar_may_name_its_syntax() -> None:
    lark, gbnf = 'start: "a" start | "b"', 'root ::= "a" root | "b"'
    for text, syntax in ((lark, "lark"), (gbnf, "ebnf"), (lark, None), (gbnf, None)):
        one = {"type": "grammar", "grammar": text} | ({"syntax": syntax} if syntax else {})
        assert accepts(one, "aab") and not accepts(one, "aa")
    for text, syntax in ((lark, "ebnf"), (gbnf, "lark")):
        assert isinstance(refusal({"type": "grammar", "grammar": text, "syntax": syntax}), InvalidSpecificationError)


@pytest.mark.parametrize(
    ("format_", "schema", "pointer"),
    [
        (KEYWORDS, arguments(**{"a-b": {}}), "/properties/a-b"),
        (KEYWORDS, arguments(lambda_={}, **{"lambda": {}}), "/properties/lambda"),
        (BARE, arguments(**{"a b": {}}), "/properties/a b"),
        (BARE, arguments(a={"type": "array", "uniqueItems": True}), "/properties/a/uniqueItems"),
        (BARE, arguments(a={"type": "object", "properties": {"b": {"type": "object", "minProperties": 1}}}), None),
        (BARE, arguments(a={"oneOf": [{"type": "object"}, {"type": "object", "properties": {"b": {}}}]}), None),
        (
            BARE,
            {**arguments(a={"$ref": "#/$defs/a"}), **RECURSIVE},
            None,
        ),
    ],
)
def test_arguments_that_a_notation_cannot_write(format_: Any, schema: Any, pointer: str | None) -> None:
    found = refusal({**format_, "json_schema": schema})
    assert isinstance(found, UnsupportedFeatureError) and found.pointer is not None
    if pointer is not None:
        assert found.pointer == f"/format/json_schema{pointer}"


def test_specifications_are_formats() -> None:
    words = {"type": "specification", "specification": {"type": "banned_words", "words": ["no"]}}
    one = tag("<", words, ">")
    assert accepts(one, "<yes>")
    assert not accepts(one, "<No>")
    assert not accepts(one, "<a>b>")
    inner = {"type": "specification", "specification": specification({"type": "star", "content": JSON})}
    assert accepts(tag("<", inner, ">"), '<{"a": 1}{"a": 2}>')


@pytest.mark.parametrize(
    ("one", "kind", "pointer"),
    [
        ({"type": "sequence", "elements": []}, InvalidSpecificationError, "/format/elements"),
        ({"type": "nothing"}, InvalidSpecificationError, "/format"),
        ({"type": "repeat", "min": 2, "max": 1, "content": ANY}, InvalidSpecificationError, "/format"),
        ({"type": "or", "elements": [ANY, JSON]}, UnsupportedFeatureError, "/format/elements/1"),
        (
            {"type": "sequence", "elements": [{"type": "json_schema", "json_schema": {"type": "integer"}}, const("1")]},
            UnsupportedFeatureError,
            "/format/elements/0",
        ),
        (
            {"type": "triggered_tags", "triggers": ["<"], "tags": [tag("a", ANY, "b")]},
            InvalidSpecificationError,
            "/format/tags/0/begin",
        ),
        (
            {"type": "triggered_tags", "triggers": ["a", "b"], "tags": [tag("a", ANY, "b")]},
            InvalidSpecificationError,
            "/format/triggers/1",
        ),
        (
            {"type": "triggered_tags", "triggers": ["ab", "xab"], "tags": [tag("ab", ANY, "b"), tag("xab", ANY, "b")]},
            UnsupportedFeatureError,
            "/format/triggers/1",
        ),
        ({"type": "token", "token": "no such token"}, InvalidSpecificationError, "/format/token"),
        ({"type": "token", "token": 9999}, InvalidSpecificationError, "/format/token"),
        ({"type": "token", "token": "<|end|>"}, InvalidSpecificationError, "/format/token"),
        (const("\ud800"), InvalidSpecificationError, "/format/value"),
        (tag("a", {"type": "json_schema", "json_schema": {"type": 1}}, "b"), InvalidSpecificationError, None),
    ],
)
def test_refusals_point_at_their_place(one: Format, kind: type[GrammarError], pointer: str | None) -> None:
    error = refusal(one)
    assert isinstance(error, kind), error
    if pointer is None:
        assert str(error.pointer).startswith("/format/content/")
    else:
        assert error.pointer == pointer


def test_one_shape_at_a_time() -> None:
    for wrong in ({"format": ANY, "triggers": ["a"]}, {"format": ANY, "at_least_one": True}, {}):
        with pytest.raises(InvalidSpecificationError):
            compile_grammar({"type": "structural_tag", **wrong}, VOCABULARY)


def test_keys_are_those_of_the_language() -> None:
    def key(one: Format) -> str:
        return grammar_key(specification(one), VOCABULARY.fingerprint)

    titled = {"type": "json_schema", "json_schema": {"title": "t", **OBJECT}}
    assert key(JSON) == key(titled) == key({**JSON, "style": "json", "any_order": False})
    assert len({key(JSON), key({**JSON, "any_order": True}), key(ANY), key({**ANY, "excludes": ["a"]})}) == 4
    assert key(tag("a", ANY, "b")) != key(tag("a", ANY, ["b", "c"]))
