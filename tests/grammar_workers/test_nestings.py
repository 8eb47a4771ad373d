"""Tags, recursive grammars and JSON Schemas nested in one another, against `lark` and `jsonschema`."""

from __future__ import annotations

from collections import Counter

import pytest

from grammar_workers import compile_grammar
from grammar_workers.errors import UnsupportedFeatureError
from tests.grammar_workers.nestings import VOCABULARY, accepts, judge


@pytest.mark.parametrize("seed", range(4))
def test_random_nestings_agree_with_their_judges(seed: int) -> None:
    found: Counter[str] = Counter()
    for index in range(20):
        assert not judge(1000 * seed + index, found)
    assert found["compiled"] > 15 and found["changed texts that match"] > 10


def test_a_rule_may_begin_with_a_token() -> None:
    text = 'start: item\nitem: <|user|> ("(" item ")")? | %json {"type": "integer"}'
    fsm = compile_grammar({"type": "grammar", "syntax": "lark", "text": text}, VOCABULARY)
    assert accepts(fsm, "\ue000(\ue000(12))") and not accepts(fsm, "\ue000(12")
    assert not accepts(fsm, "\ue001")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            'start: a "x" %json {}\na: "(" a ")" "x"* | "u"',
            "^next to JSON or tokens, the grammar rule 'a' has no clear end: 'x' may follow it",
        ),
        (
            'start: a %json {"type": "integer"}\na: "(" a ")" | %json {"const": 1}',
            "before what a number could go on with",
        ),
        ('start: a | %json {"const": "("}\na: "(" a ")" | /"u/', "begins like something else"),
        ('start: a <|user|>\na: "(" a ")" <|user|>* | "u"', "'token 263' may follow it"),
        # The end of `b` is the end of `a`.
        ('start: a "x" %json {}\na: "[" a "]" | b\nb: "(" b ")" "x"* | "u"', "'x' may follow it"),
        (
            'start: a %json {} | b\na: <|user|> "(" a ")" | "u"\nb: <|user|> "[" b "]" | "v"',
            "begins like something else",
        ),
        ('start: a <|assistant|> | <|user|> "v"\na: <|user|> "(" a ")" | "u"', "begins like something else"),
    ],
)
def test_what_the_next_token_does_not_decide_is_refused(text: str, message: str) -> None:
    with pytest.raises(UnsupportedFeatureError, match=message):
        compile_grammar({"type": "grammar", "syntax": "lark", "text": text}, VOCABULARY)
