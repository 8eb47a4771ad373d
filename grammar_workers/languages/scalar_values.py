"""Unicode scalar values: the code points that UTF-8 can write, all but the surrogates (U+D800 to U+DFFF)."""

from __future__ import annotations

import re

_SURROGATE = re.compile("[\ud800-\udfff]")


def is_scalar_value(code_point: int) -> bool:
    """True for a character, false for a surrogate and for what is beyond U+10FFFF."""
    return 0 <= code_point < 0xD800 or 0xE000 <= code_point <= 0x10FFFF


def has_surrogate(text: str) -> bool:
    """True if some character of `text` is a lone surrogate, which no generated text can hold."""
    return _SURROGATE.search(text) is not None
