"""Terminals, ignored text, comments and templates of Lark grammars, against Lark's own Earley parser."""

from __future__ import annotations

import functools
import itertools
import random
import re

import lark
import pytest

from grammar_workers import GrammarError, TokenFSM, compile_grammar
from grammar_workers.dfa.dfa import combine
from grammar_workers.errors import UnsatisfiableError, UnsupportedFeatureError
from grammar_workers.languages.regex.compile import compile_tree
from grammar_workers.languages.regex.longest_first import prefers_longest
from grammar_workers.languages.regex.parse import read_regex
from grammar_workers.languages.regex.preferred import preferred_automaton
from grammar_workers.languages.regex.python_dialect import read_python
from grammar_workers.options import Limits
from tests.grammar_workers.lark_grammars import CHARACTERS, draw_grammar
from tests.grammar_workers.vocabularies import accepts, bytes_vocabulary


@functools.lru_cache(maxsize=1)
def oracle(text: str) -> lark.Lark:
    return lark.Lark(text, parser="earley", lexer="dynamic_complete")


def in_language(grammar: str, text: str) -> bool | None:
    """Return Lark's verdict, None where Lark fails."""
    try:
        oracle(grammar).parse(text)
    except lark.exceptions.UnexpectedInput:
        return False
    except (RuntimeError, AssertionError):
        return None
    return True


def compiled(text: str) -> TokenFSM:
    return compile_grammar({"type": "grammar", "syntax": "lark", "text": text}, bytes_vocabulary())


def every_text(alphabet: str, longest: int) -> list[str]:
    return ["".join(text) for many in range(longest + 1) for text in itertools.product(alphabet, repeat=many)]


CASES: dict[str, tuple[str, list[str]]] = {
    "a comment behind a rule": ('start: "a"\n// or | "b"', ["a", "b"]),
    "a comment with a bar at the end of a line": ('start: "a" // c | "b"\n  | "c" # | "d"', list("abcd")),
    "an earlier alternative wins": ('start: A "c"\nA: /a|ab/', every_text("abc", 4)),
    "alternatives of a terminal go by width": ('start: A "c"\nA: "a" | "ab"', every_text("abc", 4)),
    "a bar in a terminal's pattern takes all of it": ('start: A\nA: /a|b/ "c"', every_text("abc", 2)),
    "a lazy string": ('start: S S?\nS: /".*?"/', every_text('"ab', 5)),
    "a lazy comment": ("start: (A | C)*\nC: /\\/\\*.*?\\*\\//s\nA: /a/", every_text("/*a", 6)),
    "an ignored lazy comment": (
        'start: "y"*\n%ignore C\nC: /\\/\\*.*?\\*\\//s',
        ["/* x */ y */", "/* x */y", "/*/y", "/**/y/**/y"],
    ),
    "ignored comments end at a line end": (
        'start: "a" "b"\n%import common.SH_COMMENT\n%ignore SH_COMMENT\n%ignore "\\n"',
        ["a#b", "ab", "ab#", "#ab", "a#\nb", "a##b", "a#\n#\nb", "#\n#b\nab#b", "a\nb"],
    ),
    "an ignored comment and nothing to end it": (
        'start: "a" "b"\n%import common.SH_COMMENT\n%ignore SH_COMMENT',
        ["a#b", "ab", "ab#", "#", "#ab", "a#\nb"],
    ),
    "a keyword ends at a border of words": ("start: KW NAME\nKW: /if\\b/\nNAME: /[a-z ]+/", ["ifx", "if x", "if"]),
    "a look-ahead sees the next terminal": ("start: A B\nA: /a(?=b)/\nB: /b/", every_text("ab", 3)),
    "a negative look-ahead, too": ("start: A B\nA: /a(?!b)/\nB: /[bc]/", every_text("abc", 3)),
    "a look-behind sees the terminal before": ('start: "a"? B\nB: /(?<!a)b/', every_text("ab", 3)),
    "a look-ahead behind several lengths": ('start: X Y\nX: /[a-z]+(?=\\()/\nY: "("', ["ab(", "a(", "ab", "("]),
    "keywords are no names": (
        "start: N+\nN: /(?!if\\b)[a-z]+/\n%ignore ' '".replace("'", '"'),
        ["if", "if x", "ifx", "x if", "i f", "if1"],
    ),
    "the beginning": ("start: X Y?\nX: /a/\nY: /^b|c/", every_text("abc", 2)),
    "a dollar may precede the last line end": ("start: X NL*\nX: /a$/\nNL: /\\n/", ["a", "a\n", "a\n\n"]),
    "letters and spaces are Python's": ("start: W\nW: /\\w+\\s/", ["é ", "é\x85", "é\x1c", "a\ufeff"]),
    "a dot is all but a line feed": ("start: W\nW: /.+/", ["a\r", "a\u2028b", "a\n"]),
    "digits are Python's": ("start: W\nW: /\\d/", ["1", "٣", "a"]),
    "templates": (
        '_s{x, y}: x (y x)*\nstart: _s{"a", ","} | "[" _s{_s{B, ";"}, ","} "]"\nB: "b"',
        ["a,a", "a,", "[b;b,b]", "[b;]"],
    ),
    "a template that uses itself": ('start: n{"x"}\nn{x}: "(" n{x} ")" | x', ["x", "(x)", "((x))", "((x)"]),
}


