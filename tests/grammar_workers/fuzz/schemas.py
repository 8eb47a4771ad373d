"""Random JSON Schemas of every draft and every keyword that constrains, over the alphabet of one case."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, TypeAlias

from grammar_workers.languages.json_schema.read.formats import STRING_FORMATS
from tests.grammar_workers.fuzz.alphabets import Alphabet
from tests.grammar_workers.fuzz.patterns import Pattern, random_pattern

Schema: TypeAlias = "dict[str, Any] | bool"

DRAFTS = {
    2020: "https://json-schema.org/draft/2020-12/schema",
    2019: "https://json-schema.org/draft/2019-09/schema",
    7: "http://json-schema.org/draft-07/schema#",
    6: "http://json-schema.org/draft-06/schema#",
    4: "http://json-schema.org/draft-04/schema#",
}
TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
NUMBERS = (0, 0, 1, 1, -1, 2, 3, 5, 10, 12, 100, -12, 0.5, -0.5, 1.5, 1.25, 0.1, -7.5, 1.0, 99.99, 1e-3, 1e-7)
LARGE_NUMBERS = (
    2**53,
    2**63,
    -(2**63),
    1e15,
    1e16,
    9.3e18,
    1e21,
    1e22,
    123456789012345,
    1e100,
    1e300,
    1e308,
    -1e308,
    10**40 + 1,
    -(10**63),
    10**300 + 7,
)
DIVISORS = (1, 1, 2, 3, 5, 7, 10, 12, 100, 0.5, 0.25, 0.1, 0.01, 1.5, 2.5, 1e-3)
_LONG = (16, 20, 21, 40, 100, 1000, 10_000, 100_000, 1_000_000_000)


class SchemaMaker:
    """Makes the schemas of one case. `patterns` are those it has used, by their source."""

    def __init__(self, rng: random.Random, alphabet: Alphabet) -> None:
        self._rng = rng
        self._alphabet = alphabet
        self.draft = rng.choice([2020, 2020, 2020, 2020, 2019, 7, 6, 4])
        self.patterns: dict[str, Pattern] = {}
        self._definitions = "$defs" if self.draft >= 2019 else "definitions"
        self._defined = rng.sample(["one", "two"], rng.choice([0, 0, 1, 2]))
        makers: dict[Callable[[int], dict[str, Any]], int] = {
            self._objects: 6,
            self._arrays: 3,
            self._strings: 3,
            self._numbers: 2,
            self._listed: 3,
            self._typed: 2,
            self._combined: 3,
            self._texts: 1,
            self._mixed: 1,
        }
        self._makers = list(makers)
        self._weights = list(makers.values())

    def document(self) -> dict[str, Any]:
        """A whole schema."""
        schema = self._makers[self._choice()](self._rng.choice([0, 1, 1, 2, 2, 3]))
        if self.draft != 2020 or self._rng.random() < 0.1:
            schema = {"$schema": DRAFTS[self.draft], **schema}
        if self._defined:
            schema[self._definitions] = {name: self._schema(1) for name in self._defined}
        return schema

    # -- any schema ----------------------------------------------------------------------------------------------------

    def _choice(self) -> int:
        return self._rng.choices(range(len(self._makers)), self._weights)[0]

    def _schema(self, depth: int) -> Schema:
        rng = self._rng
        if rng.random() < 0.1:
            return self._boolean()
        if self._defined and rng.random() < 0.15:
            return self._reference()
        if depth <= 0:
            return rng.choice([self._strings, self._numbers, self._listed, self._listed, self._typed])(0)
        return self._makers[self._choice()](depth)

    def _boolean(self) -> Schema:
        value = self._rng.random() < 0.8
        if self.draft == 4:
            return {} if value else {"not": {}}
        return value

    def _reference(self) -> dict[str, Any]:
        target = self._rng.choice(["#", *(f"#/{self._definitions}/{name}" for name in self._defined * 2)])
        if self.draft == 2020 and target == "#" and self._rng.random() < 0.2:
            return {"$dynamicRef": "#"}
        return {"$ref": target}

    def _typed(self, depth: int) -> dict[str, Any]:
        if self._rng.random() < 0.8:
            return {"type": self._rng.choice(TYPES)}
        return {"type": self._rng.sample(TYPES, self._rng.randrange(1, 4))}

    def _mixed(self, depth: int) -> dict[str, Any]:
        """Keywords of several types side by side."""
        makers = [self._objects, self._arrays, self._strings, self._numbers, self._combined]
        first, second = self._rng.sample(makers, 2)
        schema = {**first(depth), **second(depth)}
        if self._rng.random() < 0.7:
            schema.pop("type", None)
        return schema

    def _some(self, **options: Callable[[], Any]) -> dict[str, Any]:
        """Each of the options with a chance that leaves one or two of them on average."""
        chance = self._rng.choice([1.0, 2.0, 3.0]) / len(options)
        return {name.rstrip("_"): make() for name, make in options.items() if self._rng.random() < chance}

    # -- scalars -------------------------------------------------------------------------------------------------------

    def number(self) -> int | float:
        rng = self._rng
        pool = LARGE_NUMBERS if rng.random() < 0.08 else NUMBERS
        return rng.choice(pool) if rng.random() < 0.8 else rng.randrange(-20, 130)

    def scalar(self) -> Any:
        rng = self._rng
        kind = rng.randrange(8)
        if kind == 0:
            return rng.choice([None, True, False])
        return self.number() if kind <= 3 else self._alphabet.text()

    def value(self, depth: int = 1) -> Any:
        rng = self._rng
        if depth == 0 or rng.random() < 0.7:
            return self.scalar()
        if rng.random() < 0.5:
            return [self.value(depth - 1) for _ in range(rng.randrange(3))]
        return {self._alphabet.name(): self.value(depth - 1) for _ in range(rng.randrange(3))}

    def _listed(self, depth: int) -> dict[str, Any]:
        rng = self._rng
        if self.draft > 4 and rng.random() < 0.4:
            return {"const": self.value()}
        values = [self.value() for _ in range(rng.randrange(1, 5))]
        schema: dict[str, Any] = {"enum": values}
        if rng.random() < 0.1:
            schema |= self._typed(0)
        return schema

    def _length(self) -> int:
        rng = self._rng
        return rng.choice(_LONG) if rng.random() < 0.03 else rng.choice([0, 1, 1, 2, 2, 3, 4, 7])

    def _strings(self, depth: int) -> dict[str, Any]:
        schema = self._some(minLength=self._length, maxLength=self._length, pattern=self._pattern)
        if self._rng.random() < 0.06:
            schema["format"] = self._rng.choice(list(STRING_FORMATS))
        return {"type": "string", **schema} if self._rng.random() < 0.7 else schema

    def _texts(self, depth: int) -> dict[str, Any]:
        """Any Boolean combination of patterns and lengths."""
        rng = self._rng
        if depth <= 0 or rng.random() < 0.3:
            schema = self._strings(0)
            if rng.random() < 0.3:
                schema.pop("type", None)
                return {"type": "string", "not": schema}
            return schema
        kind = rng.choice(["allOf", "anyOf", "anyOf", "oneOf"])
        parts = [self._texts(depth - 1) for _ in range(rng.randrange(2, 5))]
        return {**self._strings(0), kind: parts}

    def _pattern(self) -> str:
        pattern = random_pattern(self._rng, self._alphabet, self._rng.choice([0, 1, 2]))
        self.patterns[pattern.source] = pattern
        return pattern.source

    def _numbers(self, depth: int) -> dict[str, Any]:
        rng = self._rng
        schema = self._some(minimum=self.number, maximum=self.number, multipleOf=lambda: rng.choice(DIVISORS))
        for side in ("Minimum", "Maximum"):
            if rng.random() < 0.15:
                if self.draft > 4:
                    schema[f"exclusive{side}"] = self.number()
                elif side.lower() in schema:
                    schema[f"exclusive{side}"] = rng.random() < 0.8
        return {"type": rng.choice(["integer", "number"]), **schema} if rng.random() < 0.8 else schema

    # -- containers ----------------------------------------------------------------------------------------------------

    def _few(self) -> int:
        return self._rng.choice([0, 1, 1, 2, 2, 3])

    def _names(self) -> list[str]:
        return list(dict.fromkeys(self._alphabet.name() for _ in range(self._few())))

    def _map(self, depth: int) -> dict[str, Schema]:
        return {name: self._schema(depth - 1) for name in self._names()}

    def _objects(self, depth: int) -> dict[str, Any]:
        rng = self._rng
        schema: dict[str, Any] = {"type": "object"} if rng.random() < 0.6 else {}
        if rng.random() < 0.75:
            schema["properties"] = self._map(depth)
        if rng.random() < 0.5:
            schema["required"] = self._names() or [self._alphabet.name()]
        if rng.random() < 0.4:
            closed: Schema = False
            schema["additionalProperties"] = closed if rng.random() < 0.5 else self._schema(depth - 1)
        if rng.random() < 0.4:
            schema |= self._some(**self._rare_of_objects(depth))
        return schema

    def _rare_of_objects(self, depth: int) -> dict[str, Callable[[], Any]]:
        options: dict[str, Callable[[], Any]] = {
            "patternProperties": lambda: {self._pattern(): self._schema(depth - 1) for _ in range(self._few() or 1)},
            "minProperties": self._few,
            "maxProperties": self._few,
        }
        if self.draft > 4:
            options["propertyNames"] = self._name_schema
        if self.draft <= 7:
            options["dependencies"] = lambda: {
                name: self._schema(depth - 1) if self._rng.random() < 0.5 else self._names() or [self._alphabet.name()]
                for name in self._names()
            }
        else:
            options["dependentRequired"] = lambda: {name: self._names() for name in self._names()}
            options["dependentSchemas"] = lambda: self._map(depth)
            options["unevaluatedProperties"] = lambda: self._rng.random() < 0.2 or self._schema_or_false(depth)
        return options

    def _schema_or_false(self, depth: int) -> Schema:
        return False if self._rng.random() < 0.6 else self._schema(depth - 1)

    def _name_schema(self) -> Schema:
        rng = self._rng
        if rng.random() < 0.3:
            return {"enum": self._alphabet.names[: rng.randrange(1, 3)]}
        schema = self._strings(0)
        schema.pop("type", None)
        return {"not": schema} if rng.random() < 0.15 else schema

    def _arrays(self, depth: int) -> dict[str, Any]:
        rng = self._rng
        schema: dict[str, Any] = {"type": "array"} if rng.random() < 0.7 else {}
        schemas = [self._schema(depth - 1) for _ in range(self._few() or 1)]
        prefix = rng.random() < 0.35
        if prefix:
            schema["prefixItems" if self.draft == 2020 else "items"] = schemas
        if rng.random() < 0.6:
            rest = "additionalItems" if prefix and self.draft < 2020 else "items"
            schema[rest] = False if prefix and self.draft > 4 and rng.random() < 0.3 else self._schema(depth - 1)
        schema |= self._some(**self._rare_of_arrays(depth))
        if schema.get("uniqueItems") and rng.random() < 0.4:
            schema["items"] = {"enum": [self.value() for _ in range(rng.randrange(1, 4))]}
        return schema

    def _rare_of_arrays(self, depth: int) -> dict[str, Callable[[], Any]]:
        options: dict[str, Callable[[], Any]] = {
            "minItems": self._few,
            "maxItems": self._few,
            "uniqueItems": lambda: self._rng.random() < 0.8,
        }
        if self.draft > 4:
            options["contains"] = lambda: self._schema(depth - 1)
        if self.draft > 7:
            options["minContains"] = self._few
            options["maxContains"] = self._few
            options["unevaluatedItems"] = lambda: self._schema_or_false(depth)
        return options

    # -- combinations --------------------------------------------------------------------------------------------------

    def _combined(self, depth: int) -> dict[str, Any]:
        rng = self._rng
        schema = self._makers[self._choice()](depth - 1) if depth > 0 and rng.random() < 0.5 else {}
        kind = rng.choice(["allOf", "anyOf", "anyOf", "oneOf", "oneOf", "not", "if"])
        if kind == "not":
            schema["not"] = self._schema(depth - 1)
        elif kind == "if" and self.draft >= 7:
            schema["if"] = self._schema(depth - 1)
            schema |= self._some(then=lambda: self._schema(depth - 1), else_=lambda: self._schema(depth - 1))
        else:
            kind = "anyOf" if kind == "if" else kind
            schema[kind] = [self._schema(depth - 1) for _ in range(rng.randrange(1, 4))]
        return schema
