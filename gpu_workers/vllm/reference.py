"""References: the text that names a compiled grammar in a request to vLLM, `turnstile:KEY?min_tokens=2&...`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any
from urllib.parse import parse_qsl, urlencode

from grammar_workers.artifacts.artifact import is_key

# Prefix of a `grammar` text that is a reference.
SCHEME = "turnstile:"


@dataclass(frozen=True, slots=True)
class Reference:
    """A reference to a compiled grammar, with settings of one request. `str` gives its text, `turnstile:KEY?settings`.

    Attributes:
        key: Grammar key, 64 hexadecimal digits.
        min_tokens: Minimum number of output tokens, emitted ones included.
        emitted_token_ids: Earlier tokens of this output, which are part of the prompt now.
        max_tokens: Number of tokens within which the output must be complete (`finish_within_budget`). Emitted tokens
            count, the end token does not. None: the masks do not depend on a token limit.
        finish_within_budget: True if vLLM's API process must still set `max_tokens` from the request. It is false in
            all references that the engine receives.
    """

    key: str
    min_tokens: int = 0
    emitted_token_ids: tuple[int, ...] = ()
    max_tokens: int | None = None
    finish_within_budget: bool = False

    def __str__(self) -> str:
        unset = Reference(self.key)
        settings = {
            name: _written(getattr(self, field))
            for name, (field, _) in _SETTINGS.items()
            if getattr(self, field) != getattr(unset, field)
        }
        return SCHEME + self.key + (f"?{urlencode(settings, safe=',')}" if settings else "")

    @classmethod
    def parse(cls, text: str) -> Reference:
        """Parse the text of a reference to a compiled grammar.

        Args:
            text: The text, `turnstile:KEY` or `turnstile:KEY?settings`.

        Returns:
            The reference.

        Raises:
            ValueError: The text is not a valid reference. The message names the error.
        """
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
    """Return whether `text` begins like a reference to a compiled grammar: `turnstile:`. The rest is not checked."""
    return text.startswith(SCHEME)


def _split(text: str) -> tuple[str, dict[str, str]]:
    """Return key and settings of a reference.

    Raises:
        ValueError: The text is not a reference, or it is malformed.
    """
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


def _written(value: tuple[int, ...] | int) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(int(value))


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
