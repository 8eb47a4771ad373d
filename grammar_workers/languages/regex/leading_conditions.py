r"""Separation of the look-aheads at the beginning of a pattern: each becomes a pattern of its own.

The limit on states applies to each pattern, so that several patterns may be larger together than one pattern:

    ^(?=.{1,253}$)[a-z]+(\.[a-z]+)*$      ^(?:.{1,253}$)  and  ^[a-z]+(\.[a-z]+)*$
"""

from __future__ import annotations

from grammar_workers.errors import GrammarError
from grammar_workers.languages.regex.parse import Look, Sequence, read_regex
from grammar_workers.options import Limits


def apart(pattern: str) -> list[str]:
    """Split a pattern into its leading positive look-aheads and the rest.

    For example, `^(?=.{1,9}$)[a-z]+$` becomes `^(?:.{1,9}$)` and `^[a-z]+$`.

    Args:
        pattern: A regular expression.

    Returns:
        The look-aheads as patterns, then the rest. `pattern` matches a text if and only if all of them match it. [] if
        the pattern does not begin with `^(?=`, cannot be split, or cannot be parsed.
    """
    if not pattern.startswith("^(?="):
        return []
    try:
        tree = read_regex(pattern, Limits())
    except GrammarError:
        return []
    if not isinstance(tree, Sequence):
        return []
    found, end = [], 1
    for part in tree.parts[1:]:
        if not isinstance(part, Look) or part.behind or part.negative:
            break
        found.append(f"^(?:{pattern[part.position + len('(?=') : part.end - 1]})")
        end = part.end
    return [*found, "^" + pattern[end:]] if found else []
