"""Terminals, ignored text, comments and templates of Lark grammars, against Lark's own Earley parser."""

from __future__ import annotations

import functools
import itertools
import pathlib
import random
import re

import lark
import pytest

from grammar_workers import GrammarError, TokenFSM, compile_grammar
from grammar_workers.budget import budget_of
from grammar_workers.dfa.dfa import combine
from grammar_workers.errors import UnsatisfiableError
from grammar_workers.languages.regex.compile import compile_tree
from grammar_workers.languages.regex.longest_first import prefers_longest
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
    "a string that ends at a quote without a backslash": (
        'start: S S?\nS: /".*?(?<!\\\\)"/',
        every_text('"a\\', 5),
    ),
    "an imported string inside a terminal": (
        'start: S REST\nS: ESCAPED_STRING "x"\nREST: /.+/\n%import common.ESCAPED_STRING',
        ['"a"x"b"x', '"a"xy', '"a"b"xy', '"a\\"x"xx', '"a"x'],
    ),
    "the inner text of a string": (
        'start: "x" S\nS: _STRING_INNER "y"\n%import common._STRING_INNER',
        ["xay", "xyy", "xayy", "xy", "x"],
    ),
    "a shorter text that its own beginning does not allow": (
        'start: "x" A B\nA: /(?<=x)[ab]+/\nB: /[bc]/',
        every_text("xabc", 4),
    ),
    "a shorter text with a condition": ("start: A B\nA: /\\b[ab]+/\nB: /b/", every_text("ab", 4)),
    "a lazy text before a look-ahead": ("start: A B\nA: /.+?(?=<)/\nB: /<.*>/", every_text("a<>", 5)),
    "a look-ahead behind a quote": ("start: S S?\nS: /'(?!'').*?'/", every_text("'a", 6)),
    "a look-behind before several lengths": ('start: "x"? A\nA: /(?<=x)[a-z]+/', every_text("xa", 4)),
    "an alternative that a look-ahead takes away": ("start: A B\nA: /ab(?!c)|a|ab/\nB: /b?c/", every_text("abc", 4)),
    "a look-ahead that goes on behind a longer one": ("start: A B\nA: /a(?=bc)|ab/\nB: /b?c/", every_text("abc", 4)),
    "a border of words inside a look-behind": (
        "start: A? B\nA: /foo|x/\nB: /(?<=\\bfoo)bar/",
        ["foobar", "xfoobar", "bar", "foo"],
    ),
    "an ignored lazy text before a look-ahead": (
        "start: /[ab]/+\n%ignore /#.*?(?=a|$)/",
        every_text("a#b", 5),
    ),
    "a declared terminal has no text": ('start: "a" | "b" "c"\n_x: B\n%declare B C', ["a", "b", "bc", ""]),
    "a line with a beginning and an end": ('start: A "\\n" A\nA: /^a$/m', ["a\na", "a\n", "aa", "a\naa"]),
    "flags of a part": ("start: /(?a:\\w)(?i:b)\\d/", ["ab1", "aB1", "éb1", "ab٣", "AB1"]),
    "blanks and comments with the flag x": ("start: /a + b # c\n [ #]/x", ["ab ", "aab#", "a +b ", "ab", "ab c"]),
    "two backslashes before a quote are one": ('start: /"[^\\\\"]*"/', ['"a"', '"\\a"', '"\\"', '"\\""']),
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


