"""Judges JSON texts: `jsonschema` with exact numbers and each dialect of patterns, `jsonschema-rs`, the policy."""

from __future__ import annotations

import decimal
import json
import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

import jsonschema
import jsonschema_rs

from grammar_workers import GrammarOptions
from tests.grammar_workers.fuzz.declared_order import Order, order_of
from tests.grammar_workers.fuzz.exclusions import COMPLETENESS, JSONSCHEMA, JSONSCHEMA_RS, Question, is_excluded
from tests.grammar_workers.fuzz.readings import (
    DIALECTS,
    Patterns,
    UnreadableError,
    disagree,
    is_doubtful,
    is_settled,
    read_by,
)
from tests.grammar_workers.fuzz.spelling import (
    Listed,
    Members,
    NotJsonError,
    Spelling,
    has_extreme_number,
    parse,
    plain,
    spelling,
    strings_in,
    with_floats,
)
from tests.grammar_workers.fuzz.verdicts import VALID, Verdict, invalid, undecided
from tests.grammar_workers.other_formats import OTHER_FORMATS

_PRECISION = 700
_NAME_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
_VALUES = ("enum", "const")


class JsonJudge:
    """Of one schema under some options. `notes` are those of the automaton: what it says that it does not keep to."""

    def __init__(self, schema: Any, options: GrammarOptions, notes: tuple[str, ...] = ()) -> None:
        self._options = options
        self._notes = notes
        self.schema = _closed(schema) if not options.additional_properties else schema
        self._text = json.dumps(schema, ensure_ascii=False)
        self._keywords = frozenset(_keys(schema))
        self._listed = _listed(schema)
        self._patterns = sorted(set(_patterns(schema)))
        kind = jsonschema.validators.validator_for(self.schema, default=jsonschema.Draft202012Validator)
        self.draft = _draft_of(kind)
        self._asserts = options.format == "assert"
        checker = kind.FORMAT_CHECKER if self._asserts else None
        self._validator = kind(parse_schema(self.schema), format_checker=checker)
        self._second: Any = None
        self.second_refuses = ""
        try:
            self._second = jsonschema_rs.validator_for(
                self.schema, validate_formats=self._asserts, formats=OTHER_FORMATS
            )
        except (ValueError, jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError) as error:
            self.second_refuses = str(error)[:80]

    def verdict(self, text: str) -> Verdict:
        try:
            members = parse(text, self.draft > 4)
        except NotJsonError as error:
            return invalid(f"not JSON: {error}")
        spelled = spelling(text, self._options, self._listed, self.draft)
        if spelled == Spelling.FORBIDDEN:
            return invalid("the options do not allow this spelling")
        order = self._order(members)
        if order == Order.KEPT and has_repeated_names(members):
            order = Order.OPEN
        if order == Order.BROKEN:
            return invalid("not in declared order")
        found = self.of_value(plain(members), text)
        if found != VALID:
            return found
        if spelled == Spelling.OPEN or order == Order.OPEN:
            return undecided(f"spelling {spelled.value}, order {order.value}")
        return VALID

    def of_value(self, value: Any, text: str) -> Verdict:
        """What the validators say; it is valid only if they agree in both dialects of patterns."""
        question = Question(self.schema, self.draft, text, self._keywords, self._text, self._notes, self._asserts)
        if self._patterns and not all(map(is_settled, strings_in(value))):
            return undecided("characters that only some versions of Unicode know")
        if has_extreme_number(text):
            return undecided("a number that takes too long to work out")
        dialects, is_readable = self._dialects(value)
        try:
            verdicts = list(self._by_validators(value, question, dialects))
        except (UnreadableError, RecursionError) as error:
            return undecided(f"the judge gives up: {error}"[:200])
        except BaseException as error:
            # What `rpds`, in which `jsonschema` looks references up, makes of a RecursionError; no `Exception`.
            if type(error).__name__ != "PanicException":
                raise
            return undecided("the judge gives up: its recursion is too deep")
        wrong = next((verdict for verdict in verdicts if verdict != VALID), None)
        if wrong is not None:
            return wrong
        if not verdicts or is_excluded(COMPLETENESS, question):
            return undecided("excluded")
        if not is_readable:
            return undecided("patterns that one of the dialects cannot read")
        if any(is_doubtful(pattern, one) for pattern in self._patterns for one in strings_in(value)):
            # Names and texts about which they disagree are not generated, wherever they stand.
            return undecided("the dialects of patterns may disagree about a text")
        return VALID

    def _by_validators(self, value: Any, question: Question, dialects: Sequence[Patterns]) -> Iterator[Verdict]:
        if not is_excluded(JSONSCHEMA, question):
            for patterns in dialects:
                with read_by(patterns), decimal.localcontext(prec=_PRECISION):
                    error = next(iter(self._validator.iter_errors(value)), None)
                yield VALID if error is None else invalid(f"jsonschema ({patterns.name}): {error.message}"[:300])
        if self._second is not None and not is_excluded(JSONSCHEMA_RS, question):
            try:
                floats = with_floats(value)
                error = None if self._second.is_valid(floats) else next(iter(self._second.iter_errors(floats)))
            except (ValueError, OverflowError):
                return
            yield VALID if error is None else invalid(f"jsonschema-rs: {error.message}"[:300])

    def _dialects(self, value: Any) -> tuple[Sequence[Patterns], bool]:
        """By which dialects to read the patterns, one where they agree; and whether all of them can."""
        texts = set(strings_in(value)) if self._patterns else ()
        try:
            differ = any(disagree(pattern, text) for pattern in self._patterns for text in texts)
        except UnreadableError:
            return DIALECTS[:1], False
        return DIALECTS if differ else DIALECTS[:1], True

    def _order(self, members: Any) -> Order:
        if self._options.property_order == "any":
            return Order.OPEN if any("keep" in note and "order" in note for note in self._notes) else Order.KEPT
        return order_of(self.schema, members, self.draft)


