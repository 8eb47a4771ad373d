"""Grammars that are refused: with a typed error, at the place, and within a bound of work."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grammar_workers import GrammarError, Limits, compile_grammar, warm_up
from grammar_workers.errors import (
    InvalidSpecificationError,
    LimitExceededError,
    UnsatisfiableError,
    UnsupportedFeatureError,
)
from tests.grammar_workers.call_limit import at_most
from tests.grammar_workers.properties import PROPERTY
from tests.grammar_workers.test_limits import MOST_CALLS
from tests.grammar_workers.vocabularies import (
    accepts,
    bytes_vocabulary,
    characters_vocabulary,
    random_walk,
    shakespeare_vocabulary,
    text_of,
)


def gbnf(text: str) -> dict[str, str]:
    return {"type": "grammar", "syntax": "gbnf", "text": text}


def lark(text: str) -> dict[str, str]:
    return {"type": "grammar", "syntax": "lark", "text": text}


@pytest.mark.parametrize(
    ("specification", "kind", "position", "words"),
    [
        (gbnf(""), InvalidSpecificationError, 0, "no rule named 'root'"),
        (gbnf('start ::= "a"'), InvalidSpecificationError, 0, "no rule named 'root'"),
        (gbnf('root ::= "a" other\n'), InvalidSpecificationError, 13, "'other' is not defined"),
        (gbnf('root ::= "a"\nroot ::= "b"'), InvalidSpecificationError, 13, "twice (line 2, column 1)"),
        (gbnf('root ::= ("a"\nx ::= "b"'), InvalidSpecificationError, 9, "missing ')'"),
        (gbnf('root ::= "a")'), InvalidSpecificationError, 12, "unbalanced"),
        (gbnf('root ::= "a'), InvalidSpecificationError, 9, "missing '\"'"),
        (gbnf('root ::= "a\nb"'), InvalidSpecificationError, 9, "missing '\"'"),
        (gbnf("root ::= [a"), InvalidSpecificationError, 9, "missing ']'"),
        (gbnf("root ::= [z-a]"), InvalidSpecificationError, 10, "out of order"),
        (gbnf('root ::= "\\q"'), InvalidSpecificationError, 10, "unknown escape"),
        (gbnf('root ::= "\\x4"'), InvalidSpecificationError, 10, "malformed escape"),
        (gbnf('root ::= "\\uD800"'), InvalidSpecificationError, 10, "no character"),
        (gbnf('root ::= "a"{3,2}'), InvalidSpecificationError, 12, "out of order"),
        (gbnf('root ::= "a"{,}'), InvalidSpecificationError, 12, "malformed repetition"),
        (gbnf("root ::= *"), InvalidSpecificationError, 9, "unexpected '*'"),
        (gbnf('root "a"'), InvalidSpecificationError, 0, "`::=` is missing after 'root'"),
        (gbnf('root ::= "a\0"'), InvalidSpecificationError, 11, "NUL"),
        (lark("start: A & B"), UnsupportedFeatureError, 9, "`&` of llguidance"),
        (lark("start: A\nA: ~/a/"), UnsupportedFeatureError, 12, "write a negative look-ahead"),
        (lark('start: a\na[suffix="b"]: /a+/'), UnsupportedFeatureError, 9, "the text of `suffix` behind the rule"),
        (lark("start: A\nA[lazy]: /a+/"), UnsupportedFeatureError, 9, "lower case"),
        (gbnf("root ::= root"), InvalidSpecificationError, 0, "'root' never ends"),
        (gbnf('root ::= "a" | b\nb ::= "x" c | b\nc ::= b'), InvalidSpecificationError, 17, "'b' never ends"),
        (gbnf("root ::= [^\\x00-\\U0010FFFF]"), UnsatisfiableError, None, "no text"),
        (lark(""), InvalidSpecificationError, 0, "no rule named 'start'"),
        (lark('start: "a" other'), InvalidSpecificationError, 11, "'other' is not defined"),
        (lark('start: "a"\nstart: "b"'), InvalidSpecificationError, 11, "twice (line 2, column 1)"),
        (lark('start: ("a"'), InvalidSpecificationError, 7, "missing ')'"),
        (lark('start: ["a")'), InvalidSpecificationError, 7, "missing ']'"),
        (lark('start: "a" ]'), InvalidSpecificationError, 11, "unexpected ']'"),
        (lark('start: "a'), InvalidSpecificationError, 7, "missing '\"'"),
        (lark("start: /a"), InvalidSpecificationError, 7, "missing '/'"),
        (lark("start: /a(/"), InvalidSpecificationError, 9, "malformed pattern"),
        (lark("start: /a(b)\\1/"), UnsupportedFeatureError, 12, "back-reference"),
        (lark('start: "b".."a"'), InvalidSpecificationError, 7, "range"),
        (lark('start: "a" ~ 3..2'), InvalidSpecificationError, 11, "out of order"),
        (lark("start: pair{start}"), InvalidSpecificationError, 7, "template 'pair' is not defined"),
        (lark('pair{x}: x\nstart: pair{"a", "b"}'), InvalidSpecificationError, 18, "has 1 parameters, not 2"),
        (lark('P{x}: x\nstart: "a"'), InvalidSpecificationError, 0, "terminal 'P' has parameters"),
        (lark("%declare A\nstart: A"), UnsatisfiableError, None, "no text"),
        (lark("%import python.NAME\nstart: NAME"), UnsupportedFeatureError, 0, "%import common"),
        (lark("%import common.NAMES\nstart: NAMES"), UnsupportedFeatureError, 15, "there are CNAME"),
        (lark('A: b\nb: "c"\nstart: A'), InvalidSpecificationError, 3, "rule 'b' inside a terminal"),
        (lark("start: start"), InvalidSpecificationError, 0, "'start' never ends"),
        (lark('start: A | "b"\nA: B "x"\nB: A'), InvalidSpecificationError, 27, "terminal 'A' needs itself"),
        ({"type": "grammar", "syntax": "abnf", "text": ""}, InvalidSpecificationError, None, "syntax"),
    ],
)
def test_the_place_and_the_reason_are_told(
    specification: dict[str, str], kind: type[GrammarError], position: int | None, words: str
) -> None:
    with pytest.raises(kind) as caught:
        compile_grammar(specification, bytes_vocabulary())
    assert type(caught.value) is kind
    assert caught.value.position == position
    assert words in str(caught.value)


def test_what_the_vocabulary_cannot_spell_is_left_out() -> None:
    text = 'root ::= "{" root "}" | "é" | "[" root* "]" | [0-24-9(]'
    fsm = compile_grammar(gbnf(text), characters_vocabulary())
    assert {text_of(fsm.vocabulary, [token]) for token in fsm.allowed_tokens(1)} == {b"{", b"["} | {
        bytes([digit]) for digit in b"012456789"
    }
    with pytest.raises(UnsatisfiableError):
        compile_grammar(gbnf(text), shakespeare_vocabulary())


@settings(PROPERTY, max_examples=150)
@given(st.sampled_from(["gbnf", "lark"]), st.text("a:=|()*\"'[]{}~1,/%.\\ \n", max_size=14), st.booleans())
def test_any_text_is_a_grammar_or_refused(syntax: str, text: str, named: bool) -> None:
    if named:
        text = ("root ::= " if syntax == "gbnf" else "start: ") + text
    limits = Limits(max_regex_states=200, max_steps=20_000)
    try:
        fsm = compile_grammar({"type": "grammar", "syntax": syntax, "text": text}, bytes_vocabulary(), limits=limits)
    except GrammarError as error:
        assert error.position is None or 0 <= error.position <= len(text)
    else:
        random_walk(fsm, random.Random(text), 5)


@pytest.mark.parametrize(
    ("limit", "text"),
    [
        ({"max_nesting": 5}, 'root ::= (((((("a"))))))'),
        ({"max_regex_states": 20}, 'root ::= "a"{30}'),
        ({"max_regex_states": 20}, 'root ::= "(" root ")" | [ab]* "a" [ab]{9}'),
        ({"max_steps": 200}, 'root ::= "(" root ")" | ' + " | ".join(f'"{n}"' for n in range(100))),
        ({"max_steps": 200}, 'root ::= root root | "a" | ' + " | ".join(f'"{n}" root' for n in range(100))),
    ],
)
def test_each_limit_is_named(limit: dict[str, int], text: str) -> None:
    assert compile_grammar(gbnf(text), bytes_vocabulary()).allowed_tokens(1)
    with pytest.raises(LimitExceededError, match=next(iter(limit))):
        compile_grammar(gbnf(text), bytes_vocabulary(), limits=Limits(**limit))


def chain(many: int, rule: str, last: str) -> str:
    """Rules r0 to r(many), the last one `last`; in `rule`, {i} is its number and {j} the next one's."""
    rules = [f"r{i} ::= " + rule.replace("{i}", str(i)).replace("{j}", str(i + 1)) for i in range(many)]
    return "\n".join(["root ::= r0", *rules, f"r{many} ::= {last}"])


