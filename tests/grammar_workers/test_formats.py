"""Formats against the checkers of `jsonschema` and the standard library: what is generated is well-formed."""

from __future__ import annotations

import datetime
import ipaddress
import json
import random
import re
import uuid
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest

from benchmarks.vocabularies import sentencepiece_vocabulary
from grammar_workers import GrammarOptions, TokenFSM, compile_grammar, warm_up_formats
from grammar_workers.errors import UnsatisfiableError
from grammar_workers.languages.json_schema.read.formats import STRING_FORMATS
from grammar_workers.languages.regex import compile
from tests.grammar_workers.schemas import is_valid
from tests.grammar_workers.vocabularies import accepts, bytes_vocabulary, random_walk, text_of

CHECKED = jsonschema.Draft202012Validator.FORMAT_CHECKER.checkers
EXAMPLES: dict[str, tuple[list[str], list[str]]] = {
    "date": (
        ["2024-02-29", "1999-12-31", "2000-02-29"],
        ["2023-02-29", "1900-02-29", "2024-13-01", "2024-1-1", "24-01-01"],
    ),
    "time": (["23:59:59Z", "00:00:00.123+01:00", "08:30:06-08:00"], ["24:00:00Z", "12:00:00", "12:60:00Z", "1:00:00Z"]),
    "date-time": (
        ["2024-02-29T12:00:00Z", "1985-04-12T23:20:50.52+00:20"],
        ["2023-02-29T12:00:00Z", "2024-01-01 12:00:00Z"],
    ),
    "duration": (["P3Y6M4DT12H30M5S", "PT1M", "P4W", "P1D"], ["P", "PT", "1D", "P1D2W", "P2S", "P1Y2D"]),
    "email": (
        ["joe.bloggs@example.com", "te~st@example.com", '"a b"@c.d', "a@[1.2.3.4]", "a@[IPv6:::1]"],
        ["joe", ".a@b.c", "a..b@c.d", "a@", "@b"],
    ),
    "hostname": (
        ["www.example.com", "a", "a--b.com", "a" * 63, "ab-c", "1--2"],
        ["-a.b", "a-.b", "a" * 64, "a_b", "", "a..b", "abc-", "ab--c", "xn--X"],
    ),
    "idn-hostname": (
        ["실례.테스트", "a。b", "παράδειγμα", "dömäin", "www.example.com"],
        ["a〮.b", "ä-", "-ä", "äb--c", "aא", "Äa"],
    ),
    "ipv4": (["127.0.0.1", "255.255.255.255", "0.0.0.0"], ["256.0.0.1", "1.2.3", "01.2.3.4", "1.2.3.4.5"]),
    "ipv6": (
        ["::1", "::", "1:2:3:4:5:6:7:8", "::ffff:192.168.0.1", "1::8"],
        [":1", "1::2::3", "12345::", "1:2:3:4:5:6:7", "::g"],
    ),
    "uri": (
        ["http://example.com/a?b#c", "urn:isbn:0451450523", "mailto:a@b.c", "http://[::1]:80/"],
        ["//a/b", "a b:c", "http://a b", "\\\\a"],
    ),
    "uri-reference": (["../a", "#b", "", "//h/p", "http://a"], ["\\a", "a b", "#a#b"]),
    "iri": (["http://ƒøø.ßår/?∂éœ=πîx#πîüx"], ["//é", "a b:c"]),
    "uri-template": (
        ["http://example.com/{term:1}/{term}", "{+a,b*}", "ü{a}名😀\ue000", "it's"],
        ["{a", "a}", "{}", "{a:0}", "a b", "a\0", "a\x1f", "a\x85", "a\ufdd0", "a\uffff", "a\U0001fffe"],
    ),
    "uuid": (
        ["2eb8aa08-aa98-11ea-b4aa-73b441d16380", "2EB8AA08-AA98-11EA-B4AA-73B441D16380"],
        ["2eb8aa08aa9811eab4aa73b441d16380", "2eb8"],
    ),
    "json-pointer": (["", "/a/b", "/a~1b~0", "/é/0"], ["a", "/~", "/~2"]),
    "regex": (
        ["", "^a+?$", r"(a|b)*\d{2,3}", "[^a-z_-]", r"(?:(?=x)(y))", "a{1,10}", r"\u00e9"],
        ["(", "a)", "[a", "a**", "{2}", "a{3,2}", "[b-a]", r"\a", "(?i)a", "(?P<n>a)", "*"],
    ),
    "relative-json-pointer": (["0", "1/a", "2#", "10/b~1"], ["/a", "-1/a", "01/a", "0##"]),
}


def _ends(parse: Callable[[str], Any]) -> Callable[[str], bool]:
    def check(text: str) -> bool:
        try:
            parse(text)
        except ValueError:
            return False
        return True

    return check


SECOND_OPINIONS = {
    "date": _ends(datetime.date.fromisoformat),
    "ipv4": _ends(ipaddress.IPv4Address),
    "ipv6": _ends(ipaddress.IPv6Address),
    "uuid": _ends(uuid.UUID),
}


