"""How the options say that JSON is spelled: what a text may look like, and the texts of a value that must be accepted.

Written from docs/features.md, not from the engine.
"""

from __future__ import annotations

import decimal
import enum
import itertools
import json
import random
import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

from grammar_workers import GrammarOptions

_TOKEN = re.compile(r'[ \t\n\r]+|"(?:[^"\\]|\\.)*"|[-0-9][-+.0-9eE]*|true|false|null|[{}\[\]:,]', re.S)
_MOST_DIGITS = 308
_LARGEST = Decimal("1.7976931348623157e308")
_MOST_EXPONENT = 400
"""Powers of ten, up or down, beyond which numbers are not worked out: they could have millions of digits."""
_DEEPEST = 60
_EXACT = decimal.Context(prec=1000)


class Spelling(enum.Enum):
    """What the options say about a text: it must be accepted if its value is valid, may be, or must not."""

    REFERENCE = "reference"
    OPEN = "open"
    FORBIDDEN = "forbidden"


class Members(list[tuple[str, Any]]):
    """The members of an object as they stand in the text."""


class Listed(NamedTuple):
    """The strings and numbers that a schema lists: each has one spelling, unless an option says otherwise."""

    strings: frozenset[str] = frozenset()
    numbers: frozenset[Decimal] = frozenset()


class NotJsonError(ValueError):
    """The text is no JSON, or no text."""


# -- reading -------------------------------------------------------------------------------------------------------


def parse(text: str, whole_fractions: bool = True) -> Any:
    """The JSON value with exact numbers and `Members` for objects; with `whole_fractions`, 1.0 is the integer 1.

    Raises NotJsonError, also for lone surrogates, which no UTF-8 text holds.
    """

    def number(literal: str) -> int | Decimal:
        if is_extreme(literal):
            return Decimal(0)
        value = Decimal(literal)
        return int(value) if whole_fractions and value == value.to_integral_value() else value

    def constant(name: str) -> Any:
        raise NotJsonError(name)

    try:
        value = json.loads(text, parse_float=number, parse_constant=constant, object_pairs_hook=Members)
        json.dumps(value, ensure_ascii=False, default=str).encode()
    except (ValueError, RecursionError) as error:
        raise NotJsonError(str(error)) from error
    return value


def plain(value: Any) -> Any:
    """Members as dictionaries, in which the last one of a name counts."""
    if isinstance(value, Members):
        return {name: plain(part) for name, part in value}
    return [plain(part) for part in value] if isinstance(value, list) else value


def with_floats(value: Any) -> Any:
    """A plain value with binary floating-point numbers."""
    if isinstance(value, dict):
        return {name: with_floats(part) for name, part in value.items()}
    if isinstance(value, list):
        return [with_floats(part) for part in value]
    return float(value) if isinstance(value, Decimal) else value


