"""Report on keywords of a JSON Schema that are not enforced, in responses and their headers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote

from pydantic import BaseModel, Field

HEADER = "x-turnstile-unenforced"
NOTES_HEADER = "x-turnstile-notes"
# Maximum length of a header's value. Proxies limit all headers together, to 8 KiB or more.
_MOST_CHARACTERS = 2000


class Unenforced(BaseModel):
    """Keyword of a JSON Schema that is not enforced, and its location in the request body."""

    param: str = Field(description="Field of the body that contains the schema.")
    pointer: str = Field(description="JSON Pointer of the keyword.")
    reason: str = Field(description="Reason why the keyword is not enforced.")


# Translates the field and the JSON Pointer of a location in a chat completion to a body of another format.
InTheseWords = Callable[[str | None, str | None], tuple[str | None, str | None]]


def headers_of(grammar: dict[str, Any] | None) -> dict[str, str]:
    """Return response headers that report on the constraint of a request.

    The header `x-turnstile-unenforced` lists the keywords of a JSON Schema that are not enforced. The header
    `x-turnstile-notes` lists the warnings of the grammar compiler.

    Args:
        grammar: Report on the constraint. `unenforced` is a list of dicts with `pointer` (JSON Pointer of a keyword).
            `notes` is a list of texts. None: the request has no constraint.

    Returns:
        Header -> comma-separated list of percent-encoded JSON Pointers or notes. A long list ends with `+N`, for N
        omitted items. A header without items is absent.
    """
    told = grammar or {}
    values = {HEADER: [one["pointer"] for one in told.get("unenforced", ())], NOTES_HEADER: told.get("notes", ())}
    return {name: _listed(texts) for name, texts in values.items() if texts}


def _listed(texts: Sequence[str]) -> str:
    shown: list[str] = []
    size = 0
    for text in map(quote, texts):
        size += len(text) + 2
        if size > _MOST_CHARACTERS:
            break
        shown.append(text)
    more = [f"+{len(texts) - len(shown)}"] if len(shown) < len(texts) else []
    return ", ".join([*shown, *more])


def in_words(found: Sequence[dict[str, Any]], words: InTheseWords) -> list[dict[str, Any]]:
    """Translate the locations of schema keywords that are not enforced to a request body of another format.

    Args:
        found: One dict for each keyword: the fields of `Unenforced` (`param`, `pointer`, `reason`), with the location
            in a chat completion; not changed.
        words: Function that gets a field and a JSON Pointer in the chat completion. It returns the field and the JSON
            Pointer in the other body.

    Returns:
        New dicts with the translated locations, in the order of `found`.
    """
    told = [(*words(keyword["param"], keyword["pointer"]), keyword["reason"]) for keyword in found]
    return [{"param": param, "pointer": pointer, "reason": reason} for param, pointer, reason in told]
