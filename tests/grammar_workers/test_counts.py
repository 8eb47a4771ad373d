"""Counted patterns: beside a format, and over pieces that can be cut in several ways. Python's `re` is the judge."""

from __future__ import annotations

import re
from typing import Any

import pytest

from grammar_workers import compile_grammar
from grammar_workers.matching.examples import draw_examples
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
