"""Patterns against the two dialects themselves, V8 for ECMA-262 (flag u) and Python's `re`: case, classes, borders."""

from __future__ import annotations

import functools
import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from py_mini_racer import MiniRacer

from grammar_workers import Limits
from grammar_workers.dfa import charset
from grammar_workers.dfa.charset import Charset
from grammar_workers.languages.regex.compile import compile_regex
from grammar_workers.languages.regex.parse import Characters, read_regex
from tests.grammar_workers.properties import PROPERTY

ATOMS = [
    r"\w", r"\W", r"\d", r"\D", r"\s", r"\S", ".", "[a-z]", "[^a-z]", "[k-s]", "[^k-s]", r"[\w]", r"[^\w]", r"[\W]",
    r"[^\W]", r"[\Wk]", r"[^\Wk]", r"[\d_ſ]", "[^İ]", "[ι-ω]", "İ", "ı", "i", "K", "ſ", "s", "ß", "ẞ", "σ", "ς", "Ω",
    "µ", "ﬅ", "ǆ", "ǅ", r"\u0345", "ΐ", "θ", "ᲀ", "Ⴀ", "ა", "Ა", "Ꭰ", "ꭰ", "𐐀",
]  # fmt: skip
ASKED = charset.make([(0, 0x30FF), (0xA640, 0xABFF), (0xFB00, 0xFB4F), (0xFF00, 0xFFFF), (0x10400, 0x1044F)])
"""All scripts that have case or spaces, and characters around them."""
SCRIPT = """
function read(pattern, flags, all) {
  const found = [];
  for (const match of all.matchAll(new RegExp(pattern, flags + 'gu'))) found.push(match[0].codePointAt(0));
  return JSON.stringify(found);
}
function search(pattern, flags, texts) {
  const compiled = new RegExp(pattern, flags + 'u');
  return JSON.stringify(texts.map((text) => compiled.test(text)));
}
"""
CHARACTERS = "aiIıİsSſkK\u212aσςΣß1_-\u0345\n "


@functools.cache
def v8() -> MiniRacer:
    context = MiniRacer()
    context.eval(SCRIPT)
    return context


def codes(found: list[int]) -> Charset:
    return charset.make((code, code) for code in found)


@pytest.mark.parametrize("flags", ["", "i"])
def test_classes_hold_the_characters_that_each_dialect_reads(flags: str) -> None:
    asked = "".join(chr(code) for low, high in ASKED for code in range(low, high + 1))
    for atom in ATOMS:
        node = read_regex(f"(?{flags})" + atom if flags else atom, Limits())
        assert isinstance(node, Characters)
        read = v8().eval(f"read({json.dumps(atom)}, {json.dumps(flags)}, {json.dumps(asked)})")
        assert charset.intersect(node.characters.ecma(), ASKED) == codes(json.loads(read)), atom
        found = re.findall(atom, asked, re.IGNORECASE if flags else 0)
        assert charset.intersect(node.characters.python(), ASKED) == codes(list(map(ord, found))), atom


_letters = st.sampled_from([letter for letter in CHARACTERS if letter > " "])
_atoms = st.one_of(_letters, st.sampled_from([r"\w", r"\W", r"\d", r"\D", r"\s", ".", "[a-k]", "[^s]", r"[\Wk]"]))
_conditions = st.one_of(
    st.sampled_from([r"\b", r"\B", "^", "$"]),
    st.tuples(st.sampled_from(["(?={})", "(?!{})", "(?<={})", "(?<!{})"]), _atoms).map(lambda p: p[0].format(p[1])),
)
_parts = st.one_of(_atoms, _conditions, st.tuples(_atoms, st.sampled_from("*+?")).map("".join))
patterns = st.lists(_parts, min_size=1, max_size=4).map("".join)


@settings(PROPERTY, max_examples=300)
@given(patterns, st.sampled_from(["", "i"]), st.lists(st.text(CHARACTERS, max_size=4), min_size=20, max_size=20))
def test_what_is_generated_matches_in_both_dialects(pattern: str, flags: str, texts: list[str]) -> None:
    def searched(either: bool) -> Any:
        return compile_regex(f"(?{flags})" + pattern if flags else pattern, search=True, limits=Limits(), either=either)

    both, one = searched(False), searched(True)
    arguments = ", ".join(map(json.dumps, (pattern, flags, texts)))
    compiled = re.compile(pattern, re.IGNORECASE if flags else 0)
    for text, ecma in zip(texts, json.loads(v8().eval(f"search({arguments})")), strict=True):
        python = compiled.search(text) is not None
        # Before version 3.14, Python sees no `\\B` in the empty text.
        assert not both.classify(text) or (ecma and python), text
        assert one.classify(text) or not (ecma or python), text


@pytest.mark.parametrize(
    ("pattern", "text"),
    [("(?i)^a(?!İ)", "aı"), (r"(?i)σ\B", "σſ1"), (r"(?i)^\w$", "\u0345"), ("(?i)^(?!ﬅ)", "ﬆ")],
)
def test_what_only_one_dialect_matches_is_not_generated(pattern: str, text: str) -> None:
    assert not compile_regex(pattern, search=True, limits=Limits()).classify(text)
