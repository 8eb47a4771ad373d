"""Arguments written one after the other as markup, as formats: `<parameter=city>Paris</parameter><parameter=days>3...`.

An element has holes: `$key` and `$value`; `$string` (whether the value is a string) or `$type` (its JSON type) where
the markup tells; `$space` where white space may stand. Strings are written as they are, other values as JSON. Where a
value may be either and the markup does not tell, a reader takes for JSON what is JSON (`json_types.types_of`), so no
string looks like it, and of other values only those come that no string begins like: no numbers.

In Python's notation, `city="Paris", days=3, ok=True`, all values are literals: JSON but for True, False and None, for
Python reads the minimal spelling of a JSON string as the same text.
"""

from __future__ import annotations

import dataclasses
import keyword
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from grammar_workers import tag_formats as formats
from grammar_workers.errors import UnsupportedFeatureError
from grammar_workers.json_types import types_of
from grammar_workers.languages.json_schema.read.keywords import ANNOTATIONS
from grammar_workers.languages.tags.bare_values import BareValues
from grammar_workers.languages.tags.markup_values import CohereValues, MinimaxM3Values
from grammar_workers.languages.tags.nested_values import Listed, NestedValues, any_of, escaped, sequence
from grammar_workers.languages.tags.texts import StringTexts, untold_scalars

_HOLES = re.compile(r"(\$key|\$value|\$string|\$type|\$space)")
_DEFINITIONS = ("$defs", "definitions", "$schema", "$id")
_UNDERSTOOD = {*ANNOTATIONS, *_DEFINITIONS, "type", "properties", "required", "additionalProperties", "strict"}

ELEMENTS: Mapping[formats.Style, str] = {
    "qwen_xml": "<parameter=$key>$value</parameter>",
    "minimax_xml": '<parameter name="$key">$value</parameter>',
    "deepseek_xml": '<｜DSML｜parameter name="$key" string="$string">$value</｜DSML｜parameter>',
    "deepseek_v4_1_xml": '<｜DSML｜ parameter name="$key" string="$string">$value</｜DSML｜ parameter>',
    "glm_xml": "<arg_key>$key</arg_key>$space<arg_value>$value</arg_value>",
    "kimi_k3_xml": '<|open|>argument key="$key" type="$type"<|sep|>$value<|close|>argument<|sep|>',
}
"""The styles of XGrammar that write arguments so. White space may stand around elements and JSON values."""


@dataclasses.dataclass(frozen=True)
class PythonLiteral:
    """A leaf: the values that `json_schema` allows, as Python's literals."""

    json_schema: Any


def parameters_of(
    format_: formats.JsonSchemaFormat | formats.QwenXmlParameterFormat | formats.ParametersFormat,
    pointer: str,
    whitespace_limit: int,
) -> formats.Format:
    """The formats of arguments in a style, or in an element of one's own (then without more white space)."""
    if isinstance(format_, formats.ParametersFormat):
        written = _Parameters(format_.json_schema, format_.element, "", (), f"{pointer}/json_schema")
        if format_.notation == "bare":
            return written.nested(BareValues, format_.quote, format_.separator)
        element = written.python_element if format_.notation == "python" else written.element
        return written.format(element, format_.separator)
    style: formats.Style = "qwen_xml"
    excludes: Sequence[str] = ()
    if isinstance(format_, formats.JsonSchemaFormat):
        style, excludes = format_.style, format_.excludes
        if format_.any_order:
            raise UnsupportedFeatureError(f"any order in the style {style}", pointer=f"{pointer}/any_order")
        if format_.max_whitespace_cnt is not None:
            whitespace_limit = format_.max_whitespace_cnt
    space = f"[ \\n\\r\\t]{{0,{whitespace_limit}}}" if whitespace_limit else ""
    written = _Parameters(format_.json_schema, ELEMENTS.get(style, ""), space, excludes, f"{pointer}/json_schema")
    if style in ELEMENTS:
        return written.format(written.element)
    if excludes:
        raise UnsupportedFeatureError(f"excluded texts in the style {style}", pointer=f"{pointer}/excludes")
    return written.nested(CohereValues if style == "cohere_xml" else MinimaxM3Values, space)


