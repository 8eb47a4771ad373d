r"""Patterns of which a matcher that tries branches in order always takes the longest text first.

Of such a pattern every text is its own preferred match, so `preferred` has nothing to leave out, and counts need not be
written out. The proof goes by the parts. Each lists the ends of its texts, wherever it begins, from the last to the
first, if its own parts do and one of these holds for any two parts in a row:

    \w{1,9}[.!]      the second begins with no character that a text of the first can go on with
    (\w{1,9} ?){3,}  both are the same, and cuts of it can be moved: see `_cuts_move`
"""

from __future__ import annotations

import dataclasses

from grammar_workers.budget import Budget, budget_of
from grammar_workers.dfa import charset
from grammar_workers.dfa.charset import EMPTY, Charset
from grammar_workers.languages.regex.compile import compile_tree
from grammar_workers.languages.regex.parse import Alternatives, Characters, Node, Repeat, Sequence
from grammar_workers.languages.regex.written_out import width
from grammar_workers.options import Limits

_MOST_STATES = 128
"""Cuts of larger parts are not compared: pairs of states are."""


@dataclasses.dataclass(frozen=True)
class _Part:
    """A part that lists its ends from the last to the first.

    `begins` has the characters that its texts begin with, `longer` those that a text of it can go on with, to a longer
    one; both may have more.
    """

    begins: Charset = EMPTY
    longer: Charset = EMPTY
    may_be_empty: bool = True

    def optional(self) -> _Part:
        return _Part(self.begins, charset.union(self.longer, self.begins), True)


class _UnknownError(Exception):
    """A part may list a shorter text before a longer one."""


def prefers_longest(tree: Node, limits: Limits) -> bool:
    """Return whether a matcher is known to try longer texts of `tree` before shorter ones, whatever it reads.

    Args:
        tree: A pattern without look-around, anchors and word boundaries. Of a class, `common` is read.
        limits: Bounds on states and steps.

    Raises:
        LimitExceededError: A repeated part is too large.
    """
    try:
        _part(tree, limits)
    except _UnknownError:
        return False
    return True


def _part(node: Node, limits: Limits) -> _Part:
    if isinstance(node, Characters):
        return _Part(node.characters.common, EMPTY, False)
    if isinstance(node, Sequence):
        whole = _Part()
        for one in node.parts:
            part = _part(one, limits)
            if _overlap(whole.longer, part.begins, budget_of(limits)):
                raise _UnknownError
            begins = charset.union(whole.begins, part.begins) if whole.may_be_empty else whole.begins
            longer = charset.union(whole.longer, part.longer) if part.may_be_empty else part.longer
            whole = _Part(begins, longer, whole.may_be_empty and part.may_be_empty)
        return whole
    if isinstance(node, Alternatives):
        return _alternatives(node, limits)
    assert isinstance(node, Repeat), "conditions have been taken out"
    body = _part(node.body, limits)
    if (node.lazy and node.low != node.high) or (node.high not in (0, 1) and body.may_be_empty):
        raise _UnknownError
    if node.high not in (0, 1):
        overlaps = _overlap(body.longer, body.begins, budget_of(limits))
        again = _cuts_move(node.body, limits) if overlaps else body.begins if node.low != node.high else EMPTY
        body = _Part(body.begins, charset.union(body.longer, again), False)
    return body if node.low else body.optional()


def _alternatives(node: Alternatives, limits: Limits) -> _Part:
    """Alternatives of one length, or that begin with different characters, of which only the last may be empty."""
    one_length = len({side for branch in node.branches for side in width(branch)}) == 1
    whole = _Part(may_be_empty=False)
    for branch in node.branches:
        part = _part(branch, limits)
        overlaps = _overlap(whole.begins, part.begins, budget_of(limits))
        if not one_length and (whole.may_be_empty or overlaps):
            raise _UnknownError
        begins, longer = charset.union(whole.begins, part.begins), charset.union(whole.longer, part.longer)
        whole = _Part(begins, EMPTY if one_length else longer, part.may_be_empty)
    return whole.optional() if whole.may_be_empty else whole


def _overlap(first: Charset, second: Charset, budget: Budget) -> bool:
    budget.spend(len(first) + len(second))
    return bool(charset.intersect(first, second))


def _cuts_move(body: Node, limits: Limits) -> Charset:
    r"""Return the characters of `body`, a part that is repeated, if the longest repetition comes first.

    It does if these hold for its texts, and then a cut may be moved to any place at which it can begin:

    1. each beginning of a text is a text, but for the empty one;
    2. so is each end of a text that begins with a character that `body` can begin with;
    3. a character that it cannot begin with makes a text longer if it does so for such an end of the text.

    By 1, the ends of one repetition have no gaps. By 2, a later beginning never ends earlier; by 3, where it ends
    later, the longest first repetition can be followed by another, which ends as late. If too few repetitions fit, cuts
    at the beginnings of longer ones, in their order, add one at a time.
    """
    automaton = compile_tree(body, search=False, limits=limits)
    if automaton.many_states > _MOST_STATES or not all(automaton.accepting[1:]):
        raise _UnknownError
    budget = budget_of(limits)
    letters = set(automaton.distinct_classes)
    moves = [[row[letter] for letter in letters] for row in automaton.moves]
    pairs = {(state, 0) for state in range(1, automaton.many_states)}
    pending = list(pairs)
    while pending:
        whole, end = pending.pop()
        budget.spend(len(moves[0]))
        for first, longer, later in zip(moves[0], moves[whole], moves[end], strict=True):
            if first == 0 or (end and ((longer >= 0) > (later >= 0) or (first < 0 <= later and longer < 0))):
                raise _UnknownError
            if longer >= 0 <= later and (longer, later) not in pairs:
                pairs.add((longer, later))
                pending.append((longer, later))
    return charset.make((low, high) for row in range(automaton.many_states) for low, high, _ in automaton.ranges(row))
