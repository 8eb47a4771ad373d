"""Constraint files of the command line: read a file, and convert its text to a specification for the compiler.

A file contains a JSON Schema, a regular expression, a context-free grammar (GBNF or Lark), one choice per line, or the
JSON text of a specification. In place of a file, `module:Name` names a Python type, such as a pydantic model.
"""

from __future__ import annotations

import importlib
import json
import operator
import re
import sys
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import PydanticUserError

from deployments.cli.arguments import UsageFailure
from grammar_workers.errors import InvalidSpecificationError
from grammar_workers.languages.cfg.reading import guess_syntax
from grammar_workers.specification_json import parse_specification_json, schema_of_type, schema_or_specification

Kind = Literal["json_schema", "specification", "regex", "grammar", "choice"]
KINDS: tuple[Kind, ...] = get_args(Kind)

KIND_HELP = (
    "content of the file: `json_schema`; `specification` (any grammar specification, as JSON with a `type`); `regex`; "
    "`grammar` (GBNF or Lark); `choice` (one choice per line). The default depends on the suffix: .regex, .choice, "
    "and .gbnf, .ebnf or .lark for a grammar. A .json file is a specification if its `type` is a type of "
    "specification, otherwise a schema"
)

_KIND_BY_SUFFIX: dict[str, Kind] = {
    ".regex": "regex",
    ".gbnf": "grammar",
    ".ebnf": "grammar",
    ".lark": "grammar",
    ".choice": "choice",
}
# A type in an importable module: `module:Name`.
_TYPE = re.compile(r"([A-Za-z_][\w.]*):([A-Za-z_][\w.]*)")
# Suffixes of the files in a folder that are read as constraints.
SUFFIXES = frozenset({".json", *_KIND_BY_SUFFIX})


def read_text(path: str) -> str:
    """Return the text of a UTF-8 file or of standard input, or the JSON Schema of a Python type.

    Args:
        path: Path of the file. `-`: read standard input to its end. `module:Name`: import the module, also from the
            current folder, and convert the type to a JSON Schema with pydantic.

    Raises:
        UsageFailure: The file cannot be read, or is not UTF-8. Or the module cannot be imported, or pydantic makes no
            JSON Schema of the type.
    """
    try:
        if (type_ := _type(path)) is not None:
            sys.path.insert(0, "")
            return json.dumps(schema_of_type(operator.attrgetter(type_[2])(importlib.import_module(type_[1]))))
        return sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, ImportError, AttributeError, PydanticUserError) as error:
        raise UsageFailure(f"cannot read {path}: {error}") from error


def _type(path: str) -> re.Match[str] | None:
    return None if Path(path).exists() else _TYPE.fullmatch(path)


def specification(path: str, text: str, kind: Kind | None = None) -> dict[str, Any]:
    """Convert the text of a constraint file to a specification (constraint in the form that the compiler takes).

    Args:
        path: Name of the file, `-` for standard input, or `module:Name` for a Python type.
        text: Content of the file.
        kind: Kind of the content, such as `regex`. None: the suffix of the file selects the kind. Standard input and
            `.json` files are then specifications if their `type` is a type of specification, otherwise JSON Schemas. A
            Python type has a JSON Schema.

    Returns:
        The specification as plain data with `type`, such as `{"type": "regex", "pattern": ...}`. It is not validated.

    Raises:
        UsageFailure: `kind` is None, and the suffix is unknown.
        InvalidSpecificationError: The kind requires JSON, and the text is not JSON. Or the kind is `specification`, and
            the JSON is not an object.
    """
    match kind or ("json_schema" if _type(path) else _KIND_BY_SUFFIX.get(Path(path).suffix.lower())):
        case "regex":
            # Editors add a line end, and a pattern file has one line.
            return {"type": "regex", "pattern": text.removesuffix("\n").removesuffix("\r")}
        case "grammar":
            return {"type": "grammar", "syntax": guess_syntax(text), "text": text}
        case "choice":
            return {"type": "choice", "choices": text.splitlines()}
        case "specification":
            if not isinstance(data := parse_specification_json(text), dict):
                raise InvalidSpecificationError("a specification is a JSON object with a `type`")
            return data
        case "json_schema":
            return {"type": "json_schema", "schema": parse_specification_json(text)}
    if path != "-" and Path(path).suffix.lower() != ".json":
        raise UsageFailure(f"cannot tell from its name what {path} holds: say --kind {{{','.join(KINDS)}}}")
    return schema_or_specification(parse_specification_json(text))
