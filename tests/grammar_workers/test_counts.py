"""Counted patterns: beside a format, and over pieces that can be cut in several ways. Python's `re` is the judge."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

from grammar_workers import Limits, compile_grammar
from grammar_workers.languages.regex.compile import compile_regex
from grammar_workers.matching.examples import draw_examples
from tests.grammar_workers.call_limit import at_most
from tests.grammar_workers.test_limits import MOST_CALLS
from tests.grammar_workers.vocabularies import accepts, bytes_vocabulary

LABEL = "a" * 61


def domain(characters: int) -> str:
    """A host name of so many characters."""
    whole = ".".join([LABEL] * 5)[:characters]
    return whole[:-1] + "b"


@pytest.mark.parametrize(
    ("format_", "pattern", "texts"),
    [
        (
            "email",
            r'^[^\s@"]{1,64}@[^\s@]{1,255}$',
            [
                *(f"{'a' * local}@{domain(host)}" for local in (1, 63, 64, 65, 80) for host in (1, 61, 254, 255, 256)),
                f"{'a.' * 31}a@b.example", f"{'a.' * 32}a@b.example", '"a b"@b.example', "a..b@c.de", "a@b c", "@b",
            ],
        ),
        ("idn-email", r"^[^@]{1,64}@[^@]{1,255}$", [f"{'é' * n}@bücher.example" for n in (1, 64, 65)]),
        (
            "uri",
            r"^https://[^/]{1,253}/.{0,2000}$",
            [
                f"https://{'h' * host}/{'p' * path}"
                for host in (0, 1, 253, 254)
                for path in (0, 1, 1999, 2000, 2001)
            ] + ["http://a/", "https://a", "https://a/%zz", "https://a/%2f"],
        ),
        ("json-pointer", r"^(/[^/]{1,100}){1,100}$", ["", "/", f"/{'a' * 100}", f"/{'a' * 101}", "/a" * 101, "/~1"]),
    ],
)  # fmt: skip
def test_a_counted_pattern_goes_with_a_format(format_: str, pattern: str, texts: list[str]) -> None:
    vocabulary = bytes_vocabulary()

    def compiled(**keywords: str) -> Any:
        return compile_grammar({"type": "json_schema", "schema": {"type": "string", **keywords}}, vocabulary)

    both, alone = compiled(format=format_, pattern=pattern), compiled(format=format_)
    judged = [bool(re.fullmatch(pattern, text)) and accepts(alone, f'"{text}"') for text in texts]
    assert [accepts(both, f'"{text}"') for text in texts] == judged
    assert any(judged) and not all(judged)
    for example in draw_examples(both, 5, seed=1):
        assert re.fullmatch(pattern, example.decode()[1:-1]) and accepts(alone, example.decode())


WORDS = "([a-z]{1,8} ?){1,40}"
SENTENCES = "(([a-z]{1,8} ?){1,50}[.!?]){1,20}"


def words_fit(text: str, most: int) -> bool:
    """Whether `([a-z]{1,8} ?){1,most}` matches: each run of letters takes as few pieces as it can."""
    return bool(re.fullmatch("[a-z]+( [a-z]+)* ?", text)) and sum(-(-len(run) // 8) for run in text.split()) <= most


def sentences_fit(text: str) -> bool:
    """The same for the sentences."""
    parts = re.findall(r"[^.!?]*[.!?]", text)
    return "".join(parts) == text and 1 <= len(parts) <= 20 and all(words_fit(part[:-1], 50) for part in parts)


def gbnf(text: str) -> dict[str, Any]:
    return {"type": "grammar", "syntax": "gbnf", "text": text}


def in_string(pattern: str) -> dict[str, Any]:
    return {"type": "json_schema", "schema": {"type": "string", "pattern": f"^{pattern}$"}}


@pytest.mark.parametrize(
    ("specification", "fits"),
    [
        ({"type": "regex", "pattern": WORDS}, lambda text: words_fit(text, 40)),
        (in_string(WORDS), lambda text: words_fit(text, 40)),
        (gbnf('root ::= ([a-z]{1,8} " "?){1,40}'), lambda text: words_fit(text, 40)),
        (gbnf('root ::= word{1,40}\nword ::= [a-z]{1,8} " "?'), lambda text: words_fit(text, 40)),
        ({"type": "regex", "pattern": SENTENCES}, sentences_fit),
        (in_string(SENTENCES), sentences_fit),
        (gbnf('root ::= (([a-z]{1,8} " "?){1,50} [.!?]){1,20}'), sentences_fit),
        (gbnf('root ::= sentence{1,20}\nsentence ::= ([a-z]{1,8} " "?){1,50} [.!?]'), sentences_fit),
    ],
)
def test_pieces_that_can_be_cut_in_several_ways(specification: dict[str, Any], fits: Any) -> None:
    with at_most(MOST_CALLS):
        fsm = compile_grammar(specification, bytes_vocabulary())
    quoted = specification["type"] == "json_schema"
    rng = random.Random(7)
    texts = ["", " ", "a", "a b", "a  b", "a" * 319, "a" * 320, "a" * 321, "a " * 40, "a " * 41, f"{'a' * 9} " * 20]
    texts += [f"{'a' * 400}.", f"{'a' * 401}.", "a." * 20, "a." * 21, f"{'a' * 400}!" * 20, f"{'a ' * 50}?" * 20, "."]
    for _ in range(200):
        runs = [rng.choice("abc") * rng.choice([1, 7, 8, 9, 16, 17, 40]) for _ in range(rng.randrange(1, 30))]
        texts.append("".join(run + rng.choice([" ", " ", " ", ".", ""]) for run in runs))
        texts.append(texts[-1].rstrip(" .") + ".")
    found = [accepts(fsm, f'"{text}"' if quoted else text) for text in texts]
    assert found == [fits(text) for text in texts]
    assert any(found) and not all(found)


def nested_counts(rng: random.Random, depth: int) -> str:
    """A pattern of counts within counts over two letters."""
    if depth == 0:
        return rng.choice(["a", "b", "[ab]", "ab", "a?", "(^a)", "(b$)"])
    parts = "".join(nested_counts(rng, depth - 1) for _ in range(rng.randrange(1, 3)))
    either = rng.choice(["", f"|{nested_counts(rng, depth - 1)}"])
    low = rng.randrange(3)
    return f"({parts}{either}){{{low},{low + rng.randrange(4)}}}"


def test_counts_within_counts_are_those_of_python() -> None:
    rng = random.Random(5)
    texts = ["", *("".join(rng.choices("ab", k=rng.randrange(1, 8))) for _ in range(40))]
    for _ in range(300):
        pattern = nested_counts(rng, 2)
        compiled = compile_regex(pattern, search=False, limits=Limits())
        for text in texts:
            assert bool(compiled.classify(text)) == bool(re.fullmatch(pattern, text)), (pattern, text)
