"""Structural tags: text outside of regions is free of triggers, regions hold what their content allows."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest

from benchmarks.vocabularies import tekken_vocabulary
from grammar_workers import GrammarError, TokenFSM, Vocabulary, compile_grammar
from grammar_workers.errors import InvalidSpecificationError, UnsatisfiableError, UnsupportedFeatureError
from tests.grammar_workers.vocabularies import (
    accepts,
    bytes_vocabulary,
    random_walk,
    shakespeare_vocabulary,
    states_along,
    text_of,
    visited_states,
)

ARGUMENTS = {
    "type": "object",
    "properties": {"x": {"type": "integer"}, "y": {"type": "string", "maxLength": 4}},
    "required": ["x"],
    "additionalProperties": False,
}
TOOL = bytes_vocabulary().special_tokens["<tool>"]


def json_content(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "schema": schema}


def tag(begin: str, content: dict[str, Any], end: str) -> dict[str, Any]:
    return {"begin": begin, "content": content, "end": end}


def structural(triggers: list[str], *tags: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "structural_tag", "triggers": triggers, "tags": list(tags), **more}


CALLS = structural(
    ["<f"],
    tag("<f=move>", json_content(ARGUMENTS), "</f>"),
    tag("<f=wait>", {"type": "regex", "pattern": "[0-9a<]*"}, "<"),
    tag("<fast>", json_content({"type": "integer"}), ""),
)


def regions_of(text: str) -> int:
    """How many regions a text of CALLS holds; raises when one is malformed."""
    many = 0
    while "<f" in text:
        many += 1
        text = text[text.index("<f") :]
        if found := re.match("<fast>(0|-?[1-9][0-9]*)", text):
            assert found[1] != "-0"
        elif found := re.match("<f=wait>([0-9a]*)<", text):
            pass
        else:
            found = re.match("<f=move>(.*?)</f>", text, re.S)
            assert found, text
            # The end mark may stand inside a string of the content; then the content goes on behind it.
            while not _is_json(found[1]):
                longer = re.compile(f"<f=move>(.{{{len(found[1]) + 1},}}?)</f>", re.S).match(text)
                assert longer, text
                found = longer
            value = json.loads(found[1])
            assert isinstance(value["x"], int) and value.keys() <= {"x", "y"}
        text = text[found.end() :]
    return many


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("make", [bytes_vocabulary, tekken_vocabulary])
@pytest.mark.parametrize(("at_least_one", "stop_after_first"), [(False, False), (True, False), (True, True)])
def test_every_trigger_opens_a_region(make: Any, at_least_one: bool, stop_after_first: bool) -> None:
    vocabulary = make()
    specification = {**CALLS, "at_least_one": at_least_one, "stop_after_first": stop_after_first}
    fsm = compile_grammar(specification, vocabulary)
    rng = random.Random(1)
    prefixes = ["", "a", "<", "<<f=mo", "<f=move>", '<f=move>{"x": 1', "<f=wait>12<", "<fast>3x<fast>4"]
    for prefix in prefixes:
        tokens = vocabulary.encode(prefix.encode())
        assert tokens is not None
        state = states_along(fsm, tokens)[-1]
        if state < 0:
            assert stop_after_first and prefix == prefixes[-1]
            continue
        for _ in range(4 if vocabulary is bytes_vocabulary() else 1):
            walk, here = list(tokens), state
            for _ in range(12):
                allowed = sorted(fsm.allowed_tokens(here) - set(vocabulary.eos_token_ids))
                if not allowed:
                    break
                walk.append(allowed[rng.randrange(len(allowed))])
                here = fsm.next_state(here, walk[-1])
            text = text_of(vocabulary, walk + fsm.shortest_completion(here)).decode()
            many = regions_of(text)
            assert many >= at_least_one
            if stop_after_first:
                assert many <= 1


@pytest.mark.parametrize(
    ("text", "accepted"),
    [
        ("no calls", True),
        ("a < b, f", True),
        ("<f", False),
        ("<first", False),
        ("<<f=wait>1a<", True),
        ("<f=wait>b", False),
        ("<f=wait><<fast>0 and <fast>-12", True),
        ('x<f=move>{"x": 1}</f>y<f=move>{"x": 2, "y": "</f>"}</f>', True),
        ('<f=move>{"x": 1}', False),
        ('<f=move>{"x": 1.5}</f>', False),
        ('<f=move>{"y": ""}</f>', False),
    ],
)
def test_what_is_a_text_with_calls(text: str, accepted: bool) -> None:
    assert accepts(compile_grammar(CALLS, bytes_vocabulary()), text) == accepted


# -- special tokens ----------------------------------------------------------------------------------------------


def follow(fsm: TokenFSM, *parts: str | int) -> int:
    """The state after these texts and tokens."""
    tokens: list[int] = []
    for part in parts:
        tokens += [part] if isinstance(part, int) else fsm.vocabulary.encode(part.encode()) or []
    return states_along(fsm, tokens)[-1]


SPECIAL = structural(["<tool>"], tag("<tool>go:", json_content({"type": "integer"}), "<tool>"))


def test_special_tokens_open_and_close_regions() -> None:
    fsm = compile_grammar(SPECIAL, bytes_vocabulary())
    for ended in ["", "free < text", "<tool"]:
        assert fsm.is_terminal(follow(fsm, ended))
    # Its characters are not the token, and are not generated as text.
    assert follow(fsm, "<tool>") == -1
    assert not fsm.is_terminal(follow(fsm, "a", TOOL))
    assert follow(fsm, "a", TOOL, "g") >= 0
    assert follow(fsm, "a", TOOL, "x") == -1
    assert follow(fsm, "a", TOOL, TOOL) == -1
    # A number ends where the token comes, which ends the region.
    assert not fsm.is_terminal(follow(fsm, TOOL, "go:12"))
    assert fsm.is_terminal(follow(fsm, TOOL, "go:12", TOOL))
    assert fsm.is_terminal(follow(fsm, TOOL, "go:12", TOOL, "more", TOOL, "go:0", TOOL))
    assert fsm.shortest_completion(follow(fsm, "a", TOOL, "go:1")) == [TOOL]
    assert follow(fsm, TOOL, "go:-", TOOL) == -1


def test_masks_and_steps_agree_about_special_tokens() -> None:
    vocabulary = bytes_vocabulary()
    fsm = compile_grammar({**SPECIAL, "at_least_one": True}, vocabulary)
    rng = random.Random(2)
    seen = 0
    for state in [*visited_states(fsm, rng), *states_along(fsm, [TOOL, *b"go:12"])]:
        allowed = fsm.allowed_tokens(state)
        assert allowed == {token for token in range(vocabulary.size) if fsm.next_state(state, token) >= 0}
        assert allowed
        seen += TOOL in allowed
    assert seen > 1
    for _ in range(20):
        tokens = random_walk(fsm, rng)
        assert fsm.is_terminal(states_along(fsm, tokens)[-1])
        assert tokens.count(TOOL) >= 2
    loaded = TokenFSM.from_bytes(fsm.to_bytes(), vocabulary)
    assert loaded.is_terminal(follow(loaded, "a", TOOL, "go:7", TOOL))
    assert fsm.materialize(max_states=500) > 10


def test_text_may_be_restricted_around_special_tokens() -> None:
    both = {"type": "all_of", "specifications": [SPECIAL, {"type": "regex", "pattern": "a*go:[3-5]+b"}]}
    fsm = compile_grammar(both, bytes_vocabulary())
    assert fsm.is_terminal(follow(fsm, "aa", TOOL, "go:35", TOOL, "b"))
    assert follow(fsm, "aa", TOOL, "go:36") == -1
    assert follow(fsm, "aago") >= 0  # As free text; the digits may be free text, too.
    assert follow(fsm, "b") == -1


def test_an_end_token_cannot_be_part_of_a_tag() -> None:
    """It ends the output; named in a tag, it is text like any other."""
    vocabulary = Vocabulary([*(bytes([byte]) for byte in range(256)), None], [256], {"<end>": 256})
    fsm = compile_grammar(structural(["<end>"], tag("<end>", json_content(True), ";")), vocabulary)
    assert fsm.is_terminal(states_along(fsm, [*b"x<end>1;"])[-1])


# -- contents ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "end", "good", "bad"),
    [
        ({"type": "regex", "pattern": "a*b?"}, "ab", ["tab", "taab", "tbab"], ["t", "tb", "tac"]),
        ({"type": "regex", "pattern": "a*"}, "", ["t", "taa", "tb", "taab"], []),
        ({"type": "choice", "choices": ["x", "xy"]}, "y", ["txy", "txyy"], ["tx"]),
        ({"type": "banned_words", "words": ["q"]}, ".", ["t.", "tab.", "tab.q"], ["tq.", "tab"]),
        ({"type": "grammar", "syntax": "gbnf", "text": 'root ::= "a"+'}, "!", ["ta!", "taaa!!"], ["t!", "ta"]),
        (
            {
                "type": "all_of",
                "specifications": [json_content({"type": "string"}), {"type": "banned_words", "words": ["no"]}],
            },
            "",
            ['t"yes"', 't""no'],
            ['t"no"', 't"NO"'],
        ),
    ],
)
def test_contents_of_every_kind(content: dict[str, Any], end: str, good: list[str], bad: list[str]) -> None:
    fsm = compile_grammar(structural(["t"], tag("t", content, end)), bytes_vocabulary())
    assert [text for text in good if not accepts(fsm, text)] == []
    assert [text for text in bad if accepts(fsm, text)] == []


TOKENS = {"type": "positions", "allowed": [[65]]}
RECURSIVE = {"type": "grammar", "syntax": "gbnf", "text": 'root ::= "(" root ")" | "a"'}


@pytest.mark.parametrize(
    ("text", "accepted"),
    [
        ("a", False),
        ("<f=move>x#", True),
        ("<f#", True),
        ("#<f", False),
        ("#a<fast>3 b#", True),
        ("#<fast>3<fast>4", True),
        ("#<fast>", False),
    ],
)
def test_tags_within_the_last_region(text: str, accepted: bool) -> None:
    """What comes before the region is free of the inner triggers' meaning."""
    outer = structural(["#"], tag("#", CALLS, ""), at_least_one=True, stop_after_first=True)
    assert accepts(compile_grammar(outer, bytes_vocabulary()), text) is accepted