COMPILED = {
    "(a+)+b": gbnf('root ::= ("a"+)+ "b"'),
    "99 groups": gbnf("root ::= " + "(" * 99 + '"a"' + ")*" * 99),
    "nested options": gbnf("root ::= " + "(" * 90 + '"a"' + "?)*" * 90),
    "a chain of rules": gbnf(chain(1000, "r{j}", '"a"')),
    "a chain backwards": gbnf("\n".join(chain(1000, "r{j}", '"a"').split("\n")[::-1])),
    "a recursive chain": gbnf(chain(500, 'r{j} | "(" root ")"', '"a"')),
    "mutual left recursion": gbnf(chain(300, 'r{j} "{i}" | "x"', "r0")),
    "everything begins with everything": gbnf(
        "root ::= r0\n"
        + "\n".join(f'r{i} ::= "x" | ' + " | ".join(f'r{j} "{j}"' for j in range(25)) for i in range(25))
    ),
    "texts that double": gbnf(chain(40, "r{j} r{j}", '"a"?')),
    "exponential ambiguity": gbnf('root ::= root root root | root root | "a" | "a" root | root "a" |'),
    "ambiguous nothing": gbnf('root ::= a a a a a a a a\na ::= b b b b b b\nb ::= root | "x" |'),
    "counted recursion": gbnf('root ::= "(" root{0,1000} ")" | "a"'),
    "ambiguous counts": gbnf('root ::= ("a" | root){0,100} "b"'),
    "a hidden exponential": gbnf('root ::= x y\nx ::= [ab]*\ny ::= "a" z\nz ::= [ab]{40}'),
    "2,000 literals": gbnf('root ::= "(" root ")" | ' + " | ".join(f'"name{i}"' for i in range(2000))),
    "much to ignore": lark('start: "a" start | "b" start start | "c"\n%ignore /.*/\n%ignore /[^a]+/'),
}
"""What looks dangerous and must simply work."""


