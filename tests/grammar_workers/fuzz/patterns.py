"""Random regular expressions of the common ground of ECMA-262 and Python, with texts that nearly match them."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable

from tests.grammar_workers.fuzz.alphabets import Alphabet

_SYNTAX = frozenset("\\^$.*+?()[]{}|/")
_SHORTHANDS = {
    r"\d": "07٣", r"\D": "aé ", r"\w": "a0_é", r"\W": " -é😀", r"\s": " \n\xa0\ufeff", r"\S": "aé", ".": "aé😀\u2028",
    r"\p{L}": "aßK", r"\P{L}": "0 ", r"\p{Lu}": "AİK", r"\p{Script=Greek}": "σς",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Pattern:
    """`source`, and `sample`, which draws a text that likely matches it as a whole."""

    source: str
    sample: Callable[[random.Random], str]


def random_pattern(rng: random.Random, alphabet: Alphabet, depth: int = 3) -> Pattern:
    """A pattern that is used for searching: sometimes anchored."""
    body = _alternatives(rng, alphabet, depth)
    form = rng.random()
    if form < 0.35:
        body = Pattern(f"^{_grouped(body)}$", body.sample)
    elif form < 0.5:
        body = Pattern(f"^{_grouped(body)}", body.sample)
    elif form < 0.6:
        body = Pattern(f"{_grouped(body)}$", body.sample)
    elif form < 0.66:
        body = _counted(rng, alphabet)
    if rng.random() < 0.06:
        body = _with_length(rng, body)
    flags = rng.random()
    return Pattern(f"(?i){body.source}", body.sample) if flags < 0.12 else body


def random_full_pattern(rng: random.Random, alphabet: Alphabet, depth: int = 3) -> Pattern:
    """A pattern that matches texts as a whole."""
    body = _alternatives(rng, alphabet, depth)
    flags = rng.random()
    if flags < 0.12:
        return Pattern(f"(?i){body.source}", body.sample)
    return Pattern(f"(?s){body.source}", body.sample) if flags < 0.15 else body


def _counted(rng: random.Random, alphabet: Alphabet) -> Pattern:
    """One class that repeats often between parts of a fixed length, or nearly so."""
    repeated = rng.choice(
        [_class(rng, alphabet), Pattern(".", lambda r: alphabet.character()), _atom(rng, alphabet, 0)]
    )
    low, more = rng.choice([0, 1, 15, 16, 17, 20]), rng.choice([0, 1, 4, 20, 300])
    high = low + more
    source = repeated.source * low if not more and rng.random() < 0.3 else f"{repeated.source}{{{low},{high}}}"

    def sample(r: random.Random) -> str:
        many = r.choice([low, low, high, high, max(low - 1, 0), high + 1, r.randint(low, high)])
        return "".join(repeated.sample(r) for _ in range(many))

    parts = [Pattern(source, sample)]
    if rng.random() < 0.5:
        parts.insert(0, _atom(rng, alphabet, 0))
    if rng.random() < 0.5:
        parts.append(_quantified(rng, alphabet, 0))
    body = "".join(part.source for part in parts)
    anchored = f"^{body}$" if rng.random() < 0.8 else body
    return Pattern(anchored, lambda r: "".join(part.sample(r) for part in parts))


def _with_length(rng: random.Random, body: Pattern) -> Pattern:
    """`body` behind a look-ahead that bounds the length of the text."""
    low = rng.randrange(3)
    source = body.source.removeprefix("^")
    opening = rng.choice([f"(?=.{{{low},{low + rng.randrange(30)}}}$)", f"(?!.{{{rng.randrange(2, 30)},}})"])
    return Pattern(f"^{opening}{_grouped(Pattern(source, body.sample))}", body.sample)


def _grouped(pattern: Pattern) -> str:
    return f"(?:{pattern.source})" if "|" in pattern.source else pattern.source


def _alternatives(rng: random.Random, alphabet: Alphabet, depth: int) -> Pattern:
    parts = [_sequence(rng, alphabet, depth) for _ in range(1 if rng.random() < 0.7 else 2)]
    return Pattern("|".join(part.source for part in parts), lambda r: r.choice(parts).sample(r))


def _sequence(rng: random.Random, alphabet: Alphabet, depth: int) -> Pattern:
    parts = [_quantified(rng, alphabet, depth) for _ in range(rng.randrange(1, 4))]
    if rng.random() < 0.15:
        parts.insert(rng.randrange(len(parts) + 1), _assertion(rng, alphabet, depth))
    return Pattern("".join(part.source for part in parts), lambda r: "".join(part.sample(r) for part in parts))


def _quantified(rng: random.Random, alphabet: Alphabet, depth: int) -> Pattern:
    atom = _atom(rng, alphabet, depth)
    if rng.random() < 0.6:
        return atom
    low = rng.randrange(3)
    high = low + rng.randrange(3)
    quantifier, bounds = rng.choice(
        [("*", (0, 2)), ("+", (1, 3)), ("?", (0, 1)), (f"{{{low}}}", (low, low)), (f"{{{low},}}", (low, low + 2)),
         (f"{{{low},{high}}}", (low, high))]
    )  # fmt: skip
    lazy = "?" if rng.random() < 0.15 else ""
    return Pattern(
        f"{atom.source}{quantifier}{lazy}", lambda r: "".join(atom.sample(r) for _ in range(r.randint(*bounds)))
    )


def _atom(rng: random.Random, alphabet: Alphabet, depth: int) -> Pattern:
    form = rng.random()
    if depth > 0 and form < 0.2:
        inner = _alternatives(rng, alphabet, depth - 1)
        opening = rng.choice(["(?:", "(", "(?:", "(?i:"])
        return Pattern(f"{opening}{inner.source})", inner.sample)
    if form < 0.4:
        return _class(rng, alphabet)
    if form < 0.52:
        source = rng.choice(list(_SHORTHANDS))
        return Pattern(source, lambda r: r.choice(_SHORTHANDS[source]))
    character = alphabet.character()
    return Pattern(_spelled(rng, character), lambda _: character)


def _class(rng: random.Random, alphabet: Alphabet) -> Pattern:
    members = [alphabet.character() for _ in range(rng.randrange(1, 4))]
    source = "".join(_in_class(rng, character) for character in members)
    samples = list(members)
    if rng.random() < 0.3:
        low, high = sorted([alphabet.character(), alphabet.character()])
        source += f"{_in_class(rng, low)}-{_in_class(rng, high)}"
        samples += [low, high]
    if rng.random() < 0.2:
        source += rng.choice([r"\d", r"\w", r"\s", r"\D", r"\W", r"\S"])
    if rng.random() < 0.3:
        others = [c for c in alphabet.characters if c not in samples] or ["z"]
        return Pattern(f"[^{source}]", lambda r: r.choice(others))
    return Pattern(f"[{source}]", lambda r: r.choice(samples))


def _assertion(rng: random.Random, alphabet: Alphabet, depth: int) -> Pattern:
    source = rng.choice(["^", "$", r"\b", r"\B", "(?=", "(?!", "(?<=", "(?<!"])
    if source.endswith(("=", "!")):
        # Python wants look-behind of one length.
        inner = _atom(rng, alphabet, 0) if "<" in source else _alternatives(rng, alphabet, min(depth, 1))
        source = f"{source}{inner.source})"
    return Pattern(source, lambda _: "")


def _spelled(rng: random.Random, character: str) -> str:
    if character in _SYNTAX:
        return f"\\{character}"
    if rng.random() < 0.2:
        return f"\\x{ord(character):02x}" if ord(character) < 256 else _raw_or_u(character)
    return character


def _raw_or_u(character: str) -> str:
    return f"\\u{ord(character):04x}" if ord(character) < 0x10000 else character


def _in_class(rng: random.Random, character: str) -> str:
    return f"\\{character}" if character in "-" else _spelled(rng, character)
