"""The languages of grammars, against Lark's own Earley parser, which tries every way to cut a text into terminals."""

from __future__ import annotations

import functools
import itertools
import random

import lark
import pytest

from grammar_workers import TokenFSM, compile_grammar
from tests.grammar_workers.grammars import GRAMMARS
from tests.grammar_workers.vocabularies import accepts, bytes_vocabulary, random_walk, text_of

LONGEST = 60
"""Characters of the longest text that is given to the oracle, which takes cubic time."""


@functools.cache
def compiled(name: str, syntax: str) -> TokenFSM:
    sample = GRAMMARS[name]
    text = sample.lark if syntax == "lark" else sample.gbnf
    return compile_grammar({"type": "grammar", "syntax": syntax, "text": text}, bytes_vocabulary())


@functools.cache
def oracle(name: str) -> lark.Lark:
    return lark.Lark(GRAMMARS[name].lark, parser="earley", lexer="dynamic_complete")


@functools.cache
def in_language(name: str, text: str) -> bool:
    try:
        oracle(name).parse(text)
    except lark.exceptions.UnexpectedInput:
        return False
    return True


def check(name: str, text: str) -> None:
    expected = in_language(name, text)
    for syntax in ("lark", "gbnf"):
        assert accepts(compiled(name, syntax), text) == expected, (syntax, text)


@pytest.mark.parametrize("name", [name for name, sample in GRAMMARS.items() if sample.exhaustive])
def test_every_short_text(name: str) -> None:
    sample = GRAMMARS[name]
    for length in range(sample.exhaustive + 1):
        for characters in itertools.product(sample.alphabet, repeat=length):
            check(name, "".join(characters))


def walked_texts(name: str, syntax: str, rng: random.Random, many: int) -> list[str]:
    fsm = compiled(name, syntax)
    texts = (text_of(fsm.vocabulary, random_walk(fsm, rng, rng.randrange(1, 15))) for _ in range(many))
    return [text.decode() for text in texts if len(text) <= LONGEST]


@pytest.mark.parametrize("syntax", ["lark", "gbnf"])
@pytest.mark.parametrize("name", GRAMMARS)
def test_whatever_is_generated_is_in_the_language(name: str, syntax: str) -> None:
    for text in walked_texts(name, syntax, random.Random(name), 15):
        assert in_language(name, text), text


@pytest.mark.parametrize("name", GRAMMARS)
def test_neighbours_of_texts_in_the_language(name: str) -> None:
    """A character more, less or another one: here the language ends."""
    rng = random.Random(name)
    for text in walked_texts(name, "lark", rng, 6):
        for _ in range(6):
            place = rng.randrange(len(text) + 1)
            check(name, text[:place] + rng.choice(GRAMMARS[name].alphabet) + text[place:])
            check(name, text[:place] + text[place + 1 :])
            check(name, text[:place] + rng.choice(GRAMMARS[name].alphabet) + text[place + 1 :])
