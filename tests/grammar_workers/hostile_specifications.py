"""Random specifications that cost much to compile, and as a program the CPU time until each is compiled or refused.

    python -m tests.grammar_workers.hostile_specifications --seconds 300 --seed 1

prints the slowest, and those that took longer than `--bound` seconds as JSON to look at.
"""

from __future__ import annotations

import argparse
import collections
import json
import random
import time
from collections.abc import Callable
from typing import Any

from grammar_workers import GrammarError, GrammarOptions, compile_grammar, warm_up
from tests.grammar_workers.vocabularies import bytes_vocabulary

PATTERNS = [
    "^a", "b$", "(a|b)*a(a|b){12}", "^(?!ab)", r"\bx\b", r"^[\w.]{1,64}@[\w.]{1,250}$", "^([a-z]{2,9}-){1,6}$",
    r"(?=.*\d)(?=.*[a-z])(?=.*[A-Z]).{8,}", "(a{1,50}b){1,50}", "((a|b|c)*d(a|b|c)*){3}", r"[^\x00-\x1f]{0,2000}",
    "(?i)straße|ſ|k{3,40}", "(x+x+)+y", r"^(\p{L}|\d){3,200}$", "(?<!a)b(?!c)", "(ab|bc|ca){0,300}$", "^p", "1$",
    "^p[0-9]*$",
]  # fmt: skip
FORMATS = ["date", "email", "uri", "hostname", "idn-hostname", "regex", "ipv6", "uri-template"]
NAMES = [f"p{number}" for number in range(300)]
DEFINITIONS = 8


