"""Tokens, JSON values and lazy rules in GBNF and Lark, judged by functions of the tokens."""

from __future__ import annotations

import functools
import json
import random
import re
from collections.abc import Callable

import pytest

from grammar_workers import GrammarOptions, TokenFSM, Vocabulary, compile_grammar
from grammar_workers.errors import GrammarError, InvalidSpecificationError, UnsupportedFeatureError
from tests.grammar_workers.vocabularies import random_walk, states_along

THINK, DONE, END = 263, 264, 265
WORDS = [b"ab", b"yes", b'{"', b"</th", b"ink>", "é".encode(), b"1,"]


@functools.cache
def vocabulary() -> Vocabulary:
    names = {"<think>": THINK, "</think>": DONE, "<|end|>": END}
    return Vocabulary([*(bytes([byte]) for byte in range(256)), *WORDS, None, None, None, None], [266], names)


def text(tokens: list[int]) -> str | None:
    """What the tokens say, None where one of them has no text or the bytes are no text."""
    if any(token >= THINK for token in tokens):
        return None
    try:
        return b"".join(vocabulary().token_bytes(token) for token in tokens).decode()
    except UnicodeDecodeError:
        return None


def matches(pattern: str, tokens: list[int]) -> bool:
    said = text(tokens)
    return said is not None and re.fullmatch(pattern, said, re.DOTALL) is not None


def thought(tokens: list[int]) -> bool:
    """<think> any tokens </think> yes."""
    if tokens[:1] != [THINK] or DONE not in tokens:
        return False
    return text(tokens[tokens.index(DONE) + 1 :]) == "yes"


def calls(tokens: list[int]) -> bool:
    """Words and ends in turn: (ab+ <|end|>)+."""
    parts: list[list[int]] = [[]]
    for token in tokens:
        if token == END:
            parts.append([])
        else:
            parts[-1].append(token)
    return len(parts) > 1 and not parts[-1] and all(matches("ab+", part) for part in parts[:-1])


def is_json(said: str | None, judge: Callable[[object], bool]) -> bool:
    try:
        value = json.loads(said or "")
    except ValueError:
        return False
    # Compact, as `json.dumps` writes it.
    return said == json.dumps(value, ensure_ascii=False) and judge(value)


def valued(tokens: list[int]) -> bool:
    said = text(tokens)
    found = re.fullmatch(r"a=(.*);b=(.*);", said or "")
    return found is not None and is_json(found[1], lambda value: value in ([], [0])) and found[2] in ("true", "false")


GRAMMARS: dict[str, tuple[str, str, Callable[[list[int]], bool]]] = {
    "names": ("gbnf", 'root ::= <think> thought </think> "yes"\nthought ::= !</think>*', thought),
    "ids": ("gbnf", 'root ::= <[263]> (!<[264]>)* <[264]> "yes" # <[7]>', thought),
    "text beside tokens": ("gbnf", 'root ::= (word <|end|>)+\nword ::= "a" "b"+', calls),
    "a repeated rule": ("lark", 'start: call+\ncall: WORD <|end|>\nWORD: "a" "b"+', calls),
    "lists of ids": (
        "lark",
        "start: <[257,263-264]> <[^264-265]>",
        lambda tokens: len(tokens) == 2 and tokens[0] in (257, 263, 264) and tokens[1] not in (264, 265),
    ),
    "any token": ("lark", 'start: "a" <[*]> "b"', lambda t: len(t) == 3 and t[0] == 97 and t[2] == 98),
    "tokens of text": ("gbnf", "root ::= <[256]> <[257]>?", lambda tokens: tokens in ([256], [256, 257])),
    "a template": (
        "lark",
        'start: twice{<think>} twice{"a"}\ntwice{x}: x x',
        lambda tokens: tokens[:2] == [THINK, THINK] and text(tokens[2:]) == "aa",
    ),
    "json": (
        "lark",
        'start: "a=" %json {"enum": [[], [0]]} ";" "b=" %json {"type": "boolean"} ";"',
        valued,
    ),
    "lazy": ("lark", "start: upto /b*/\nupto[lazy]: /[ab]*ab/", lambda tokens: matches("b*a+b+", tokens)),
    "a lazy alternative": (
        "lark",
        'start: one "c"?\none[lazy]: "a" | "ab" | /b+/',
        lambda tokens: matches("[ab]c?", tokens),
    ),
}


def changed(tokens: list[int], rng: random.Random) -> list[int]:
    """Tokens with a few of them left out, put in or replaced."""
    tokens = list(tokens)
    for _ in range(rng.randrange(3)):
        place = rng.randrange(len(tokens) + 1)
        tokens[place : place + rng.randrange(2)] = rng.choices([97, 98, 59, 44, *range(256, 266)], k=rng.randrange(2))
    return tokens


def ends(fsm: TokenFSM, tokens: list[int]) -> bool:
    states = states_along(fsm, tokens)
    return states[-1] >= 0 and fsm.is_terminal(states[-1])


@pytest.mark.parametrize("name", GRAMMARS)
def test_what_is_generated_and_what_is_near_it(name: str) -> None:
    syntax, grammar, judge = GRAMMARS[name]
    fsm = compile_grammar({"type": "grammar", "syntax": syntax, "text": grammar}, vocabulary())
    rng = random.Random(name)
    accepted = 0
    for _ in range(150):
        tokens = random_walk(fsm, rng, longest=8)
        assert judge(tokens), tokens
        near = changed(tokens, rng)
        assert ends(fsm, near) == judge(near), near
        accepted += judge(near)
    assert accepted > 20


