"""Random Lark grammars whose terminals take what Python's `re` prefers, with comments, ignored text and templates."""

from __future__ import annotations

import random
import re

import lark

CHARACTERS = "ab# "
IGNORED = ['" "', "/#[^b]*/", "/ +/", "/b.*?#/", "/#a?/", "/#.*/", "/[ #]/"]
_BEFORE = [r"\b", "(?<!a)", "(?<=b)", "^", "(?!ab)", "(?<!#)"]
_BEHIND = [r"\b", "(?!a)", "(?=b)", "(?![ab])", "$", "(?= )"]
_QUANTIFIERS = ["*", "+", "?", "*?", "+?", "??", "{1,2}", "{2,}"]


def draw_grammar(rng: random.Random, *, conditions: bool) -> str:
    """Return a grammar that Lark reads; with `conditions`, terminals have look-arounds at their edges."""
    while True:
        text = _grammar(rng, conditions)
        try:
            lark.Lark(text, parser="earley", lexer="dynamic_complete")
        except lark.exceptions.LarkError:
            continue
        return text


def _grammar(rng: random.Random, conditions: bool) -> str:
    shapes = ["{}", "{} {}", "{} | {}", "({})~1..2"]
    terminals = [
        f"T{number}: {rng.choice(shapes).format(_terminal(rng, 2, conditions), _terminal(rng, 1, conditions))}\n"
        for number in range(2)
    ]

    def sequence() -> str:
        atoms = ["T0", "T1", _terminal(rng, 1, conditions), "r", '_many{r, "#"}']
        return " ".join(
            rng.choice(["{}", "{}?", "({})*", "{}"]).format(rng.choice(atoms)) for _ in range(rng.randint(1, 3))
        )

    comment = rng.choice(["", " // x | y", "\n// c | d", ' # "a" | r'])
    more = rng.choice(["", f" | {sequence()}", f"\n  | {sequence()}"])
    rules = f'start: {sequence()}{comment}{more}\nr: {rng.choice(["T0", "T1", "r_ T0", "T0 r?"])}\nr_: "("  r? ")"\n'
    ignored = "".join(f"%ignore {rng.choice(IGNORED)}\n" for _ in range(rng.choice([0, 0, 1, 1, 2])))
    return f"{rules}_many{{x, y}}: x (y x)*\n{''.join(terminals)}{ignored}"


def _terminal(rng: random.Random, depth: int, conditions: bool) -> str:
    if rng.random() < 0.25:
        return f'"{rng.choice(["a", "b", "ab", "#", "a b", "ba"])}"'
    while True:
        pattern = _pattern(rng, depth)
        if conditions and rng.random() < 0.25:
            pattern += rng.choice(_BEHIND)
        if conditions and rng.random() < 0.15:
            pattern = rng.choice(_BEFORE) + pattern
        if re.match(pattern, "") is None and lark.utils.get_regexp_width(pattern)[0] > 0:
            return f"/{pattern}/"


def _pattern(rng: random.Random, depth: int) -> str:
    chance = rng.random()
    if depth == 0 or chance < 0.35:
        return rng.choice(["a", "b", "#", ".", "[ab]", "[^#]", r"\w", " "])
    if chance < 0.6:
        return _pattern(rng, depth - 1) + _pattern(rng, depth - 1)
    if chance < 0.75:
        return f"(?:{_pattern(rng, depth - 1)}|{_pattern(rng, depth - 1)})"
    return f"(?:{_pattern(rng, depth - 1)}){rng.choice(_QUANTIFIERS)}"
