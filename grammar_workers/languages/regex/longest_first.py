r"""Patterns for which a backtracking matcher always tries the longest text first.

A pattern of this kind matches each of its texts as a whole, so the simulation in `preferred` is unnecessary. The proof
is by induction on the parts of the pattern. Claim: the matcher tries a longer match of a part before a shorter one. The
claim holds for a part if it holds for all its parts and one of these conditions is met:

    \w{1,9}[.!]       no first character of the next part can continue the part before it
    (\w{1,9}, ){3,}   two successive repetitions satisfy the first condition
    (\w{1,9} ?){3,}   a repetition is one class, any number of times, then other parts that may be missing at the end

In the third case, a repetition can end after any character of the repeated class. Other parts are read in full where
they follow. So the possible numbers of repetitions up to an index of the text are an interval. The bounds of this
interval do not decrease as the index grows. So every reachable index is reachable after the longest first repetition
that ends before it.
"""

from __future__ import annotations

import contextlib
from typing import NamedTuple

from grammar_workers.budget import Budget
from grammar_workers.dfa import charset
from grammar_workers.dfa.charset import EMPTY, Charset
from grammar_workers.languages.regex.parse import Characters, Node, Repeat, Sequence
from grammar_workers.languages.regex.written_out import parts_of


class _Part(NamedTuple):
    """A part whose longer ends are reached first.

    `begins` contains the first characters of its texts. `longer` contains the characters that extend a text of the part
    to a longer text of the part. Both may be supersets.
    """

    begins: Charset = EMPTY
    longer: Charset = EMPTY
    may_be_empty: bool = True


class _UnknownError(Exception):
    """A part may reach a shorter end before a longer one."""


def prefers_longest(tree: Node, budget: Budget) -> bool:
    """Return whether a backtracking matcher always tries longer matches of a pattern before shorter ones.

    False means that the conditions of this module do not prove it. An exhausted budget raises LimitExceededError.

    Args:
        tree: Syntax tree of a pattern without look-arounds, anchors and word boundaries. A character class counts as
            the characters that both dialects (ECMA-262 and Python's `re`) accept.
        budget: Counts the steps of work.
    """
    with contextlib.suppress(_UnknownError):
        return bool(_part(tree, budget))
    return False


def _part(node: Node, budget: Budget) -> _Part:
    if isinstance(node, Characters):
        return _Part(node.characters.common, EMPTY, False)
    if isinstance(node, Sequence):
        whole = _Part()
        for part in (_part(each, budget) for each in node.parts):
            _require_apart(whole.longer, part.begins, budget)
            begins = charset.union(whole.begins, part.begins) if whole.may_be_empty else whole.begins
            longer = charset.union(whole.longer, part.longer) if part.may_be_empty else part.longer
            whole = _Part(begins, longer, whole.may_be_empty and part.may_be_empty)
        return whole
    if not isinstance(node, Repeat) or (node.lazy and node.low != node.high):
        raise _UnknownError
    body = _part(node.body, budget)
    if node.high not in (0, 1) and (body.may_be_empty or not _is_run(node.body, budget)):
        # If the body may be empty, its first characters make it longer, so it is rejected here.
        _require_apart(body.longer, body.begins, budget)
    longer = body.longer if node.low == node.high else charset.union(body.begins, body.longer)
    return _Part(body.begins, longer, body.may_be_empty or not node.low)


def _require_apart(first: Charset, second: Charset, budget: Budget) -> None:
    budget.spend(len(first) + len(second))
    if charset.intersect(first, second):
        raise _UnknownError


def _is_run(body: Node, budget: Budget) -> bool:
    """Return whether a part is a run of one class, then parts of which any number may be missing at the end."""
    first, *others = body.parts if isinstance(body, Sequence) else (body,)
    repeated = first.body if isinstance(first, Repeat) else first
    if not isinstance(repeated, Characters) or not _has_beginnings(body):
        return False
    # The other parts may be missing, so `longer` contains all of their characters.
    return not charset.intersect(repeated.characters.common, _part(Sequence((*others,)), budget).longer)


def _has_beginnings(node: Node) -> bool:
    """Return whether each nonempty prefix of a text of a part is a text of the part."""
    if isinstance(node, Repeat):
        return node.low < 2 and _has_beginnings(node.body)
    others_may_be_missing = all(isinstance(part, Repeat) and not part.low for part in parts_of(node)[1:])
    return others_may_be_missing and all(map(_has_beginnings, parts_of(node)))