REFUSED: dict[str, tuple[str, str, type[GrammarError], int, str]] = {
    "no such token": ("gbnf", 'root ::= "a" <nothing>', InvalidSpecificationError, 13, "no token has the text"),
    "an id beyond": ("lark", "start: <[9999]>", InvalidSpecificationError, 7, "no token that can be generated"),
    "a name as an id": ("lark", "start: <[x]>", InvalidSpecificationError, 7, "ids of tokens are written"),
    "many tokens": ("lark", "start: <[0-99999]>", GrammarError, 7, "more than 4096 tokens"),
    "an unclear end": (
        "gbnf",
        'root ::= a "a" <think>\na ::= "(" a ")" "a"* | "u"',
        UnsupportedFeatureError,
        23,
        "'a' may follow it, and also continue it",
    ),
    "two that begin alike": (
        "gbnf",
        'root ::= "(" a ")" | a <think>\na ::= "(" a ")" | "u"',
        UnsupportedFeatureError,
        31,
        "begins like something else",
    ),
    "a range backwards": ("gbnf", "root ::= !<[9-5]>", InvalidSpecificationError, 9, "not in order"),
    "ranges that cancel": (
        "gbnf",
        "root ::= <[0-999999999,999999999-0]>",
        InvalidSpecificationError,
        9,
        "not in order",
    ),
    "not a number": ("lark", 'start: %json {"const": NaN}', InvalidSpecificationError, 13, "JSON Schema"),
    "a number that is too large": (
        "lark",
        'start: %json {"const": 1e999}',
        InvalidSpecificationError,
        13,
        "JSON Schema",
    ),
    "a key twice": (
        "lark",
        'start: %json {"type": "null", "type": "null"}',
        InvalidSpecificationError,
        13,
        "stands twice",
    ),
    "lazy twice": (
        "lark",
        'start: a\na[lazy]: "a"\na[lazy]: "b"',
        InvalidSpecificationError,
        22,
        "'a' is defined twice",
    ),
    "in a terminal": ("lark", "start: A\nA: <think>", InvalidSpecificationError, 12, "inside a terminal"),
    "no schema": ("lark", "start: %json nothing", InvalidSpecificationError, 13, "JSON Schema"),
    "a wrong schema": (
        "lark",
        'start: "a" %json {"type": "strng"}',
        InvalidSpecificationError,
        11,
        "type must be one of",
    ),
    "another attribute": ("lark", 'start: x\nx[suffix="a"]: "a"', UnsupportedFeatureError, 9, "`suffix`"),
    "a lazy look-around": ("lark", "start: x /[a-z]/\nx[lazy]: /a(?=b)/", UnsupportedFeatureError, 17, "lazy"),
    "a lazy rule of rules": ("lark", 'start: x\nx[lazy]: y\ny: "a"', InvalidSpecificationError, 18, "terminal"),
    "a look-around beside": (
        "lark",
        "start: A B <think>\nA: /a(?=b)/\nB: /[bc]/",
        UnsupportedFeatureError,
        11,
        "condition on the text around",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_says_where(name: str) -> None:
    syntax, grammar, kind, position, message = REFUSED[name]
    with pytest.raises(kind, match=re.escape(message)) as caught:
        compile_grammar({"type": "grammar", "syntax": syntax, "text": grammar}, vocabulary())
    assert (caught.value.pointer or None, caught.value.position) == (None, position)


def test_a_grammar_with_tokens_in_a_tag_and_beside_another_specification() -> None:
    grammar = {"type": "grammar", "syntax": "gbnf", "text": "root ::= [ab]+ <|end|>"}
    both = {"type": "all_of", "specifications": [grammar, {"type": "regex", "pattern": "a*b"}]}
    tag = {
        "type": "tag",
        "begin": "<",
        "content": {"type": "grammar", "grammar": grammar["text"]},
        "end": {"type": "token", "token": "</think>"},
    }
    for specification, right, wrong in (
        (both, [97, 98, END], [98, 98, END]),
        ({"type": "structural_tag", "format": tag}, [60, 97, END, DONE], [60, 97, DONE]),
        ({"type": "structural_tag", "format": {**tag, "end": ">"}}, [60, 97, END, 62], [60, 97, END]),
    ):
        fsm = compile_grammar(specification, vocabulary())
        assert ends(fsm, right) and not ends(fsm, wrong)
    with pytest.raises(InvalidSpecificationError) as caught:
        tag["content"]["grammar"] = "root ::= <nothing>"  # type: ignore[index]
        compile_grammar({"type": "structural_tag", "format": tag}, vocabulary())
    assert (caught.value.pointer, caught.value.position) == ("/format/content", 9)


def test_json_in_a_grammar_has_the_options_of_the_request() -> None:
    grammar = {"type": "grammar", "syntax": "lark", "text": 'start: %json {"const": {"a": 1}}'}
    flexible = compile_grammar(grammar, vocabulary(), options=GrammarOptions(whitespace="flexible"))
    assert ends(flexible, list(b'{ "a":\n1}'))
    assert not ends(compile_grammar(grammar, vocabulary()), list(b'{ "a":\n1}'))