ESCAPES = [
    *(
        r"\N{EM DASH}",
        r"[\N{EM DASH}a]",
        r"\U0001F600",
        r"\u0041",
        r"\x41",
        r"\012",
        r"\0",
        r"\1411",
        r"[\1]",
        r"[\12]",
    ),
    *(
        r"[\1411]",
        r"\a",
        r"[\b]",
        r"\v",
        r"\'",
        r"\/",
        r"\-",
        r"[]a]",
        r"[^]a]",
        r"[]-a]",
        r"[[a]",
        r"[\n ]",
        r"(?x:[\n ])",
    ),
    *(
        r"(?x:\ )",
        r"a{,3}b",
        r"ba{,}",
        r"ba{,1}",
        r"a{}",
        r"a{x",
        r"a{1,}",
        r"(?#c)a",
        r"a(?#c)+",
        r"(?P<n>a)",
        r"(?x:a )b",
    ),
    *(r"\Aa", r"a\Z", r"(?m:^a$)", r"(?i)a", r"\b\w\b", r"(?a:\b)\w", r"\w\B", r"b\Ba", r"a(?<=a)", r"(?:^a)*b?a"),
    *(
        r"\w",
        r"(?a:\w)",
        r"(?a:\W)",
        r"(?a:\s)",
        r"(?a:\d)",
        r"(?a:[^\d])",
        r"(?a:(?u:\w))",
        r"\S\s?",
        r"(?ai:[a-\u017f])",
    ),
    *(r"(?i:k)", r"(?ai:k)", r"(?ai:\w)", r"(?i:\w)", r"(?i:[^k])", r"(?ai:é)", r"(?i:é)", r"(?i:(?-i:a))"),
]
LETTERS = [chr(code) for code in (*range(1, 128), 0xC9, 0xE9, 0x17F, 0x345, 0x3B9, 0x661, 0x2014, 0x212A, 0x1F600)]
TEXTS = [
    "ab",
    "a b",
    "aa",
    "aaa",
    "aaab",
    "aaaab",
    "ba",
    "baa",
    "b",
    "b{",
    "a{}",
    "a{x",
    "a\n",
    "a\nb",
    "a1",
    " a",
    "\0",
]


@pytest.mark.filterwarnings("ignore:Possible nested set")
@pytest.mark.parametrize("pattern", ESCAPES)
def test_the_dialect_of_python(pattern: str) -> None:
    grammar = f'start: /{pattern}/ "1"?'
    fsm = compiled(grammar)
    for text in LETTERS + TEXTS:
        assert accepts(fsm, text) == in_language(grammar, text), text


OWN_GRAMMARS = {
    "lark": ['start: "a"\n', "start: A?[b]\nA: /x\\/y/i\n", "A: /a b", 'a: "', 'a{b}: b ~ 3..4 // "\n', "%ignore X\n"],
    "python": [
        *(
            "a=1\n",
            'x = """a"b""" + f(1)\n',
            "x=''\n",
            "x=''''\n",
            "'a\\'b'\n",
            "'\n",
            "x=01\n",
            "x=0x1_0\n",
            "if a: b\n",
        ),
    ],
}


@pytest.mark.parametrize("name", OWN_GRAMMARS)
def test_grammars_that_lark_comes_with(name: str) -> None:
    grammar = (pathlib.Path(lark.__file__).parent / f"grammars/{name}.lark").read_text()
    grammar += "\nstart: file_input" if name == "python" else ""
    fsm = compiled(grammar)
    for text in OWN_GRAMMARS[name]:
        assert accepts(fsm, text) == in_language(grammar, text), text


@pytest.mark.parametrize("conditions", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_random_grammars(seed: int, conditions: bool) -> None:
    rng = random.Random(seed)
    grammar = draw_grammar(rng, conditions=conditions)
    try:
        fsm = compiled(grammar)
    except UnsatisfiableError:
        fsm = None
    texts = rng.sample(every_text(CHARACTERS, 4), 150) + [
        "".join(rng.choices(CHARACTERS + "(", k=7)) for _ in range(20)
    ]
    for text in texts:
        expected = in_language(grammar, text)
        assert expected is None or (fsm is not None and accepts(fsm, text)) == expected, (grammar, text)


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
    ("pattern", "right", "wrong"),
    [
        (r"(#\w{1,20} ?){1,30}", ["#a" * 30, "#é #b", "#" + "a" * 20], ["", "#a" * 31, "#a  #b", "#" + "a" * 21]),
        (r"(\w{1,20}(, ?)?){1,30}", ["a" * 600, "a, é,b", "a,"], ["", "a" * 601, "a,  b", "a,,b", "a, " * 31]),
        (r"(([a-z]{1,8} ?){1,50}[.!?]){1,20}", ["ab cd.e!", "a" * 400 + "?"], ["ab cd", "a" * 401 + "?", "a." * 21]),
        (r"((\w{1,12}[ ,]{0,2}){1,40}[.!?] ?){1,10}", ["ab, cd. e! "], ["ab,  cd.", "ab.  cd.", "a." * 11]),
        (r"(\w{1,20}[ -]?){5,100}", ["abcde", "a-b-c-d-e-", "a" * 2000], ["abcd", "a--bcde", "a" * 2001]),
    ],
)
def test_counts_that_can_be_cut_in_several_ways(pattern: str, right: list[str], wrong: list[str]) -> None:
    fsm = compiled(f"start: A\nA: /{pattern}/")
    assert [accepts(fsm, text) for text in (*right, *wrong)] == [True] * len(right) + [False] * len(wrong)


