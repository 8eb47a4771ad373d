"""How JSON text is spelled: one canonical spelling per character inside strings, and the separators.

Inside strings every character stands for itself, but for the quote, the backslash and the control characters, which
have their short escape, or `\\u00XX` in lower case where there is none: what `json.dumps(..., ensure_ascii=False)`
writes. One spelling per character makes equality of strings equality of bytes.
"""

from __future__ import annotations

import re
from json.encoder import encode_basestring

from grammar_workers.errors import UnsupportedFeatureError

QUOTE, BACKSLASH = 34, 92
SHORT_ESCAPES = {'"': ord('"'), "\\": ord("\\"), "\b": ord("b"), "\f": ord("f"), "\n": ord("n"), "\r": ord("r")} | {
    "\t": ord("t")
}
"""Character -> the byte after the backslash."""


def encode_string_body(text: str) -> bytes:
    """`text` as it stands between the quotes; UnsupportedFeatureError for lone surrogates, which have no UTF-8."""
    try:
        return encode_basestring(text).encode()[1:-1]
    except UnicodeEncodeError:
        raise UnsupportedFeatureError(f"the text {text!a} holds a lone surrogate") from None


_SPELLING = re.compile(rb"\\u[0-9a-f]{4}|\\.|[\x00-\x7f]|[\xc0-\xff][\x80-\xbf]+", re.DOTALL)


def split_characters(body: bytes) -> list[bytes]:
    """The spelling of each character of what stands in a JSON string, the closing quote included where it is there."""
    return _SPELLING.findall(body)
