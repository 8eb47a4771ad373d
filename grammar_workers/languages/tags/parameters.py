"""Formats (nodes of structural tags) for the arguments of tool calls: `<parameter=city>Paris</parameter>`.

The element of an argument is a template with placeholders:

    $key, $value    name and value of the argument
    $string         `true` if the value is a string, else `false`
    $type           JSON type of the value
    $space          optional white space

Strings are written without quotes and escapes, other values as JSON. A template without `$string` and `$type` does not
show the type of a value. Readers then parse a value as JSON if it is valid JSON (`json_types.types_of`). So if the
value may be a string or another type, strings that look like JSON are excluded. Numbers are excluded too, because a
string may begin with a number.

In Python's notation, `city="Paris", days=3, ok=True`, all values are literals. They are written as in JSON, except for
True, False and None. Strings have only the necessary escapes, so that Python and JSON read the same text.
"""

from __future__ import annotations

import dataclasses
import functools
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
from grammar_workers.languages.tags.nested_values import Listed, NestedValues, any_of, const, escaped, sequence
from grammar_workers.languages.tags.texts import StringTexts, untold_scalars

_HOLES = re.compile(r"(\$key|\$value|\$string|\$type|\$space)")
_DEFINITIONS = ("$defs", "definitions", "$schema", "$id")
_UNDERSTOOD = {*ANNOTATIONS, *_DEFINITIONS, "type", "properties", "required", "additionalProperties", "strict"}

# The elements of XGrammar's styles that write one element per argument.
#
# White space may stand around elements and JSON values.
ELEMENTS: Mapping[formats.Style, str] = {
    "qwen_xml": "<parameter=$key>$value</parameter>",
    "minimax_xml": '<parameter name="$key">$value</parameter>',
    "deepseek_xml": '<｜DSML｜parameter name="$key" string="$string">$value</｜DSML｜parameter>',
    "deepseek_v4_1_xml": '<｜DSML｜ parameter name="$key" string="$string">$value</｜DSML｜ parameter>',
    "glm_xml": "<arg_key>$key</arg_key>$space<arg_value>$value</arg_value>",
    "kimi_k3_xml": '<|open|>argument key="$key" type="$type"<|sep|>$value<|close|>argument<|sep|>',
}


# The text on both sides of a string in the style `gemma`.
_GEMMA_QUOTE = '<|"|>'


@dataclasses.dataclass(frozen=True)
class PythonLiteral:
    """Format (node of a structural tag) for Python literals of the values that `json_schema` allows."""

    json_schema: Any


def parameters_of(
    format_: formats.JsonSchemaFormat | formats.QwenXmlParameterFormat | formats.ParametersFormat,
    pointer: str,
    whitespace_limit: int,
) -> formats.Format:
    """Return a format, made of simpler formats, for the arguments of a tool call in the notation of a model family.

    A format is a node of a structural tag.

    Args:
        format_: The schema of the arguments, and the notation: a style or a user-defined element.
        pointer: JSON Pointer of the format, for errors.
        whitespace_limit: Maximum number of consecutive white space characters between elements; 0 allows none. Ignored
            if the format has `max_whitespace_cnt` or a user-defined element, which allows no white space.

    Raises:
        UnsupportedFeatureError: The notation cannot express a keyword of the schema, or the style does not support
            `any_order` or `excludes`. The error has the JSON Pointer.
    """
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
    if style == "gemma":
        written = _Parameters(format_.json_schema, "", "", excludes, f"{pointer}/json_schema")
        inside = written.nested(functools.partial(BareValues, excludes=excludes), _GEMMA_QUOTE, ",")
        return sequence([const("{"), inside, const("}")])
    if excludes:
        raise UnsupportedFeatureError(f"excluded texts in the style {style}", pointer=f"{pointer}/excludes")
    return written.nested(CohereValues if style == "cohere_xml" else MinimaxM3Values, space)