@pytest.mark.parametrize("seed", range(4))
def test_what_prefers_the_longest_text_hides_none(seed: int) -> None:
    rng = random.Random(seed)
    found = 0
    while found < 30:
        pattern = _counted(rng, 2)
        tree = read_python(pattern, Limits())
        if prefers_longest(tree, budget_of(Limits())):
            found += 1
            both = [compile_tree(tree, search=False, limits=Limits()), preferred_automaton(tree, Limits())]
            assert combine(both, lambda labels: int(labels[0] != labels[1]), Limits()).is_empty, pattern


def _counted(rng: random.Random, depth: int) -> str:
    if depth == 0:
        return rng.choice(["a", "b", "c", "[ab]", "[bc]"])
    first = rng.choice(["[ab]", "a", f"(?:{_counted(rng, depth - 1)})"]) + rng.choice(
        ["", "{1,2}", "+", "{2}", "{2,3}"]
    )
    rest = rng.choice(["", "b?", "c?", "[bc]?", "c{0,2}", "(?:ca?)?", "(?:cc)?", "c?b?", _counted(rng, 0) + "?"])
    behind = rng.choice(["", "c", "[ab]?", _counted(rng, depth - 1)])
    return f"(?:{first}{rest}){rng.choice(['*', '+', '{3}', '{1,4}', '{2,3}', '{2,}', '{0,2}?'])}{behind}"


@pytest.mark.parametrize(
    "pattern",
    [
        "(?:[ab]{1,2}[bc]?){1,3}",  # The first repetition takes aab, and c begins no other.
        *("(?:a{1,2}(?:ca?)?){1,3}", "(?:a{2,3}b?){1,3}", "(?:a{1,2}(?:bc)?){1,3}", "a?[ab]", "a{1,2}?", "(?:a?){2}"),
    ],
)
def test_where_a_shorter_text_may_come_first(pattern: str) -> None:
    assert not prefers_longest(read_python(pattern, Limits()), budget_of(Limits()))


def test_conditions_inside_of_a_terminal_need_no_markers() -> None:
    """Grammars with markers generate no noncharacters."""
    fsm = compiled("start: S\n%import common.ESCAPED_STRING -> S\n%ignore /[ ]+/")
    assert accepts(fsm, ' "\ufdd0\\"" ')


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
        ("start: A\nA: /x\\x2e/", 14, "write the sign with a backslash"),
        ("start: A\nA: /x \\n/x", 15, r"write it into a class, such as \[\\n\]"),
        ("start: A\nA: /a\n/", 14, "line end in a regular expression without the flag x"),
        ("start: A\nA: /a(?<=a+)b/", 14, "look-behind of several lengths"),
        ("start: A\nA: /a\\p{L}/", 14, "unknown escape"),
        ("start: A\nA: /a\\N{DASH}/", 14, "no character has the name 'DASH'"),
        ("start: A\nA: /a\\ud800/", 14, "not a character"),
        ("start: A\nA: /a[\\777]/", 15, "back-reference"),
        ("start: A\nA: /a{2}{2}/", 17, "repeated quantifier"),
        ("start: A\nA: /a++/", 15, "possessive"),
        ("start: A\nA: /(?-a:a)/", 13, "not turned off"),
        ("start: A\nA: /(?P<n>a)(?P<n>b)/", 21, "name of another group"),
        ("start: A\nA: /(?<n>a)/", 13, "group modifier"),
        ('start: "a"\n%declare rule', 20, "write its text"),
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