@pytest.mark.parametrize(
    ("specification", "good", "bad"),
    [
        (
            structural(["<f"], tag("<f", json_content(True), ""), tag("<fa", {"type": "regex", "pattern": "b*"}, "")),
            ["<f1", "<fabb", "<f[]<fa"],
            ["<fb", "<f"],
        ),
        (structural(["<f"], tag("<f", RECURSIVE, ">")), ["x<f((a))>y", "", "<fa><fa>"], ["<f(a>", "<fa"]),
        (structural(["<f"], tag("<f", CALLS, "!")), ["x", "<f!", "<f<fast>3<f=wait>a<!x"], ["<f", "<f<fast>!"]),
        # The end is the first one: not "c" and then "aa", with an "a" left over.
        (
            structural(["<"], tag("<", {"type": "regex", "pattern": "ca*"}, "aa"), stop_after_first=True),
            ["<caa"],
            ["<caaa", "<caaaa"],
        ),
        (
            structural(["aba"], tag("aba", {"type": "regex", "pattern": "c*"}, ""), at_least_one=True),
            ["aba", "xabac", "ababa"],
            ["", "ab", "x"],
        ),
    ],
)
def test_tags_that_begin_alike_hold_others_or_end_early(
    specification: dict[str, Any], good: list[str], bad: list[str]
) -> None:
    fsm = compile_grammar(specification, bytes_vocabulary())
    assert [text for text in good if not accepts(fsm, text)] == []
    assert [text for text in bad if accepts(fsm, text)] == []