def strings_in(value: Any) -> Iterator[str]:
    """All strings and property names of a plain value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, part in value.items():
            yield name
            yield from strings_in(part)
    elif isinstance(value, list):
        for part in value:
            yield from strings_in(part)


def tokens_of(text: str) -> list[str]:
    """The parts of a JSON text, white space included."""
    return _TOKEN.findall(text)


def numbers_in(text: str) -> list[str]:
    """The number literals of a JSON text."""
    return [token for token in tokens_of(text) if token[0] in "-0123456789"]


def has_extreme_number(text: str) -> bool:
    """Whether some number is too large or too small to be worked out; `parse` has 0 for it."""
    return any(map(is_extreme, numbers_in(text)))


def is_extreme(literal: str) -> bool:
    """Whether a number has an exponent of thousands."""
    exponent = literal.lower().partition("e")[2].lstrip("+-0")
    return len(exponent) > 3 or abs(Decimal(literal).adjusted()) > _MOST_EXPONENT


# -- the policy ----------------------------------------------------------------------------------------------------


def spelling(text: str, options: GrammarOptions, listed: Listed, draft: int) -> Spelling:
    """What `options` say about a JSON text."""
    tokens = tokens_of(text)
    worst = _white_space(tokens, options)
    solid = [token for token in tokens if token[0] not in " \t\n\r"]
    for token, following in itertools.zip_longest(solid, solid[1:]):
        if worst == Spelling.FORBIDDEN:
            break
        if token[0] == '"':
            worst = _worse(worst, _string(token, following == ":", options, listed))
        elif token[0] in "-0123456789":
            worst = _worse(worst, _number(token, options, listed, draft))
    if text.count("[") + text.count("{") > _DEEPEST:
        worst = _worse(worst, Spelling.OPEN)
    return worst


def _worse(one: Spelling, other: Spelling) -> Spelling:
    return max(one, other, key=list(Spelling).index)


def _white_space(tokens: Sequence[str], options: GrammarOptions) -> Spelling:
    worst = Spelling.REFERENCE
    if options.whitespace == "compact":
        for before, token in itertools.pairwise(["", *tokens, ""]):
            is_gap = token[:1] in (" ", "\t", "\n", "\r") and token != ""
            if (before in (",", ":") and token != " ") or (is_gap and (before not in (",", ":") or token != " ")):
                return Spelling.FORBIDDEN
        return worst
    for place, token in enumerate(tokens):
        if token[0] in " \t\n\r":
            if len(token) > options.whitespace_limit:
                return Spelling.FORBIDDEN
            if place in (0, len(tokens) - 1):
                worst = Spelling.OPEN
    return worst


def _string(token: str, is_name: bool, options: GrammarOptions, listed: Listed) -> Spelling:
    text = json.loads(token)
    if token == json.dumps(text, ensure_ascii=False):
        return Spelling.REFERENCE
    if options.escapes == "minimal" or is_name:
        return Spelling.FORBIDDEN
    return Spelling.OPEN if text in listed.strings else Spelling.REFERENCE


def _number(token: str, options: GrammarOptions, listed: Listed, draft: int) -> Spelling:
    if is_extreme(token):
        mantissa, _, exponent = token.lower().partition("e")
        return Spelling.OPEN if exponent.startswith("-") or not Decimal(mantissa) else Spelling.FORBIDDEN
    value = Decimal(token)
    if abs(value) > _LARGEST:
        return Spelling.FORBIDDEN
    if len(re.split("[.eE]", token.removeprefix("-"))[0]) > _MOST_DIGITS:
        return Spelling.OPEN
    if value in listed.numbers and abs(value) <= _LARGEST and int(float(value)) != value == value.to_integral_value():
        return Spelling.OPEN
    if value in listed.numbers and value != value.to_integral_value():
        return Spelling.REFERENCE if token == json.dumps(float(value)) else Spelling.OPEN
    return Spelling.REFERENCE if token in spellings_of(value, options, draft) else Spelling.OPEN


# -- writing -------------------------------------------------------------------------------------------------------


def spellings_of(value: int | Decimal, options: GrammarOptions, draft: int) -> list[str]:
    """The spellings of a number that must be accepted where the number is valid; the first one is the plainest."""
    number = Decimal(value)
    if number == number.to_integral_value():
        whole = str(int(number))
        found = [whole]
        if 10**16 <= abs(number) <= _LARGEST and number == Decimal(repr(float(number))):
            found.append(json.dumps(float(number)))
        if options.number_spelling == "any" and draft > 4:
            found += [f"{whole}.0", *(["-0", "-0.0"] if number == 0 else [])]
        return found
    written = format(number.normalize(_EXACT), "f")
    binary = json.dumps(float(number))
    return list(dict.fromkeys([written, binary])) if Decimal(binary) == number else [written]


def write(
    value: Any,
    options: GrammarOptions,
    draft: int = 2020,
    rng: random.Random | None = None,
    last: bool = False,
) -> str:
    """A text of a value; with `rng`, white space, escapes and numbers are spelled in any way that `options` allow.

    Without it numbers have the first of their spellings, or the `last` one.
    """
    return "".join(_written(value, options, draft, rng, last))


def _written(value: Any, options: GrammarOptions, draft: int, rng: random.Random | None, last: bool) -> Iterator[str]:
    def gap(reference: str) -> str:
        if options.whitespace == "compact" or rng is None or rng.random() < 0.6:
            return reference
        return "".join(rng.choices(" \t\n\r", k=rng.randrange(min(options.whitespace_limit, 3) + 1)))

    if isinstance(value, dict):
        yield "{" + gap("")
        for place, (name, part) in enumerate(value.items()):
            yield (gap("") + "," + gap(" ") if place else "") + json.dumps(name, ensure_ascii=False)
            yield gap("") + ":" + gap(" ")
            yield from _written(part, options, draft, rng, last)
        yield gap("") + "}"
    elif isinstance(value, list):
        yield "[" + gap("")
        for place, part in enumerate(value):
            yield gap("") + "," + gap(" ") if place else ""
            yield from _written(part, options, draft, rng, last)
        yield gap("") + "]"
    elif isinstance(value, str):
        yield json.dumps(value, ensure_ascii=False) if rng is None else _escaped(value, options, rng)
    elif isinstance(value, bool) or value is None:
        yield json.dumps(value)
    else:
        found = spellings_of(value, options, draft)
        yield rng.choice(found) if rng is not None else found[-1 if last else 0]


def _escaped(text: str, options: GrammarOptions, rng: random.Random) -> str:
    if options.escapes == "minimal" or rng.random() < 0.5:
        return json.dumps(text, ensure_ascii=False)
    written = ""
    for character in text:
        units = character.encode("utf-16-be").hex()
        escaped = "".join(rf"\u{units[i : i + 4]}" for i in range(0, len(units), 4))
        upper = escaped.upper().replace(r"\U", r"\u")
        choices = [
            json.dumps(character, ensure_ascii=False)[1:-1],
            escaped,
            upper,
            *([r"\/"] if character == "/" else []),
        ]
        written += rng.choice(choices)
    return f'"{written}"'


def orders(value: Any) -> Iterator[Any]:
    """The value with its properties in every order, at every depth."""
    if isinstance(value, dict):
        for names in itertools.permutations(value):
            for parts in itertools.product(*(list(orders(value[name])) for name in names)):
                yield dict(zip(names, parts, strict=True))
    elif isinstance(value, list):
        yield from map(list, itertools.product(*(list(orders(part)) for part in value)))
    else:
        yield value


def many_orders(value: Any) -> int:
    """How many `orders` there are."""
    many = 1
    if isinstance(value, dict):
        for number in range(2, len(value) + 1):
            many *= number
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        many *= many_orders(part)
    return many