@pytest.mark.parametrize("name", CASES)
def test_cases(name: str) -> None:
    grammar, texts = CASES[name]
    fsm = compiled(grammar)
    for text in texts:
        assert accepts(fsm, text) == in_language(grammar, text), text


@pytest.mark.parametrize("conditions", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_random_grammars(seed: int, conditions: bool) -> None:
    """With conditions, Lark also takes texts whose beginning alone meets them; that is left out."""
    rng = random.Random(seed)
    grammar = draw_grammar(rng, conditions=conditions)
    try:
        fsm = compiled(grammar)
    except UnsatisfiableError:
        fsm = None
    except UnsupportedFeatureError as error:
        assert conditions and "condition" in error.message
        return
    texts = rng.sample(every_text(CHARACTERS, 4), 150) + [
        "".join(rng.choices(CHARACTERS + "(", k=7)) for _ in range(20)
    ]
    for text in texts:
        expected = in_language(grammar, text)
        if expected is None or (conditions and expected):
            continue
        assert (fsm is not None and accepts(fsm, text)) == expected, (grammar, text)


@pytest.mark.parametrize("seed", range(40))
def test_preferred_matches(seed: int) -> None:
    """A text is taken if it is Python's first match in itself."""
    rng = random.Random(seed)
    pattern = _pattern(rng, 3)
    automaton = preferred_automaton(read_python(pattern, Limits()), Limits())
    for text in every_text("abc", 5):
        found = re.match(pattern, text)
        assert bool(automaton.classify(text)) == (found is not None and found.end() == len(text)), (pattern, text)


@pytest.mark.parametrize(
    "pattern",
    [
        r"(#\w{1,20} ?){1,30}",
        r"(([a-z]{1,8} ?){1,50}[.!?]){1,20}",
        r"((\w{1,12}[ ,]{0,2}){1,40}[.!?] ?){1,10}",
        r"(\w{1,20}[ -]?){5,100}",
    ],
)
def test_counts_that_can_be_cut_in_several_ways(pattern: str) -> None:
    fsm = compiled(f"start: A\nA: /{pattern}/")
    begun = ["", "#", "a", "a" * 20, "a" * 21, "a" * 40 + "é", "#ab #c", "#ab  #c", "ab, cd-e", "ab cd."]
    texts = [part * many + end for part in begun for many in (1, 2, 5, 31, 51) for end in ("", ".", "! ", "-")]
    for text in texts:
        found = re.match(pattern, text)
        assert accepts(fsm, text) == (found is not None and found.end() == len(text)), text


@pytest.mark.parametrize("seed", range(8))
def test_what_prefers_the_longest_text_hides_none(seed: int) -> None:
    rng = random.Random(seed)
    many = 0
    while many < 10:
        parts = [_pattern(rng, 1).replace("?)", ")").removesuffix("?") for _ in range(3)]
        pattern = f"(?:{parts[0]}{{1,3}}{parts[1]}?){rng.choice(['{2,3}', '{1,4}', '{3}', '*', '{2,}'])}{parts[2]}?"
        tree = read_python(pattern, Limits())
        if prefers_longest(tree, Limits()):
            many += 1
            found = [compile_tree(tree, search=False, limits=Limits()), preferred_automaton(tree, Limits())]
            assert combine(found, lambda labels: int(labels[0] != labels[1]), Limits()).is_empty, pattern


def test_a_hidden_text_is_no_terminal() -> None:
    """The first repetition takes aab, and c begins no other."""
    pattern = "([ab]{1,2}[bc]?){1,3}"
    assert not prefers_longest(read_regex(pattern, Limits()), Limits())
    fsm = compiled(f"start: A\nA: /{pattern}/")
    assert accepts(fsm, "abc") and not accepts(fsm, "aabc")


def test_one_place_per_message() -> None:
    with pytest.raises(GrammarError) as caught:
        compiled('start: "a"\nA: /x/ &')
    assert str(caught.value).endswith("(line 2, column 8)")


def _pattern(rng: random.Random, depth: int) -> str:
    chance = rng.random()
    if depth == 0 or chance < 0.3:
        return rng.choice(["a", "b", "c", ".", "[ab]"])
    if chance < 0.5:
        return _pattern(rng, depth - 1) + _pattern(rng, depth - 1)
    if chance < 0.7:
        return f"(?:{_pattern(rng, depth - 1)}|{_pattern(rng, depth - 1)}{rng.choice(['', '|'])})"
    return f"(?:{_pattern(rng, depth - 1)}){rng.choice(['*', '+', '?', '*?', '+?', '??', '{1,2}', '{0,2}?', '{2,}?'])}"


@pytest.mark.parametrize(
    ("grammar", "position", "words"),
    [
        ("start: A\nA: /.+?(?=<)/", 16, "condition on the text around"),
        ("start: A\nA: /(?<=x)[a-z]+/", 13, "several lengths"),
        ('start: n{"x"}\nn{x}: n{n{x}} | x', None, "templates become more than"),
        ('start: n{"x", "y"}\nn{x}: x', 7, "has 1 parameters, not 2"),
        ("start: A\nA: B B\nB: C C\nC: A", 26, "needs itself"),
    ],
)
def test_what_cannot_be_honoured_is_rejected_with_its_place(grammar: str, position: int | None, words: str) -> None:
    with pytest.raises(GrammarError, match=words) as caught:
        compiled(grammar)
    assert position in (None, caught.value.position)
    assert caught.value.position is not None


def test_terminals_that_double_are_bounded() -> None:
    """Forty terminals, each twice the one before, would be a pattern of 2^40 characters."""
    lines = [f"T{number}: T{number + 1} T{number + 1}" for number in range(40)]
    with pytest.raises(GrammarError, match="longer than"):
        compiled("\n".join(["start: T0", *lines, 'T40: "a"']))


@pytest.mark.parametrize(
    "text",
    [
        'root ::= "a" item # item ::= "old"\nitem ::= "b"',
        '# item ::= "old"\nroot ::= "a" item\nitem ::= "b"',
        'root ::= "a" item\n# item ::= "old"\nitem ::= "b"',
    ],
)
def test_comments_of_gbnf_are_no_grammar(text: str) -> None:
    fsm = compile_grammar({"type": "grammar", "syntax": "gbnf", "text": text}, bytes_vocabulary())
    assert accepts(fsm, "ab") and not accepts(fsm, "aold")
