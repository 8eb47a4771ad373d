"""A constraint from a file: its text, and the grammar specification that it stands for."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Literal, get_args

from deployments.cli.arguments import UsageFailure
from grammar_workers.errors import InvalidSpecificationError
from grammar_workers.languages.cfg.reading import guess_syntax
from grammar_workers.specification import GrammarSpecification
from grammar_workers.strict_json import JsonTextError, parse_json
from grammar_workers.validation import pointer

Kind = Literal["json_schema", "specification", "regex", "grammar", "choice"]
KINDS: tuple[Kind, ...] = get_args(Kind)

KIND_HELP = (
    "what the file holds: `json_schema`; `specification`, any grammar specification as JSON with its `type`; `regex`; "
    "`grammar`, GBNF or Lark; `choice`, one to a line. By default .json is a specification where `type` names one and "
    "else a schema, .regex a regex, .gbnf, .ebnf and .lark a grammar, .choice a choice"
)

_KIND_BY_SUFFIX: dict[str, Kind] = {
    ".regex": "regex",
    ".gbnf": "grammar",
    ".ebnf": "grammar",
    ".lark": "grammar",
    ".choice": "choice",
}
SUFFIXES = frozenset({".json", *_KIND_BY_SUFFIX})
"""Names of files that are recognised in a folder end so."""

# No JSON Schema has one of these names as its `type`, so the two cannot be mistaken for each other.
_TYPES = frozenset(part.model_fields["type"].default for part in get_args(get_args(GrammarSpecification)[0]))


def read_text(path: str) -> str:
    """The text of a file, of standard input for `-`. Raises `UsageFailure`."""
    try:
        return sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageFailure(f"cannot read {path}: {error}") from error


def specification(path: str, text: str, kind: Kind | None = None) -> dict[str, Any]:
    """The specification, as plain data, that `text` from `path` stands for; `kind` None tells it from the name.

    Standard input (`-`) is taken as JSON. Raises `UsageFailure` where the kind cannot be told,
    `InvalidSpecificationError` where JSON is expected and the text is none.
    """
    match kind or _KIND_BY_SUFFIX.get(Path(path).suffix.lower()):
        case "regex":
            # Editors end the last line, and a pattern file is one line.
            return {"type": "regex", "pattern": text.removesuffix("\n").removesuffix("\r")}
        case "grammar":
            return {"type": "grammar", "syntax": guess_syntax(text), "text": text}
        case "choice":
            return {"type": "choice", "choices": text.splitlines()}
        case "specification":
            if not isinstance(data := _json(text), dict):
                raise InvalidSpecificationError("a specification is a JSON object with a `type`")
            return data
        case "json_schema":
            return {"type": "json_schema", "schema": _json(text)}
    if path != "-" and Path(path).suffix.lower() != ".json":
        raise UsageFailure(f"cannot tell from its name what {path} holds: say --kind {{{','.join(KINDS)}}}")
    data = _json(text)
    if isinstance(data, dict) and isinstance(data.get("type"), str) and data["type"] in _TYPES:
        return data
    return {"type": "json_schema", "schema": data}


def _json(text: str) -> Any:
    try:
        return parse_json(text)
    except JsonTextError as error:
        if error.place:
            raise InvalidSpecificationError(str(error), pointer=pointer(error.place)) from error
        raise InvalidSpecificationError(f"the text is not JSON: {error}") from error