class _Schemas:
    """Schemas of many alternatives over few names, of patterns, counts and references."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._names = NAMES[: rng.choice([1, 3, 8, 20, 60, 300])]

    def document(self) -> dict[str, Any]:
        depth = self._rng.choice([1, 2, 3])
        definitions = {f"d{number}": self._schema(self._rng.choice([1, 2])) for number in range(DEFINITIONS)}
        return {**self._container(depth), "$defs": definitions}

    def _chance(self, of_ten: int) -> bool:
        return self._rng.random() < of_ten / 10

    def _container(self, depth: int) -> dict[str, Any]:
        schema = self._schema(depth)
        return schema if isinstance(schema, dict) else {"not": {"not": schema}}

    def _schema(self, depth: int) -> Any:
        if depth <= 0:
            return self._scalar()
        many = self._rng.choice([2, 3, 5, 8, 12, 20, 40] if depth > 1 else [2, 3, 5, 8])
        makers: list[tuple[int, Callable[[], Any]]] = [
            (7, lambda: {self._keyword(): [self._alternative(depth - 1) for _ in range(many)]}),
            (4, lambda: self._object(depth)),
            (3, lambda: self._array(depth)),
            (2, lambda: {"not": self._schema(depth - 1)}),
            (2, lambda: {name: self._object(depth - 1) for name in ("if", "then", "else")}),
            (1, lambda: {"$ref": f"#/$defs/d{self._rng.randrange(DEFINITIONS)}"}),
            (2, lambda: {**self._object(depth), self._keyword(): [self._object(depth - 1) for _ in range(many)]}),
        ]
        weights = [weight for weight, _ in makers]
        return self._rng.choices([make for _, make in makers], weights)[0]()

    def _keyword(self) -> str:
        return self._rng.choice(["oneOf", "anyOf", "allOf"])

    def _alternative(self, depth: int) -> Any:
        return self._schema(depth) if self._chance(2) else self._object(depth)

    def _scalar(self) -> Any:
        rng = self._rng
        return rng.choice(
            [
                {"type": "integer"},
                {"type": "string"},
                {"const": rng.randrange(5)},
                {"enum": ["a", "b", "c"][: rng.randrange(1, 4)]},
                {"type": "integer", "minimum": rng.randrange(1000), "maximum": 10 ** rng.randrange(3, 40)},
                {"type": "number", "multipleOf": rng.choice([3, 0.01, 1001, 997, 0.003])},
                {"type": "string", "pattern": rng.choice(PATTERNS)},
                {"type": "string", "minLength": rng.randrange(50), "maxLength": 10 ** rng.randrange(2, 7)},
                {"type": "string", "pattern": rng.choice(PATTERNS), "maxLength": rng.choice([100, 1000, 100_000])},
                {"format": rng.choice(FORMATS)},
                True,
            ]
        )

    def _some_names(self, most: int) -> list[str]:
        return self._rng.sample(self._names, self._rng.randrange(min(most, len(self._names)) + 1))

    def _object(self, depth: int) -> dict[str, Any]:
        rng = self._rng
        found: dict[str, Any] = {"type": "object"} if self._chance(8) else {}
        found["properties"] = {
            name: self._schema(depth - 1) if self._chance(3) else self._scalar() for name in self._some_names(300)
        }
        if self._chance(5):
            found["required"] = self._some_names(4)
        if self._chance(3):
            found["additionalProperties"] = rng.choice([False, self._scalar()])
        if self._chance(2):
            found["patternProperties"] = {rng.choice(PATTERNS): self._scalar() for _ in range(rng.randrange(1, 5))}
        if self._chance(2):
            found["minProperties"] = rng.randrange(4)
        if self._chance(2):
            found["maxProperties"] = rng.randrange(1, 300)
        if self._chance(1):
            found["propertyNames"] = rng.choice([{"pattern": rng.choice(PATTERNS)}, {"maxLength": rng.randrange(300)}])
        if self._chance(1):
            found["dependentRequired"] = {name: self._some_names(2) for name in self._some_names(3)}
        if self._chance(1):
            found["dependentSchemas"] = {name: self._schema(depth - 1) for name in self._some_names(2)}
        if self._chance(1):
            found["unevaluatedProperties"] = rng.choice([False, self._scalar()])
        return found

    def _array(self, depth: int) -> dict[str, Any]:
        rng = self._rng
        found: dict[str, Any] = {"type": "array"}
        if self._chance(6):
            found["items"] = self._schema(depth - 1)
        if self._chance(3):
            found["prefixItems"] = [self._schema(depth - 1) for _ in range(rng.randrange(1, 5))]
        if self._chance(4):
            found |= {"contains": self._scalar(), "minContains": rng.randrange(20), "maxContains": rng.randrange(200)}
        if self._chance(3):
            found["minItems"] = rng.choice([0, 3, 100, 999, 10_000])
        if self._chance(3):
            found["maxItems"] = rng.choice([3, 100, 999, 10_000])
        if self._chance(2):
            found |= {"uniqueItems": True, "items": {"enum": list(range(rng.randrange(2, 18)))}}
        return found


def _pattern(rng: random.Random) -> str:
    def part() -> str:
        return f"({rng.choice(PATTERNS).strip('^$')}){rng.choice(['', '{1,30}', '*', '{5}', '?', '{2,40}', '{100}'])}"

    return "".join(part() for _ in range(rng.choice([1, 3, 10, 60])))


def _words(rng: random.Random) -> dict[str, Any]:
    words = {
        "".join(rng.choice("abcdeßİſK") for _ in range(rng.randrange(1, 12)))
        for _ in range(rng.choice([10, 100, 1000, 5000]))
    }
    flags = {"whole_words": rng.random() < 0.5, "case_sensitive": rng.random() < 0.5}
    return {"type": "banned_words", "words": sorted(words), **flags}


def _grammar(rng: random.Random) -> str:
    many = rng.choice([2, 5, 20, 100])

    def item() -> str:
        rule = f"r{rng.randrange(many)}"
        atom = rng.choice([rule, rule, '"a"', '"ab"', "[a-z]", '[^"]', '"("', '")"', f'({rule} | "x")'])
        return atom + rng.choice(["", "", "*", "?", "+", "{2,5}", "{0,50}"])

    def rule() -> str:
        return " | ".join(" ".join(item() for _ in range(rng.randrange(1, 5))) for _ in range(rng.randrange(1, 5)))

    return "\n".join(["root ::= r0", *(f"r{number} ::= {rule()}" for number in range(many))])


def hostile_specification(rng: random.Random) -> tuple[dict[str, Any], GrammarOptions]:
    """A specification, and options to compile it with."""
    schema = {"type": "json_schema", "schema": _Schemas(rng).document()}
    options = GrammarOptions.model_validate(
        {
            "property_order": rng.choice(["declared", "any"]),
            "whitespace": rng.choice(["compact", "flexible"]),
            "escapes": rng.choice(["minimal", "any"]),
            "number_spelling": rng.choice(["plain", "any"]),
        }
    )
    regex = {"type": "regex", "pattern": _pattern(rng)}
    makers: list[tuple[int, Callable[[], dict[str, Any]]]] = [
        (12, lambda: schema),
        (2, lambda: regex),
        (1, lambda: _words(rng)),
        (2, lambda: {"type": "grammar", "syntax": "gbnf", "text": _grammar(rng)}),
        (1, lambda: {"type": "all_of", "specifications": [schema, _words(rng)]}),
        (1, lambda: {"type": "all_of", "specifications": [schema, regex]}),
    ]
    return rng.choices([make for _, make in makers], [weight for weight, _ in makers])[0](), options


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60, help="how long to go on (default: 60)")
    parser.add_argument("--seed", type=int, default=0, help="where to begin (default: 0)")
    parser.add_argument("--bound", type=float, default=2.0, help="print what takes more seconds of CPU (default: 2)")
    arguments = parser.parse_args()
    vocabulary = bytes_vocabulary()
    warm_up(vocabulary)
    outcomes: collections.Counter[str] = collections.Counter()
    slowest: list[tuple[float, str, int]] = []
    seed = arguments.seed
    end = time.monotonic() + arguments.seconds
    while time.monotonic() < end:
        specification, options = hostile_specification(random.Random(seed))
        begun = time.process_time()
        try:
            compile_grammar(specification, vocabulary, options=options)
            outcome = "compiled"
        except GrammarError as error:
            outcome = error.code
        seconds = time.process_time() - begun
        outcomes[outcome] += 1
        slowest = sorted([*slowest, (seconds, outcome, seed)], reverse=True)[:10]
        if seconds > arguments.bound:
            print(
                f"seed {seed}: {seconds:.2f} s, {outcome}: {json.dumps(specification)[:2000]} {options!r}", flush=True
            )
        seed += 1
    print(f"{sum(outcomes.values())} specifications from seed {arguments.seed} on: {dict(outcomes)}")
    print("slowest (seconds of CPU, outcome, seed):")
    for seconds, outcome, number in slowest:
        print(f"{seconds:8.2f}  {outcome:24}  {number}")


if __name__ == "__main__":
    main()