class _Parameters:
    """The formats of the arguments of one function; `space` is a regular expression for optional white space."""

    def __init__(self, schema: Any, element: str, space: str, excludes: Sequence[str], pointer: str) -> None:
        self._schema = schema
        self._parts = [part for part in _HOLES.split(element) if part]
        self._space = [formats.RegexFormat(pattern=space)] if space else []
        self._excludes = tuple(excludes)
        self._pointer = pointer
        # The keywords to which references in the schemas of properties lead.
        self._definitions = {name: schema[name] for name in _DEFINITIONS if isinstance(schema, dict) and name in schema}

    def format(self, element: Callable[[str, Any], Any], separator: str = "") -> formats.Format:
        """Return the format of the arguments, each written by `element`."""
        return sequence([self._listed(element, separator), *self._space])

    def nested(
        self, notation: Callable[[Any, dict[str, Any], str], NestedValues], mark: str, separator: str = ""
    ) -> formats.Format:
        """Return the format of the arguments in a notation with its own objects and arrays.

        `mark` is the last argument of the notation's constructor.
        """
        values = notation(self._schema, self._definitions, mark)
        pointer = f"{self._pointer}/properties"
        return self.format(lambda key, schema: values.member(key, schema, f"{pointer}/{escaped(key)}"), separator)

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
        """Return the format of a property as a keyword argument of Python."""
        if re.fullmatch("[A-Za-z][A-Za-z0-9_]*", key) is None or keyword.iskeyword(key):
            raise UnsupportedFeatureError(
                f"the name {key!a} in a call as Python writes it", pointer=f"{self._pointer}/properties/{escaped(key)}"
            )
        return self._written(key, "", PythonLiteral(self._within(schema)))

    def element(self, key: str, schema: Any) -> Any:
        """Return the format of a property as an element."""
        pointer = f"{self._pointer}/properties/{escaped(key)}"
        place = self._parts.index("$key")
        after = self._parts[place + 1]
        if after in key or key.strip() != key or not key:
            raise UnsupportedFeatureError(f"the name {key!a} in this markup", pointer=pointer)
        types = types_of(self._schema, key)
        if "$string" in self._parts:
            told = {"true": types & {"string"}, "false": types - {"string"}}
        elif "$type" in self._parts:
            names = {"number" if one == "integer" else one for one in types}
            told = {name: frozenset({name}) for name in sorted(names)}
        else:
            return self._written(key, "", self._untold(schema, types))
        contents = {name: self._of_types(schema, held) for name, held in told.items() if held}
        return any_of([self._written(key, name, content) for name, content in contents.items()])

    def _written(self, key: str, told: str, content: Any) -> Any:
        made: list[Any] = [*self._space]
        for part in self._parts:
            if part == "$value":
                made.append(content)
            elif part == "$space":
                made += self._space
            else:
                text = {"$key": key, "$string": told, "$type": told}.get(part, part)
                made.append(formats.ConstStringFormat(value=text))
        return sequence(made)

    def _untold(self, schema: Any, types: frozenset[str]) -> Any:
        """Return the format of a value whose type the markup does not show."""
        if "string" not in types:
            return self._json(schema, types)
        contents = untold_scalars(self._within(schema), types, self._excluded())
        if nested := types & {"object", "array"}:
            contents.append(self._json(schema, nested))
        return any_of(contents)

    def _of_types(self, schema: Any, types: frozenset[str]) -> Any:
        """Return the format of the values of some types: strings alone, or no strings."""
        if types == {"string"}:
            return StringTexts(self._within(schema), self._excluded(), but_json=False)
        return self._json(schema, types)

    def _excluded(self) -> tuple[str, ...]:
        closing = "".join(self._parts[self._parts.index("$value") + 1 :]).strip()
        return (*self._excludes, closing)

    def _json(self, schema: Any, types: Any) -> Any:
        typed = self._within({"allOf": [schema, {"type": sorted(types)}]})
        value = formats.JsonSchemaFormat(json_schema=typed, excludes=list(self._excludes))
        return sequence([*self._space, value, *self._space])

    def _within(self, schema: Any) -> dict[str, Any]:
        """Return the schema of one property, together with the definitions to which its references lead."""
        return {**self._definitions, "allOf": [schema]}
