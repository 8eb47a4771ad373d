"""Values that are probably valid under a schema, and values that nearly are. Numbers are int or Decimal, exactly."""

from __future__ import annotations

import random
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from tests.grammar_workers.fuzz.alphabets import Alphabet
from tests.grammar_workers.fuzz.patterns import Pattern
from tests.grammar_workers.fuzz.schemas import Schema

FORMAT_TEXTS: Mapping[str, tuple[str, ...]] = {
    "date": ("2024-02-29", "2023-02-29", "1900-02-29", "2023-1-01"),
    "date-time": ("2024-01-01T00:00:00Z", "2024-01-01T00:00:00.5+01:00", "2024-01-01t23:59:59z", "2024-01-01T00:00:00"),
    "duration": ("P1D", "PT1S", "P1W", "P1Y2M3DT4H5M6S", "P", "PT", "P1D2W"),
    "email": ("a@b", "a.b@c.d", '"a b"@c', "a@[127.0.0.1]", "a..b@c", "@"),
    "hostname": ("a", "a-b.c", "-a", "a_b", "a.", "xn--a"),
    "idn-email": ("é@é", "a@b", "@é"),
    "idn-hostname": ("é.a", "a", "́a", "a。b"),
    "ipv4": ("127.0.0.1", "256.0.0.1", "1.2.3", "01.2.3.4"),
    "ipv6": ("::", "::1", "1::2:3", "::ffff:1.2.3.4", "1:2:3:4:5:6:7:8", ":::", "::%a"),
    "iri": ("http://é/", "a:b", "é", "a:\ue000"),
    "iri-reference": ("é", "#é", "a b", "\x7f"),
    "json-pointer": ("", "/a", "/~0", "/~2", "a"),
    "regex": ("a", "[a-z]+", "(", "a{2,1}", r"\p{L}"),
    "relative-json-pointer": ("0", "1/a", "0#", "01"),
    "time": ("00:00:00Z", "23:59:59.1-23:59", "24:00:00Z", "00:00:00", "23:59:60Z"),
    "uri": ("http://a/b?c#d", "a:b", "a", "//a", "a: "),
    "uri-reference": ("a", "//a/b", "#", "a b", "é", "%zz"),
    "uri-template": ("{a}", "a{?b,c*}", "{+a:3}", "{", "a b", "\x00", "\x80", "\ufdd0", "{é}"),
    "uuid": ("00000000-0000-0000-0000-000000000000", "0-0"),
}
_DEEPEST = 6
_COMBINED = ("allOf", "anyOf", "oneOf")


