"""Keywords that are not enforced, as answers name them: in the body's words, and in a header."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote

from pydantic import BaseModel, Field

HEADER = "x-turnstile-unenforced"
NOTES_HEADER = "x-turnstile-notes"
_MOST_CHARACTERS = 2000
"""Of a header's value: proxies bound all headers together, at 8 KiB and more."""


class Unenforced(BaseModel):
    """A keyword of a schema that is not enforced, as errors name places."""

    param: str = Field(description="The field of the body that holds the schema.")
    pointer: str = Field(description="The keyword's JSON Pointer, as that of an error.")
    reason: str = Field(description="Why it is not enforced.")


InTheseWords = Callable[[str | None, str | None], tuple[str | None, str | None]]
"""Field and pointer of a chat completion -> those of another body."""


def headers_of(grammar: dict[str, Any] | None) -> dict[str, str]:
    """The headers of an answer under a grammar: pointers, and notes, percent-encoded, with commas; `+N`: N more."""
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
    """Data of `Unenforced` for another body than that of a chat completion."""
    told = [(*words(keyword["param"], keyword["pointer"]), keyword["reason"]) for keyword in found]
    return [{"param": param, "pointer": pointer, "reason": reason} for param, pointer, reason in told]
