"""Minimal unsatisfiable core of a JSON Schema: keywords that together exclude every value, for the error message."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from grammar_workers.errors import shortened
from grammar_workers.languages.json_schema.read.keywords import KEYWORDS, REFERRING, schemas_in
from grammar_workers.validation import pointer

# Keywords without which other keywords would exclude more: only the schemas in them are left out.
_KEPT = frozenset(["properties", "patternProperties", "prefixItems", "$defs", "definitions"])
# Keywords in which a weaker schema may exclude more, so that nothing in them is left out alone.
_WHOLE = frozenset(["not", "if", "oneOf", "contains"])
_MAX_VALUE, _MAX_NAMED = 64, 6

_Path: TypeAlias = tuple[str | int, ...]
# A keyword, or with True the schema at a path.
_Part: TypeAlias = tuple[_Path, bool]


def unsatisfiable_core(
    schemas: Sequence[Any], places: Sequence[str], satisfiable: Callable[[Sequence[Any]], bool]
) -> tuple[tuple[int, str], str] | None:
    """Find keywords of unsatisfiable schemas that together exclude every value. Without any of them, values are left.

    Groups of keywords are left out, and halves of a group if the group is needed (delta debugging; Zeller, 1999).

    Args:
        schemas: The schemas. No value satisfies all of them.
        places: For each schema, the text with which the listed JSON Pointers into it begin.
        satisfiable: Returns whether a value satisfies all given schemas, which are `schemas` without some keywords.

    Returns:
        The first keyword as (index of its schema, JSON Pointer), and a text that lists the keywords with their values.
        None if the keywords are not the reason (the vocabulary may be unable to spell JSON), or include
        `unevaluatedProperties` or `unevaluatedItems`, which exclude more without other keywords.
    """
    found: list[_Path] = []
    left: Any = [*schemas]

    def reduce(group: Sequence[_Part]) -> None:
        nonlocal left
        reduced = copy.deepcopy(left)
        for path, is_schema in group:
            if is_schema:
                _at(reduced, path[:-1])[path[-1]] = True
            else:
                del _at(reduced, path[:-1])[path[-1]]
        if not satisfiable(reduced):
            left = reduced
        elif len(group) > 1:
            reduce(group[: len(group) // 2])
            reduce(group[len(group) // 2 :])
        else:
            (path, is_schema), before = group[0], len(found)
            if inner := list(_parts(path, is_schema, _at(left, path))):
                reduce(inner)
            if len(found) == before:
                found.append(path)

    reduce([((index,), True) for index in range(len(schemas))])
    if not found or any("unevaluated" in str(path[-1]) for path in found):
        return None
    named = [f"{places[int(path[0])]}{pointer(path[1:])}" or "#" for path in found]
    listed = [f"{name} is {_shown(_at(left, path))}" for name, path in zip(named, found, strict=True)]
    if len(listed) > _MAX_NAMED:
        listed[_MAX_NAMED:] = [f"{len(listed) - _MAX_NAMED} more keywords"]
    text = " and ".join([", ".join(listed[:-1]), listed[-1]] if len(listed) > 1 else listed)
    return (int(found[0][0]), pointer(found[0][1:])), text


def _parts(path: _Path, is_schema: bool, value: Any) -> Iterator[_Part]:
    """Yield the parts of a schema or keyword that can be left out alone."""
    if not is_schema:
        if path[-1] not in _WHOLE:
            yield from (((*path, *inside), True) for inside, _ in schemas_in(str(path[-1]), value))
    elif isinstance(value, dict):
        for name, inner in value.items():
            if name in _KEPT or (name == "items" and isinstance(inner, list)):
                yield from (((*path, name, *inside), True) for inside, _ in schemas_in(name, inner))
            elif name in KEYWORDS and (KEYWORDS[name].vocabularies != {"core"} or name in REFERRING):
                yield (*path, name), False


def _at(value: Any, path: _Path) -> Any:
    for step in path:
        value = value[step]
    return value


def _shown(value: Any) -> str:
    return shortened(json.dumps(value, ensure_ascii=False), _MAX_VALUE)