class _Parameters:
    """The formats of the arguments of one function; `space` is a regular expression for where white space may stand."""

    def __init__(self, schema: Any, element: str, space: str, excludes: Sequence[str], pointer: str) -> None:
        self._schema = schema
        self._parts = [part for part in _HOLES.split(element) if part]
        self._space = space
        self._excludes = tuple(excludes)
        self._pointer = pointer
        self._holes = [part for part in self._parts if part.startswith("$")]

    def format(self, element: Callable[[str, Any], Any], separator: str = "") -> formats.Format:
        """The arguments, each written by `element`; UnsupportedFeatureError for what elements in a row cannot say."""
        return sequence([self._listed(element, separator), *self._spaces()])

    def nested(
        self, notation: Callable[[Any, dict[str, Any], str], NestedValues], mark: str, separator: str = ""
    ) -> formats.Format:
        """The same in a notation that has its own objects and arrays; `mark`: what it takes last."""
        values = notation(self._schema, self._definitions(), mark)

        def element(key: str, schema: Any) -> Any:
            return values.member(key, schema, f"{self._pointer}/properties/{escaped(key)}")

        return self.format(element, separator)

    def _listed(self, element: Callable[[str, Any], Any], separator: str) -> Any:
        schema = self._schema if isinstance(self._schema, dict) else {}
        for name in schema:
            if name not in _UNDERSTOOD:
                raise UnsupportedFeatureError(
                    f"`{name}` beside `properties`, where arguments are written one by one",
                    pointer=f"{self._pointer}/{escaped(name)}",
                )
        required = schema.get("required", [])
        properties = schema.get("properties", {})
        elements = tuple((element(key, value), key in required) for key, value in properties.items())
        for key in required:
            if key not in properties:
                raise UnsupportedFeatureError(f"the required property {key!a} has no schema", pointer=self._pointer)
        return Listed(elements, separator)

    def python_element(self, key: str, schema: Any) -> Any:
        """A property with its name, as Python writes it."""
        if re.fullmatch("[A-Za-z][A-Za-z0-9_]*", key) is None or keyword.iskeyword(key):
            raise UnsupportedFeatureError(
                f"the name {key!a} in a call as Python writes it", pointer=f"{self._pointer}/properties/{escaped(key)}"
            )
        return self._written(key, "", PythonLiteral(self._within(schema)))

    def _spaces(self) -> list[Any]:
        return [formats.RegexFormat(pattern=self._space)] if self._space else []

    def element(self, key: str, schema: Any) -> Any:
        """A property with its name, as the element has it."""
        pointer = f"{self._pointer}/properties/{escaped(key)}"
        place = self._parts.index("$key")
        after = self._parts[place + 1]
        if after in key or key.strip() != key or not key:
            raise UnsupportedFeatureError(f"the name {key!a} in this markup", pointer=pointer)
        types = types_of(self._schema, key)
        hole = next((one for one in self._holes if one in ("$string", "$type")), None)
        if hole is None:
            alternatives = [("", self._untold(schema, types))]
        elif hole == "$string":
            alternatives = [("true", self._string(schema, but_json=False))] if "string" in types else []
            if others := types - {"string"}:
                alternatives.append(("false", self._json(schema, others)))
        else:
            names = {"number" if one == "integer" else one for one in types}
            alternatives = [
                (one, self._string(schema, but_json=False) if one == "string" else self._json(schema, {one}))
                for one in sorted(names)
            ]
        return any_of([self._written(key, told, content) for told, content in alternatives])

    def _written(self, key: str, told: str, content: Any) -> Any:
        made: list[Any] = [*self._spaces()]
        for part in self._parts:
            if part == "$value":
                made.append(content)
            elif part == "$space":
                made += self._spaces()
            else:
                text = {"$key": key, "$string": told, "$type": told}.get(part, part)
                made.append(formats.ConstStringFormat(value=text))
        return sequence(made)

    def _untold(self, schema: Any, types: frozenset[str]) -> Any:
        """A value whose type the markup does not tell."""
        if "string" not in types:
            return self._json(schema, types)
        contents = untold_scalars(self._within(schema), types, self._excluded())
        if nested := types & {"object", "array"}:
            contents.append(self._json(schema, nested))
        return any_of(contents)

    def _string(self, schema: Any, *, but_json: bool) -> StringTexts:
        return StringTexts(self._within(schema), self._excluded(), but_json)

    def _excluded(self) -> tuple[str, ...]:
        closing = "".join(self._parts[self._parts.index("$value") + 1 :]).strip()
        return (*self._excludes, closing)

    def _json(self, schema: Any, types: Any) -> Any:
        typed = self._within({"allOf": [schema, {"type": sorted(types)}]})
        value = formats.JsonSchemaFormat(json_schema=typed, excludes=list(self._excludes))
        return sequence([*self._spaces(), value, *self._spaces()])

    def _within(self, schema: Any) -> dict[str, Any]:
        """The schema of one property with what its references may lead to."""
        return {**self._definitions(), "allOf": [schema]}

    def _definitions(self) -> dict[str, Any]:
        return {name: self._schema[name] for name in _DEFINITIONS if name in self._schema}
