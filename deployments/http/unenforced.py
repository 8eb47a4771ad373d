"""Keywords that are not enforced, as answers name them: in the body's words, and in a header."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote

from pydantic import BaseModel, Field

HEADER = "x-turnstile-unenforced"
_MOST_CHARACTERS = 2000
"""Of the header's value: proxies bound all headers together, at 8 KiB and more."""


class Unenforced(BaseModel):
    """A keyword of a schema that is not enforced, as errors name places."""

    param: str = Field(description="The field of the body that holds the schema.")
    pointer: str = Field(description="The keyword's JSON Pointer, as that of an error.")
    reason: str = Field(description="Why it is not enforced.")


InTheseWords = Callable[[str | None, str | None], tuple[str | None, str | None]]
"""Field and pointer of a chat completion -> those of another body."""


def headers_of(grammar: dict[str, Any] | None) -> dict[str, str]:
    """The header of an answer under a grammar: its pointers, percent-encoded, with commas; `+N`: there are N more."""
    found = [] if grammar is None else grammar.get("unenforced", [])
    if not found:
        return {}
    shown: list[str] = []
    size = 0
    for keyword in found:
        text = quote(keyword["pointer"])
        size += len(text) + 2
        if size > _MOST_CHARACTERS:
            break
        shown.append(text)
    more = [f"+{len(found) - len(shown)}"] if len(shown) < len(found) else []
    return {HEADER: ", ".join([*shown, *more])}


def in_words(found: Sequence[dict[str, Any]], words: InTheseWords) -> list[dict[str, Any]]:
    """Data of `Unenforced` for another body than that of a chat completion."""
    told = [(*words(keyword["param"], keyword["pointer"]), keyword["reason"]) for keyword in found]
    return [{"param": param, "pointer": pointer, "reason": reason} for param, pointer, reason in told]
