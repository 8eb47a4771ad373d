"""Conversion of an automaton of spans (substrings of a text) to pushdown states, for plain UTF-8 or a JSON string."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grammar_workers.dfa.spans import Spans
from grammar_workers.pushdown import instructions as code
from grammar_workers.pushdown.automaton import NEVER, UNBOUNDED, Interval
from grammar_workers.pushdown.builder import PushdownBuilder
from grammar_workers.pushdown.json_text import QUOTE, encode_string_body
from grammar_workers.pushdown.span_layout import SPELLING_BYTES, lay_out
from grammar_workers.pushdown.trie import TextTrie


def span_states(
    builder: PushdownBuilder, spans: Spans, closed: int | None = None, lengths: Interval = (0, UNBOUNDED)
) -> int:
    """Append states that read the spans (substrings) of a text.

    Args:
        builder: Builder to append to.
        spans: The automaton of the substrings.
        closed: State after the closing quote of a JSON string. None: the spans are plain UTF-8 text. Then the rule
            (part of the automaton that is called) may return with label 0 at the end of each span.
        lengths: Minimum and maximum number of characters of a span, inclusive.

    Returns:
        The number of the first state.
    """
    encode: Callable[[str], bytes] = str.encode if closed is None else encode_string_body
    spelled = [list(map(encode, same)) for same in spans.classes]
    is_counted = lengths != (0, UNBOUNDED)
    lines, table = _laid_out(spans, spelled, is_counted=is_counted)
    literal, row, jump, called, stands_for = lines[:, :5].T
    end = builder.state(exit_label=0) if closed is None else closed
    builder.spend(2 * len(lines))
    base = builder.empty_states(len(lines))
    table[table >= 0] += base
    ends = (stands_for >= 0) & (spans.accepting[stands_for] > 0)
    if closed is not None:
        table[row[ends & (row >= 0)], QUOTE] = closed
    rows = np.array([*builder.rows(table), -1 if closed is None else builder.row({QUOTE: closed}), -1], np.int64)
    counting = _counting(lines, lengths) if is_counted else {}
    ops = [builder.op(**counting[place]) if place in counting else 0 for place in range(len(lines))]
    rules: dict[tuple[int, bool], int] = {}
    for place in np.flatnonzero(jump >= 0).tolist():
        target, number = base + int(jump[place]), int(called[place])
        if number < 0:
            ops[place] = builder.goto(target)
            continue
        kind = number, bool(ends[place])
        if kind not in rules:
            rules[kind] = _rule(builder, spelled[number], ends=kind[1], is_quoted=closed is not None)
        ops[place] = builder.op(
            move=code.CALL, target=rules[kind], site=(target, end), enter=code.INHERIT, **counting.get(place, {})
        )
    columns = {
        code.STATE_LITERAL: literal,
        code.STATE_ROW: rows[np.where(row >= 0, row, np.where(ends & (called < 0), -2, -1))],
        code.STATE_EXIT: np.where(ends & (closed is None), 0, -1),
        code.STATE_INSTRUCTION: ops,
    }
    builder.fill_states(base, columns)
    return base


def _laid_out(
    spans: Spans, spelled: Sequence[Sequence[bytes]], *, is_counted: bool
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return the states and dense rows of the spans, as `lay_out` describes them."""
    # A shared rule cannot check whether the counter allows more text after the character. So it is used for counted
    # spans only if it reads the character in one byte.
    shared = [len(one) > 1 and not (is_counted and max(map(len, one)) > 1) for one in spelled]
    return lay_out(
        spans.start,
        spans.first,
        spans.read,
        spans.targets,
        spans.nearest,
        spans.furthest,
        *_numbered(spelled),
        np.array(shared, np.uint8),
    )


def _numbered(
    spelled: Sequence[Sequence[bytes]],
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.uint8]]:
    """Return the encodings of all classes of characters in the form that `lay_out` takes."""
    ordered = sorted(itertools.chain.from_iterable(spelled))
    number_of = {spelling: number for number, spelling in enumerate(ordered)}
    spellings = np.zeros((len(ordered), 1 + SPELLING_BYTES), np.uint8)
    for number, spelling in enumerate(ordered):
        spellings[number, : 1 + len(spelling)] = [len(spelling), *spelling]
    begins = np.cumsum([0, *map(len, spelled)])
    return begins, np.array([number_of[one] for same in spelled for one in same], np.int32), spellings


def _rule(builder: PushdownBuilder, spelled: Sequence[bytes], *, ends: bool, is_quoted: bool) -> int:
    """Append a rule that reads a character and returns with label 0; with `ends`, label 1 means the end of the span."""
    texts = [(spelling, 0) for spelling in spelled]
    if ends and is_quoted:
        texts.append((bytes([QUOTE]), 1))
    rule = TextTrie(builder, builder.return_).add(sorted(texts))
    if ends and not is_quoted:
        builder.note_label(1)
        builder.fill_states(rule, {code.STATE_EXIT: [1]})
    return rule


def _counting(lines: NDArray[np.int64], lengths: Interval) -> dict[int, dict[str, Any]]:
    """Return the arguments of `PushdownBuilder.op` for each state but the first, by the index of its line.

    The instruction counts a complete character. Its guard passes only if a span of an allowed length can still result.
    """
    minimum, maximum = lengths
    low = np.maximum(minimum - 1 - lines[:, 6], 0)
    high = np.full_like(low, UNBOUNDED) if maximum == UNBOUNDED else maximum - 1 - lines[:, 5]
    cap = minimum if maximum == UNBOUNDED else maximum
    found: dict[int, dict[str, Any]] = {}
    for place in np.flatnonzero(lines[1:, 5] >= 0).tolist():
        first, last = int(low[place + 1]), int(high[place + 1])
        found[place + 1] = {"guard": ((first, last),) if first <= last else NEVER}
        if lines[place + 1, 4] >= 0:
            found[place + 1]["increment_to"] = cap
    return found