def parse_schema(schema: Any) -> Any:
    """The schema with exact decimals: binary rounding would blur bounds."""
    return json.loads(json.dumps(schema), parse_float=Decimal)


def has_repeated_names(members: Any) -> bool:
    if isinstance(members, Members):
        names = [name for name, _ in members]
        return len(set(names)) < len(names) or any(has_repeated_names(part) for _, part in members)
    return isinstance(members, list) and any(map(has_repeated_names, members))


# -- what stands in a schema ---------------------------------------------------------------------------------------


def _draft_of(kind: Any) -> int:
    uri = kind.META_SCHEMA.get("$schema", "")
    found = re.search(r"draft[-/]0?(\d+)", uri)
    return int(found[1]) if found else 2020


def subschemas(schema: Any) -> Iterator[Any]:
    """The schema and all schemas inside it, those of maps and lists included."""
    yield schema
    if not isinstance(schema, dict):
        return
    for keyword, value in schema.items():
        if keyword in _VALUES:
            continue
        parts = value.values() if keyword in _NAME_MAPS and isinstance(value, dict) else [value]
        for part in parts:
            for one in part if isinstance(part, list) else [part]:
                if isinstance(one, dict | bool):
                    yield from subschemas(one)


def _keys(schema: Any) -> Iterator[str]:
    for part in subschemas(schema):
        yield from part if isinstance(part, dict) else ()


def _listed(schema: Any) -> Listed:
    values = [
        part[keyword] for part in subschemas(schema) if isinstance(part, dict) for keyword in _VALUES if keyword in part
    ]
    return Listed(frozenset(strings_in(values)), frozenset(Decimal(str(number)) for number in _numbers(values)))


def _numbers(value: Any) -> Iterator[int | float]:
    if isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _numbers(part)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield value


def _patterns(schema: Any) -> Iterator[str]:
    for part in subschemas(schema):
        if isinstance(part, dict):
            if isinstance(part.get("pattern"), str):
                yield part["pattern"]
            yield from part.get("patternProperties", {})


def _closed(schema: Any) -> Any:
    """The schema as the option `additional_properties: false` reads it: what declares properties has no others."""
    if isinstance(schema, list):
        return [_closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    found = {}
    for keyword, value in schema.items():
        if keyword in _VALUES:
            found[keyword] = value
        elif keyword in _NAME_MAPS and isinstance(value, dict):
            found[keyword] = {name: _closed(part) for name, part in value.items()}
        else:
            found[keyword] = _closed(value)
    if "properties" in schema:
        found.setdefault("additionalProperties", False)
    return found
