"""The text that stands for a compiled grammar in a request to vLLM's engine: `turnstile:KEY?min_tokens=2&...`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any
from urllib.parse import parse_qsl, urlencode

from grammar_workers.artifacts.artifact import is_key

SCHEME = "turnstile:"
"""Begins the text of a `grammar` that names an artifact."""


@dataclass(frozen=True, slots=True)
class Reference:
    """The key of an artifact, and what one request adds to it.

    `emitted_token_ids`: tokens that came out already and are part of the prompt now; `min_tokens` and `max_tokens`
    count them. `max_tokens`: the output is complete within so many tokens, an end token not counted
    (`finish_within_budget`); None: it need not be.
    """

    key: str
    min_tokens: int = 0
    emitted_token_ids: tuple[int, ...] = ()
    max_tokens: int | None = None

    def __str__(self) -> str:
        settings: dict[str, Any] = {}
        if self.min_tokens:
            settings["min_tokens"] = self.min_tokens
        if self.emitted_token_ids:
            settings["emitted"] = ",".join(map(str, self.emitted_token_ids))
        if self.max_tokens is not None:
            settings["max_tokens"] = self.max_tokens
        return SCHEME + self.key + (f"?{urlencode(settings, safe=',')}" if settings else "")

    @classmethod
    def parse(cls, text: str) -> Reference:
        """The inverse of `str`. Raises ValueError naming what is wrong."""
        key, settings = split_reference(text)
        return cls(key, **parsed_settings(settings, _SETTINGS))


def is_reference(text: str) -> bool:
    """Whether `text` names an artifact."""
    return text.startswith(SCHEME)


def split_reference(text: str) -> tuple[str, dict[str, str]]:
    """Key and settings of a reference. Raises ValueError for another text, or one that is malformed."""
    if not is_reference(text):
        raise ValueError(f"no reference to a compiled grammar: it does not begin with {SCHEME!r}")
    key, _, query = text.removeprefix(SCHEME).partition("?")
    if not is_key(key):
        raise ValueError(f"{key[:80]!r} is no grammar key: 64 hexadecimal digits, in lower case")
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        raise ValueError(f"malformed settings of a reference: {query[:80]!r}") from None
    settings = dict(pairs)
    if len(settings) < len(pairs):
        raise ValueError("a setting of a reference is given twice")
    return key, settings


def parsed_settings(
    settings: Mapping[str, str], known: Mapping[str, tuple[str, Callable[[str], Any]]]
) -> dict[str, Any]:
    """`settings` by the names and readers in `known`. Raises ValueError naming the one that is wrong."""
    found = {}
    for name, text in settings.items():
        if name not in known:
            listed = ", ".join(known)
            raise ValueError(f"a reference has no setting {name[:80]!r} (there are: {listed})")
        field, read = known[name]
        try:
            found[field] = read(text)
        except ValueError:
            raise ValueError(f"the setting {name!r} of a reference cannot be {text[:80]!r}") from None
    return found


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise ValueError(text)
    return int(text)


def _token_ids(text: str) -> tuple[int, ...]:
    return tuple(map(_count, text.split(",")))


_SETTINGS: Mapping[str, tuple[str, Callable[[str], Any]]] = MappingProxyType(
    {
        "min_tokens": ("min_tokens", _count),
        "emitted": ("emitted_token_ids", _token_ids),
        "max_tokens": ("max_tokens", _count),
    }
)