def compiled(name: str, **keywords: Any) -> TokenFSM:
    schema = {"type": "string", "format": name, **keywords}
    return compile_grammar({"type": "json_schema", "schema": schema}, bytes_vocabulary())


@pytest.mark.parametrize("name", sorted(STRING_FORMATS))
def test_what_is_generated_is_well_formed(name: str) -> None:
    """Random walks, most of them short enough to hit the borders of each part."""
    assert name in CHECKED, (
        "no checker: `jsonschema` lacks a package, or no draft defines the format and none was made for it"
    )
    rng = random.Random(name)
    for vocabulary in (bytes_vocabulary(), sentencepiece_vocabulary()):
        fsm = compile_grammar({"type": "json_schema", "schema": {"type": "string", "format": name}}, vocabulary)
        for _ in range(60):
            text = text_of(vocabulary, random_walk(fsm, rng, longest=rng.choice([3, 8, 20, 60]))).decode()
            if name == "relative-json-pointer" and re.match(r'"[1-9]\d*0\d', text):
                continue  # The checker takes any 0 before a digit for a leading one.
            assert is_valid({"type": "string", "format": name}, text), text
            assert SECOND_OPINIONS.get(name, lambda _: True)(json.loads(text)), text


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples(name: str) -> None:
    fsm = compiled(name)
    accepted, rejected = EXAMPLES[name]
    for text in accepted:
        assert is_valid({"format": name}, json.dumps(text, ensure_ascii=False)), text
        assert accepts(fsm, json.dumps(text, ensure_ascii=False)), text
    for text in rejected:
        assert not accepts(fsm, json.dumps(text)), text


@pytest.mark.parametrize("day", range(0, 800, 7))
def test_every_day_of_two_leap_cycles(day: int) -> None:
    date = datetime.date(1899, 1, 1) + datetime.timedelta(days=day * 53)
    assert accepts(compiled("date"), f'"{date.isoformat()}"')


def test_formats_meet_other_keywords() -> None:
    short = compiled("ipv4", maxLength=8, pattern="^1")
    assert accepts(short, '"1.2.3.44"')
    assert not accepts(short, '"2.2.3.44"')
    assert not accepts(short, '"1.22.33.44"')
    assert accepts(compile_grammar({"type": "json_schema", "schema": {"format": "ipv4"}}, bytes_vocabulary()), "1.5")


def test_formats_annotate_by_option_and_unknown_ones_always() -> None:
    options = GrammarOptions(format="annotate")
    specification = {"type": "json_schema", "schema": {"type": "string", "format": "date"}}
    assert accepts(compile_grammar(specification, bytes_vocabulary(), options=options), '"no date"')
    unknown = compiled("colour")
    assert accepts(unknown, '"red"')
    assert any("colour" in note for note in unknown.notes)


def test_formats_made_ahead_are_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    warm_up_formats(bytes_vocabulary())

    def refuse(*_: object) -> None:
        raise AssertionError("a subset construction")

    monkeypatch.setattr(compile, "SubsetConstruction", refuse)
    for name in STRING_FORMATS:
        compile_grammar({"type": "json_schema", "schema": {"type": "string", "format": name}}, bytes_vocabulary())
    with pytest.raises(AssertionError):
        compile_grammar({"type": "regex", "pattern": "a new one"}, bytes_vocabulary())


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("date", "0000-01-01"),
        ("time", "23:59:60Z"),
        ("date-time", "1990-12-31T23:59:60Z"),
        ("email", "a@xn--bcher-kva.example"),
        ("idn-email", "a@xn--bcher-kva.example"),
        ("uri", "http://[v1.a]/"),
        ("uri-reference", "//[v1.a]/"),
        ("iri", "http://a/\U00010000"),
        ("iri-reference", "\U00010000"),
        ("uri-template", "{a:1000}"),
        ("regex", "(?<=a)b"),
    ],
)
def test_what_a_pattern_leaves_out_is_not_taken_for_another_text(name: str, text: str) -> None:
    """Whether a schema asks for the format or for its opposite."""
    asked = {"type": "string", "format": name}
    other = {"type": "string", "not": {"format": name}, "maxLength": len(text)}
    for schema in (asked, {"anyOf": [other, {"const": 0}]}, {"oneOf": [{"const": 0}, asked, {"type": "string"}]}):
        fsm = compile_grammar({"type": "json_schema", "schema": schema}, bytes_vocabulary())
        assert not accepts(fsm, json.dumps(text, ensure_ascii=False).encode())
    assert name == "regex" or accepts(fsm, b'"\\n"')


@pytest.mark.parametrize(("name", "draft"), [("time", 6), ("uuid", 7), ("iri", 4), ("uri-template", 4)])
def test_formats_that_a_draft_does_not_define_are_asserted_only_where_that_is_narrower(name: str, draft: int) -> None:
    head = {"$schema": f"http://json-schema.org/draft-0{draft}/schema#"}
    asked = compile_grammar({"type": "json_schema", "schema": {**head, "format": name}}, bytes_vocabulary())
    assert not accepts(asked, b'" "') and accepts(asked, b"0")
    with pytest.raises(UnsatisfiableError):
        compile_grammar({"type": "json_schema", "schema": {**head, "not": {"format": name}}}, bytes_vocabulary())
