"""Jobs of compile processes. A job is a specification, together with grammar options if the request sets some."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grammar_workers.options import GrammarOptions


def job(specification: dict[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job: the dictionary that is sent to a compiler for a specification and its options.

    Args:
        specification: Specification as plain data, with its `type`.
        options: Fields of `GrammarOptions` that the request sets. The compiler's options apply to other fields.

    Returns:
        `specification` itself if `options` is empty, else a dictionary with `specification` and `options`. The function
        `opened` reads it.
    """
    return {"specification": specification, "options": dict(options)} if options else specification


def opened(asked: dict[str, Any], options: GrammarOptions) -> tuple[dict[str, Any], GrammarOptions]:
    """Return the specification of a job, and the complete options for its compilation.

    If an option of the job is unknown or out of range, pydantic's ValidationError is raised.

    Args:
        asked: Dictionary from `job`.
        options: Options of the compiler. They apply to the fields that the job does not set.
    """
    if "type" in asked:
        return asked, options
    return asked["specification"], GrammarOptions.model_validate({**options.model_dump(), **asked["options"]})
