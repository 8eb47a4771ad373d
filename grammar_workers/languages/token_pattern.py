"""Compiler of token patterns: lists of pairs (character class or literal text, quantifier).

For example, `[["UPPER", "+"], [":", "1"], [" ", "1"], ["LOWER", "+"]]` matches `ROMEO: away`. The class ANY contains
every character. The other classes contain only ASCII characters.
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence

from grammar_workers.dfa import charset
from grammar_workers.dfa.dfa import Dfa
from grammar_workers.errors import InvalidSpecificationError, LimitExceededError
from grammar_workers.languages.regex import parse
from grammar_workers.languages.regex.character_class import agreed
from grammar_workers.languages.regex.compile import compile_tree
from grammar_workers.options import Limits
from grammar_workers.scalar_values import has_surrogate

# The characters of each class. Any other text is a literal.
CLASSES = {
    "UPPER": charset.of(string.ascii_uppercase),
    "LOWER": charset.of(string.ascii_lowercase),
    "LETTER": charset.of(string.ascii_letters),
    "DIGIT": charset.of(string.digits),
    "SPACE": charset.of(" \t"),
    "NEWLINE": charset.of("\n"),
    "PUNCT": charset.of(string.punctuation),
    "ANY": charset.ALL,
}

_QUANTIFIERS = {"1": (1, 1), "?": (0, 1), "*": (0, None), "+": (1, None)}
_COUNT = re.compile(r"\{([0-9]{1,9})(,)?([0-9]{1,9})?\}")


def token_pattern(elements: Sequence[tuple[str, str]], limits: Limits) -> Dfa:
    """Compile a token pattern to the minimal DFA of the matching texts.

    A malformed pair raises InvalidSpecificationError with the JSON Pointer of its text or quantifier.

    Args:
        elements: Pairs (class or text, quantifier). The first member is the name of a class in `CLASSES`, such as
            `DIGIT`, or a literal text. The quantifier is `1`, `?`, `*`, `+`, `{m}`, `{m,}` or `{m,n}`.
        limits: Bounds on states and on steps of work.

    Returns:
        The minimal DFA over characters.

    Raises:
        LimitExceededError: A repeat count or the DFA is too large. The pointer names the pair.
    """
    parts = []
    for number, (text, quantifier) in enumerate(elements):
        low, high = _bounds(quantifier, f"/elements/{number}/1")
        parts.append(parse.Repeat(_body(text, f"/elements/{number}/0"), low, high, position=number))
    try:
        return compile_tree(parse.Sequence(tuple(parts)), search=False, limits=limits)
    except LimitExceededError as error:
        error.pointer, error.position = f"/elements/{error.position}", None
        raise


def _body(text: str, pointer: str) -> parse.Node:
    if text in CLASSES:
        return parse.Characters(agreed(CLASSES[text]))
    if not text:
        raise InvalidSpecificationError(
            f"an empty text; name a class ({', '.join(CLASSES)}) or write a literal", pointer=pointer
        )
    if has_surrogate(text):
        raise InvalidSpecificationError(f"{text!a} holds a lone surrogate", pointer=pointer)
    return parse.Sequence(tuple(parse.Characters(agreed(charset.of(character))) for character in text))


def _bounds(quantifier: str, pointer: str) -> tuple[int, int | None]:
    if quantifier in _QUANTIFIERS:
        return _QUANTIFIERS[quantifier]
    count = _COUNT.fullmatch(quantifier)
    if count is None or (count[3] and not count[2]):
        raise InvalidSpecificationError(
            f"{quantifier!a} is no quantifier; write 1, ?, *, +, {{m}}, {{m,}} or {{m,n}}", pointer=pointer
        )
    low = int(count[1])
    high = int(count[3]) if count[3] else None if count[2] else low
    if high is not None and high < low:
        raise InvalidSpecificationError(f"the bounds of {quantifier} are out of order", pointer=pointer)
    if max(low, high or 0) > parse.MAX_REPEAT:
        raise LimitExceededError(f"a repeat count above {parse.MAX_REPEAT}", pointer=pointer)
    return low, high
