"""What a compile process is asked: a specification, with the grammar options of one request where it has some."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grammar_workers.options import GrammarOptions


def job(specification: dict[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """A specification as the tiers pass it on; `options`: those in which it differs from the compiler's own."""
    return {"specification": specification, "options": dict(options)} if options else specification


def opened(asked: dict[str, Any], options: GrammarOptions) -> tuple[dict[str, Any], GrammarOptions]:
    """The specification of a `job`, and all options for a compiler whose own ones are `options`."""
    if "type" in asked:
        return asked, options
    return asked["specification"], GrammarOptions.model_validate({**options.model_dump(), **asked["options"]})
