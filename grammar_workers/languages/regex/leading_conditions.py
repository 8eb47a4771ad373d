"""Look-aheads that a pattern begins with, as patterns of their own: an intersection may be larger than one pattern.

^(?=.{1,253}$)[a-z]+(\\.[a-z]+)*$      ^(?:.{1,253}$)  and  ^[a-z]+(\\.[a-z]+)*$
"""

from __future__ import annotations

import re

_PIECE = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|.", re.DOTALL)
_QUANTIFIED = re.compile(r"[*+?{]")


def apart(pattern: str) -> list[str]:
    """Return patterns of which a text holds each if and only if it holds `pattern`; none where it cannot be divided.

    Args:
        pattern: A regular expression that is known to be well-formed.
    """
    found = []
    while pattern.startswith("^(?="):
        depth = 0
        for piece in _PIECE.finditer(pattern, 1):
            depth += {"(": 1, ")": -1}.get(piece[0], 0)
            if not depth:
                break
        if depth:
            return []
        found.append(f"^(?:{pattern[4 : piece.start()]})")
        pattern = "^" + pattern[piece.end() :]
        if _QUANTIFIED.match(pattern, 1):
            return []
    depth = 0
    for piece in _PIECE.finditer(pattern):
        depth += {"(": 1, ")": -1}.get(piece[0], 0)
        if piece[0] == "|" and not depth:
            return []
    return [*found, pattern] if found else []
