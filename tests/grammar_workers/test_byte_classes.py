"""Bytes that an automaton does not tell apart, against a plain comparison of columns."""

from __future__ import annotations

import numpy as np
import pytest

from grammar_workers.pushdown.byte_classes import LEADS_OUT, UNREAD, _tell_apart, classes_of
from grammar_workers.pushdown.instructions import STATE_COLUMNS, STATE_EXIT, STATE_LITERAL, STATE_ROW, Tables


def tables(states: np.ndarray, table: np.ndarray) -> Tables:
    """Those of an automaton without instructions."""
    empty = np.zeros((1, 8), np.int32)
    return Tables(states, table, empty, np.zeros((0, 3), np.int32), np.zeros(0, np.int32), np.zeros((1, 4), np.int32))


@pytest.mark.parametrize("seed", range(60))
def test_bytes_are_alike_where_all_rows_treat_them_alike(seed: int) -> None:
    rng = np.random.default_rng(seed)
    # Blocks of equal targets, as charsets make them, and a few single bytes that differ.
    edges = np.sort(rng.integers(0, 256, rng.integers(0, 12)))
    blocks = np.searchsorted(edges, np.arange(256), side="right")
    table = rng.integers(-1, 4, (rng.integers(1, 9), 13)).astype(np.int32)[:, blocks]
    for _ in range(rng.integers(0, 4)):
        table[rng.integers(len(table)), rng.integers(256)] = rng.integers(-1, 4)
    literals = np.unique(rng.integers(0, 256, rng.integers(0, 6))).astype(np.int32)
    found, read = _tell_apart(table, np.arange(len(table)), literals)
    columns = [(*table[:, byte].tolist(), byte if byte in literals else -1) for byte in range(256)]
    for byte in range(256):
        wanted = byte not in LEADS_OUT and (byte in literals or any(target >= 0 for target in columns[byte][:-1]))
        assert read[byte] == wanted
    others = [byte for byte in range(256) if read[byte]]
    for one in others:
        for other in others:
            assert (found[one] == found[other]) == (columns[one] == columns[other]), (one, other)


@pytest.mark.parametrize("many", [3, 60, 66, 67, 120, 256])
def test_an_automaton_may_read_any_bytes_as_literals(many: int) -> None:
    """Of a chain of `many` literal bytes: classes of their own, or none where these are too many."""
    states = np.zeros((many + 1, STATE_COLUMNS), np.int32)
    states[:, [STATE_ROW, STATE_LITERAL, STATE_EXIT]] = -1
    followed = [byte for byte in range(256) if byte not in LEADS_OUT] + list(LEADS_OUT)
    states[:many, STATE_LITERAL] = followed[:many]
    classes, region = classes_of(tables(states, np.full((1, 256), -1, np.int32)), np.zeros(1, np.int32), 0)
    if many > 66:
        assert classes is None
    elif many <= 60:
        assert classes is not None
        assert len({*classes} - {UNREAD}) == many
        assert len(region) == many + 1
