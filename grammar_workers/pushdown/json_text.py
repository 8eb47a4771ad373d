r"""The canonical encoding of JSON strings: one encoding per character.

Inside a string, every character stands for itself, except the quote, the backslash and the control characters. These
are written as their short escape, such as `\n`, or as a Unicode escape with lower-case digits if they have none.
`json.dumps(..., ensure_ascii=False)` writes the same encoding. With one encoding per character, two strings are equal
exactly if their bytes are equal.
"""

from __future__ import annotations

import re
from json.encoder import encode_basestring

from grammar_workers.errors import UnsupportedFeatureError

QUOTE, BACKSLASH = 34, 92
# The byte after the backslash in the short escape of a character.
SHORT_ESCAPES = dict(zip('"\\\b\f\n\r\t', b'"\\bfnrt', strict=True))
# Characters that JSON requires to be escaped.
ESCAPED_CHARACTERS = frozenset([*map(chr, range(0x20)), *SHORT_ESCAPES])


def encode_string_body(text: str) -> bytes:
    """Encode a text as the contents of a JSON string, in the canonical encoding of this module.

    Args:
        text: The decoded text.

    Returns:
        The encoded bytes in UTF-8, without quotes.

    Raises:
        UnsupportedFeatureError: The text has a lone surrogate, which UTF-8 cannot encode.
    """
    try:
        return encode_basestring(text).encode()[1:-1]
    except UnicodeEncodeError:
        raise UnsupportedFeatureError(f"the text {text!a} holds a lone surrogate") from None


_SPELLING = re.compile(rb"\\u[0-9a-f]{4}|\\.|[\x00-\x7f]|[\xc0-\xff][\x80-\xbf]+", re.DOTALL)


def split_characters(body: bytes) -> list[bytes]:
    """Split the encoded body of a JSON string into encoded characters: UTF-8 sequences and escapes.

    Args:
        body: Contents of a JSON string in the canonical encoding, with or without the closing quote.

    Returns:
        The encoded characters in order. A closing quote counts as a character.
    """
    return _SPELLING.findall(body)
