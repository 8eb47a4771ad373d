r"""Patterns of which a matcher that tries branches in order always takes the longest text first.

Of such a pattern every text is its own preferred match, so `preferred` has nothing to leave out, and counts need not be
written out. The proof goes by the parts: wherever a part begins, it reaches a longer end before a shorter one. It does
if its own parts do and one of these holds:

    \w{1,9}[.!]       what follows begins with no character that the part before can go on with
    (\w{1,9}, ){3,}   the same of two repetitions
    (\w{1,9} ?){3,}   a repetition is one class, as often as may be, and then others, of which any number may be missing

In the third, a repetition can end anywhere in a run of the class, and the others are read whole if one follows. So the
numbers of repetitions that end at a place have no gaps, and none of these bounds is smaller at a later place: a later
place that can be reached at all is reached behind the longest first repetition that reaches any place before it.
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
    """A part that reaches longer ends first.

    `begins` has the characters that its texts begin with, `longer` those that a text of it can go on with, to a longer
    one; both may have more.
    """

    begins: Charset = EMPTY
    longer: Charset = EMPTY
    may_be_empty: bool = True


class _UnknownError(Exception):
    """A part may reach a shorter end before a longer one."""


def prefers_longest(tree: Node, budget: Budget) -> bool:
    """Return whether a matcher is known to try longer texts of `tree` before shorter ones, whatever it reads.

    Args:
        tree: A pattern without look-around, anchors and word boundaries. Of a class, `common` is read.
        budget: Where the steps are counted.
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
        # What may be empty begins with what makes it longer.
        _require_apart(body.longer, body.begins, budget)
    longer = body.longer if node.low == node.high else charset.union(body.begins, body.longer)
    return _Part(body.begins, longer, body.may_be_empty or not node.low)


def _require_apart(first: Charset, second: Charset, budget: Budget) -> None:
    budget.spend(len(first) + len(second))
    if charset.intersect(first, second):
        raise _UnknownError


def _is_run(body: Node, budget: Budget) -> bool:
    """True if a part is one class, as often as may be, and others, of which any number at the end may be missing."""
    first, *others = body.parts if isinstance(body, Sequence) else (body,)
    repeated = first.body if isinstance(first, Repeat) else first
    if not isinstance(repeated, Characters) or not _has_beginnings(body):
        return False
    # Each character of them makes a text longer.
    return not charset.intersect(repeated.characters.common, _part(Sequence((*others,)), budget).longer)


def _has_beginnings(node: Node) -> bool:
    """True if each beginning of a text of a part is one, but perhaps the empty one."""
    if isinstance(node, Repeat):
        return node.low < 2 and _has_beginnings(node.body)
    others_may_be_missing = all(isinstance(part, Repeat) and not part.low for part in parts_of(node)[1:])
    return others_may_be_missing and all(map(_has_beginnings, parts_of(node)))