@pytest.mark.parametrize("name", COMPILED)
def test_large_and_ambiguous_grammars_work_within_the_bound(name: str) -> None:
    with at_most(MOST_CALLS):
        fsm = compile_grammar(COMPILED[name], bytes_vocabulary())
        tokens = random_walk(fsm, random.Random(name), 10)
    assert accepts(fsm, text_of(fsm.vocabulary, tokens))


BOMBS = {
    "20k groups": gbnf("root ::= " + "(" * 20_000 + '"a"' + ")" * 20_000),
    "20k open groups": lark("start: " + "(" * 20_000),
    "20k stars": gbnf('root ::= "a"' + "*" * 20_000),
    "nested counts": gbnf('root ::= ((("a"{1000}){1000}){1000}){1000}'),
    "nested counts of nothing": lark('start: ((("" ~ 1000) ~ 1000) ~ 1000) ~ 1000'),
    "a huge count": gbnf('root ::= "a"{1000000}'),
    "a count beyond all": gbnf('root ::= "a"{99999999999999999999}'),
    "exponential": gbnf('root ::= "(" root ")" | [ab]* "a" [ab]{40}'),
    "an endless text": gbnf(chain(40, "r{j} r{j}", '"a" | "(" r0 ")"')),
    "many rules for every byte": gbnf(
        "root ::= "
        + " | ".join(f"r{i}" for i in range(1000))
        + "".join(f'\nr{i} ::= "(" root ")" root | "{i}"' for i in range(1000))
    ),
    "many callers at once": gbnf(chain(700, 'r{j} "{i}" | "x" r{j} | r0 r{j}', '"r"')),
    "half a megabyte": gbnf('root ::= "' + "a" * 500_000 + '"'),
}
"""What may be compiled or refused, but within the bound, and never by another exception: at a tenth of the limits."""


@pytest.fixture(scope="module", autouse=True)
def _compiled_kernels() -> None:
    """Compiling them counts as no work of a grammar."""
    warm_up(bytes_vocabulary())


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused_or_harmless(name: str) -> None:
    tenth = Limits(max_regex_states=2_000, max_steps=200_000)
    try:
        with at_most(MOST_CALLS // 4):
            fsm = compile_grammar(BOMBS[name], bytes_vocabulary(), limits=tenth)
            random_walk(fsm, random.Random(name), 3)
    except GrammarError:
        return


def test_ambiguity_costs_no_more_than_the_text_is_long() -> None:
    """A text of n letters has a Catalan number of trees; its states grow by a few entries a letter."""
    fsm = compile_grammar(gbnf('root ::= root root | "a"'), bytes_vocabulary())
    with at_most(1_500_000):
        assert accepts(fsm, "a" * 2000)


def test_depth_costs_memory_in_proportion() -> None:
    fsm = compile_grammar(gbnf('root ::= "(" root ")" | "a" | root "," root'), bytes_vocabulary())
    with at_most(2_000_000):
        assert accepts(fsm, "(" * 5000 + "a" + ")" * 5000)
    assert fsm.nbytes < 40 << 20