@pytest.mark.parametrize(
    ("specification", "error", "pointer"),
    [
        (structural(["<g"], tag("<f>", json_content(True), "")), InvalidSpecificationError, "/tags/0/begin"),
        (structural(["<f", "x"], tag("<f>", json_content(True), "")), InvalidSpecificationError, "/triggers/1"),
        (
            structural(["ab", "xaby"], tag("ab", json_content(True), ""), tag("xaby", json_content(True), "")),
            UnsupportedFeatureError,
            "/triggers/1",
        ),
        (structural(["<tool>x"], tag("<tool>x", json_content(True), "")), InvalidSpecificationError, "/triggers/0"),
        (structural(["<f"], tag("<f", json_content(False), "")), UnsatisfiableError, "/tags/0/content/schema"),
        (structural(["<f"], tag("<f", {"type": "regex", "pattern": "ab"}, "b")), UnsatisfiableError, "/tags/0/content"),
        (
            structural(
                ["<f"],
                tag(
                    "<f",
                    {"type": "all_of", "specifications": [json_content({}), {"type": "regex", "pattern": "1"}]},
                    "",
                ),
            ),
            UnsupportedFeatureError,
            "/tags/0/content/specifications/1",
        ),
        (
            structural(["<f"], tag("<f", json_content({"items": {"type": "x"}}), "")),
            InvalidSpecificationError,
            "/tags/0/content/schema/items/type",
        ),
        (structural(["<f"], tag("<f", {"type": "regex"}, "")), InvalidSpecificationError, "/tags/0/content/pattern"),
        (
            structural(["<f"], tag("<f", {"type": "banned_words", "words": [""]}, "")),
            InvalidSpecificationError,
            "/tags/0/content/words/0",
        ),
        (structural(["<f"], tag("<f", TOKENS, "")), UnsupportedFeatureError, "/tags/0/content"),
        (
            structural(["<f"], tag("<f", {"type": "all_of", "specifications": [RECURSIVE, CALLS]}, "")),
            UnsupportedFeatureError,
            "/tags/0/content/specifications/1",
        ),
        (
            structural(["<f"], tag("<f", RECURSIVE, ""), tag("<fa", json_content(True), "")),
            UnsupportedFeatureError,
            "/tags/0/content",
        ),
        (
            {"type": "all_of", "specifications": [CALLS, {"type": "json_object"}]},
            UnsupportedFeatureError,
            "/specifications/1",
        ),
    ],
)
def test_what_cannot_be_is_refused_at_its_place(
    specification: dict[str, Any], error: type[GrammarError], pointer: str
) -> None:
    with pytest.raises(error) as refused:
        compile_grammar(specification, bytes_vocabulary())
    assert refused.value.pointer == pointer