class ValueMaker:
    """Draws values for `document` and its parts."""

    def __init__(
        self, rng: random.Random, alphabet: Alphabet, document: dict[str, Any], patterns: Mapping[str, Pattern]
    ) -> None:
        self._rng = rng
        self._alphabet = alphabet
        self._document = document
        self._patterns = patterns

    def near_document(self) -> Any:
        return self._near(self._document, 0)

    def anything(self, depth: int = 1) -> Any:
        rng = self._rng
        kind = rng.randrange(7 if depth else 5)
        if kind == 0:
            return rng.choice([None, True, False])
        if kind <= 2:
            return rng.choice([0, 1, -1, 2, Decimal("0.5"), 10, rng.randrange(-20, 120)])
        if kind <= 4:
            return self._alphabet.text()
        if kind == 5:
            return [self.anything(depth - 1) for _ in range(rng.randrange(3))]
        return {self._alphabet.name(): self.anything(depth - 1) for _ in range(rng.randrange(3))}

    # -- by schema -----------------------------------------------------------------------------------------------------

    def _near(self, schema: Schema, depth: int) -> Any:
        rng = self._rng
        if isinstance(schema, bool) or depth > _DEEPEST or rng.random() < 0.04:
            return self.anything(int(depth < 3))
        reference = schema.get("$ref") or schema.get("$dynamicRef")
        if reference is not None:
            return self._near(self._resolve(reference), depth + 1)
        if "const" in schema:
            return exact(schema["const"])
        if schema.get("enum"):
            return exact(rng.choice(schema["enum"]))
        parts = self._parts(schema, depth)
        kind = self._kind(schema, parts)
        if kind == "object":
            return self._object(schema, [part for part in parts if isinstance(part, dict)], depth)
        if parts and rng.random() < 0.7:
            return rng.choice(parts)
        return self._of_kind(kind, schema, depth)

    def _parts(self, schema: dict[str, Any], depth: int) -> list[Any]:
        """Values for the schemas that apply beside the keywords of this one."""
        rng = self._rng
        chosen: list[Schema] = []
        for keyword in _COMBINED:
            if schema.get(keyword):
                chosen += schema[keyword] if keyword == "allOf" else [rng.choice(schema[keyword])]
        for keyword in ("if", "then", "else"):
            if keyword in schema and rng.random() < 0.5:
                chosen.append(schema[keyword])
        for dependency in (*schema.get("dependentSchemas", {}).values(), *schema.get("dependencies", {}).values()):
            if rng.random() < 0.3 and not isinstance(dependency, list):
                chosen.append(dependency)
        return [self._near(part, depth + 1) for part in chosen]

    def _kind(self, schema: dict[str, Any], parts: list[Any]) -> str:
        rng = self._rng
        kinds = schema.get("type")
        if isinstance(kinds, list):
            return rng.choice(kinds) if kinds else "null"
        if isinstance(kinds, str):
            return kinds
        hints = [kind for kind, words in _HINTS.items() if any(word in keyword for keyword in schema for word in words)]
        if any(isinstance(part, dict) for part in parts):
            hints.append("object")
        return rng.choice(hints) if hints and rng.random() < 0.9 else rng.choice(list(_HINTS))

    def _of_kind(self, kind: str, schema: dict[str, Any], depth: int) -> Any:
        rng = self._rng
        if kind == "null":
            return None
        if kind == "boolean":
            return rng.random() < 0.5
        if kind in ("integer", "number"):
            return self._number(schema, kind == "integer")
        return self._array(schema, depth) if kind == "array" else self._string(schema)

    def _string(self, schema: dict[str, Any]) -> str:
        rng = self._rng
        if "format" in schema and rng.random() < 0.9:
            return rng.choice(FORMAT_TEXTS.get(schema["format"], ("",)))
        text = self._alphabet.text()
        if "pattern" in schema and rng.random() < 0.9:
            text = self.matching(schema["pattern"])
        least, most = schema.get("minLength", 0), schema.get("maxLength", 1 << 40)
        while len(text) < min(least, 100):
            text += self._alphabet.character()
        return text[:most] if most < len(text) and rng.random() < 0.9 else text

    def matching(self, pattern: str) -> str:
        """A text that a pattern of the case likely matches."""
        found = self._patterns.get(pattern)
        text = found.sample(self._rng) if found else self._alphabet.text()
        if self._rng.random() < 0.3:
            text = self._alphabet.text(1) + text + self._alphabet.text(1)
        return text

    def _number(self, schema: dict[str, Any], whole: bool) -> int | Decimal:
        rng = self._rng
        bounds = [schema[k] for k in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum") if k in schema]
        numbers = [Decimal(str(bound)) for bound in bounds if not isinstance(bound, bool)] or [Decimal(0)]
        number = rng.choice(numbers)
        if rng.random() < 0.3:
            number = sum(numbers, Decimal(0)) / len(numbers)
        if "multipleOf" in schema and rng.random() < 0.9:
            divisor = Decimal(str(schema["multipleOf"]))
            number = (number / divisor).to_integral_value() * divisor + rng.randrange(-2, 3) * divisor
        elif abs(number) >= 10**15:
            number *= Decimal(rng.choice(["1", "1.1", "0.9", "2"]))
        else:
            number += rng.choice([Decimal(n) for n in ("0", "1", "-1", "2", "-2", "0.5", "-0.25", "10", "0.1")])
        if whole and rng.random() < 0.9:
            number = number.to_integral_value()
        elif rng.random() < 0.05:
            digits = "".join(rng.choices("0019", k=rng.choice([30, 70, 320])))
            number = Decimal(f"{format(number, 'f').partition('.')[0]}.{digits}")
        return whole_or_decimal(number)

    def _array(self, schema: dict[str, Any], depth: int) -> list[Any]:
        rng = self._rng
        items = schema.get("items", True)
        by_position = isinstance(items, list)
        prefix = items if by_position else schema.get("prefixItems", [])
        rest = schema.get("additionalItems", True) if by_position else items
        contains = [schema["contains"]] if "contains" in schema else []
        least, most = schema.get("minItems", 0), min(schema.get("maxItems", 3), 4)
        length = rng.randint(*sorted((least, most))) if rng.random() < 0.8 else rng.randrange(5)
        length += len(contains) and rng.random() < 0.5
        schemas = [prefix[i] if i < len(prefix) else rng.choice([rest, *contains]) for i in range(min(length, 6))]
        return [self._near(part, depth + 1) for part in schemas]

    def _object(self, schema: dict[str, Any], parts: list[dict[str, Any]], depth: int) -> dict[str, Any]:
        rng = self._rng
        properties = schema.get("properties", {})
        patterns = schema.get("patternProperties", {})
        names = [name for name in properties if rng.random() < 0.6]
        names += [name for name in schema.get("required", []) if rng.random() < 0.95]
        names += [self.matching(pattern) for pattern in patterns if rng.random() < 0.5]
        if schema.get("additionalProperties") is not False or rng.random() < 0.1:
            names += [self._alphabet.name() for _ in range(rng.choice([0, 0, 1, 1, 2]))]
        for name, needed in (schema.get("dependentRequired") or schema.get("dependencies") or {}).items():
            names += needed if name in names and isinstance(needed, list) and rng.random() < 0.8 else []
        if schema.get("propertyNames") not in (None, True) and rng.random() < 0.5:
            names = [str(self._near(schema["propertyNames"], depth + 2)) for _ in names]
        while len(names) < min(schema.get("minProperties", 0), 4):
            names.append(self._alphabet.text())
        value: dict[str, Any] = {}
        for part in parts:
            value |= part
        for name in names:
            value[name] = self._near(self._of_property(name, schema), depth + 1)
        if "maxProperties" in schema and rng.random() < 0.8:
            value = dict(list(value.items())[: schema["maxProperties"]])
        return value

    def _of_property(self, name: str, schema: dict[str, Any]) -> Schema:
        others = list(schema.get("patternProperties", {}).values())
        others.append(schema.get("additionalProperties", schema.get("unevaluatedProperties", True)))
        found: Schema = schema.get("properties", {}).get(name, self._rng.choice(others))
        return found

    def _resolve(self, reference: str) -> Schema:
        found: Any = self._document
        for part in reference.split("/")[1:]:
            found = found[part]
        return found

    # -- near misses ---------------------------------------------------------------------------------------------------

    def mutated(self, value: Any) -> Any:
        """A value that differs in one place."""
        rng = self._rng
        if isinstance(value, list) and value and rng.random() < 0.8:
            place = rng.randrange(len(value))
            if rng.random() < 0.25:
                return [*value[:place], *value[place + 1 :]]
            if rng.random() < 0.25:
                return [*value[:place], self.anything(0), *value[place:]]
            return [*value[:place], self.mutated(value[place]), *value[place + 1 :]]
        if isinstance(value, dict) and rng.random() < 0.9:
            return self._mutated_object(value)
        if isinstance(value, str) and rng.random() < 0.8:
            place = rng.randrange(len(value) + 1)
            return value[:place] + self._alphabet.text(1) + value[place + rng.randrange(2) :]
        if isinstance(value, int | Decimal) and not isinstance(value, bool) and rng.random() < 0.8:
            return whole_or_decimal(value + Decimal(rng.choice(["1", "-1", "0.5", "0.1", "9"])))
        return self.anything()

    def _mutated_object(self, value: dict[str, Any]) -> dict[str, Any]:
        rng = self._rng
        form = rng.random()
        if not value or form < 0.25:
            return {**value, self._alphabet.name(): self.anything(0)}
        chosen = rng.choice(list(value))
        if form < 0.45:
            return {name: part for name, part in value.items() if name != chosen}
        if form < 0.6:
            other = self.mutated(chosen)
            other = other if isinstance(other, str) else self._alphabet.name()
            return {other if name == chosen else name: part for name, part in value.items()}
        return {**value, chosen: self.mutated(value[chosen])}

    def small(self) -> list[Any]:
        """Many small values over the names and characters of the case."""
        characters = self._alphabet.characters[:4]
        texts = ["", *characters, *(a + b for a in characters for b in characters[:3])]
        scalars: list[Any] = [None, True, 0, 1, -1, Decimal("0.5"), *texts[:6]]
        arrays = [[], *([one] for one in scalars), *([one, other] for one in scalars[2:5] for other in scalars[:4])]
        names = list(dict.fromkeys([*self._alphabet.names, *texts]))[:12]
        objects = [{}, *({name: one} for name in names for one in (None, 0, "", characters[0]))]
        objects += [{a: one, b: 0} for a in names[:5] for b in names[:5] if a != b for one in (None, 0, "")]
        return [*scalars, *texts, False, 2, *arrays, *objects]


_HINTS = {
    "object": ("ropert", "required", "ependen"),
    "array": ("tems", "ontains"),
    "string": ("Length", "pattern", "format"),
    "number": ("imum", "multipleOf"),
    "integer": ("imum", "multipleOf"),
    "boolean": ("\0",),
    "null": ("\0",),
}
"""Parts of keywords that speak of a type."""


def whole_or_decimal(number: Decimal | int) -> int | Decimal:
    """An int for whole numbers."""
    if isinstance(number, int):
        return number
    return int(number) if number == number.to_integral_value() else number


def exact(value: Any) -> Any:
    """A value of a schema with exact numbers."""
    if isinstance(value, float):
        return whole_or_decimal(Decimal(str(value)))
    if isinstance(value, list):
        return [exact(part) for part in value]
    if isinstance(value, dict):
        return {name: exact(part) for name, part in value.items()}
    return value
