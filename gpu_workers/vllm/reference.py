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
    (`finish_within_budget`); None: it need not be. `finish_within_budget`: asks vLLM's API process, which knows the
    request's own number, to set it; no reference that comes to the engine has it.
    """

    key: str
    min_tokens: int = 0
    emitted_token_ids: tuple[int, ...] = ()
    max_tokens: int | None = None
    finish_within_budget: bool = False

    def __str__(self) -> str:
        settings: dict[str, Any] = {}
        if self.min_tokens:
            settings["min_tokens"] = self.min_tokens
        if self.emitted_token_ids:
            settings["emitted"] = ",".join(map(str, self.emitted_token_ids))
        if self.max_tokens is not None:
            settings["max_tokens"] = self.max_tokens
        if self.finish_within_budget:
            settings["finish_within_budget"] = 1
        return SCHEME + self.key + (f"?{urlencode(settings, safe=',')}" if settings else "")

    @classmethod
    def parse(cls, text: str) -> Reference:
        """The inverse of `str`. Raises ValueError naming what is wrong."""
        key, settings = _split(text)
        found = {}
        for name, value in settings.items():
            if name not in _SETTINGS:
                listed = ", ".join(_SETTINGS)
                raise ValueError(f"a reference has no setting {name[:80]!r} (there are: {listed})")
            field, read = _SETTINGS[name]
            try:
                found[field] = read(value)
            except ValueError:
                raise ValueError(f"the setting {name!r} of a reference cannot be {value[:80]!r}") from None
        return cls(key, **found)


def is_reference(text: str) -> bool:
    """Whether `text` names an artifact."""
    return text.startswith(SCHEME)


def _split(text: str) -> tuple[str, dict[str, str]]:
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


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise ValueError(text)
    return int(text)


def _switch(text: str) -> bool:
    if text not in ("0", "1"):
        raise ValueError(text)
    return text == "1"


def _token_ids(text: str) -> tuple[int, ...]:
    return tuple(map(_count, text.split(",")))


_SETTINGS: Mapping[str, tuple[str, Callable[[str], Any]]] = MappingProxyType(
    {
        "min_tokens": ("min_tokens", _count),
        "emitted": ("emitted_token_ids", _token_ids),
        "max_tokens": ("max_tokens", _count),
        "finish_within_budget": ("finish_within_budget", _switch),
    }
)