def test_a_vocabulary_that_cannot_spell_a_tag() -> None:
    with pytest.raises(UnsatisfiableError) as refused:
        compile_grammar(structural(["<f"], tag("<f", json_content(True), "")), shakespeare_vocabulary())
    assert refused.value.pointer == "/tags/0/begin"
    call = structural(["Go "], tag("Go ", {"type": "choice", "choices": ["left", "right"]}, "!"), at_least_one=True)
    fsm = compile_grammar(call, shakespeare_vocabulary())
    rng = random.Random(4)
    for _ in range(20):
        text = text_of(fsm.vocabulary, random_walk(fsm, rng)).decode()
        assert "Go " in text
        assert re.fullmatch("(?:(?!Go ).)*(?:Go (?:left|right)!(?:(?!Go ).)*)+", text, re.S), text


@pytest.mark.parametrize("end", ["0", "9>", ".", "e", "E1"])
def test_an_end_that_a_number_could_go_on_with_is_refused_after_numbers(end: str) -> None:
    for schema in ({"type": "integer"}, {"anyOf": [{"type": "string"}, {"type": "number"}]}, True):
        with pytest.raises(UnsupportedFeatureError) as caught:
            compile_grammar(structural(["<"], tag("<b>", json_content(schema), end)), bytes_vocabulary())
        assert caught.value.pointer == "/tags/0/content"
    fsm = compile_grammar(structural(["<"], tag("<b>", json_content({"type": "string"}), end)), bytes_vocabulary())
    assert accepts(fsm, f'<b>"5"{end}')


def test_the_last_character_of_all_may_be_a_token() -> None:
    vocabulary = Vocabulary([b"<", b"4", "\U0010ffff".encode(), None], [3])
    fsm = compile_grammar(structural(["<"], tag("<", json_content({"type": "integer"}), "")), vocabulary)
    assert accepts(fsm, "\U0010ffff<4")
