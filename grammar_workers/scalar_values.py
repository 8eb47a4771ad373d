"""Unicode scalar values: the code points that UTF-8 can encode, which are all but the surrogates (U+D800 to U+DFFF)."""

from __future__ import annotations

import re

_SURROGATE = re.compile("[\ud800-\udfff]")


def is_scalar_value(code_point: int) -> bool:
    """Return whether a code point is from 0 to U+10FFFF and not a surrogate (U+D800 to U+DFFF)."""
    return 0 <= code_point < 0xD800 or 0xE000 <= code_point <= 0x10FFFF


def has_surrogate(text: str) -> bool:
    """Return whether `text` contains a surrogate (U+D800 to U+DFFF), which UTF-8 cannot encode."""
    return _SURROGATE.search(text) is not None
