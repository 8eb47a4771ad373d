"""Automata on the device: the tables of many TokenFSMs in a few tensors of fixed size and address.

    state      0            1 .. 20        21 .. 54
               anything     automaton 1    automaton 2      an automaton's states follow one another from its `base`

State 0 allows every token and leads to itself: it stands in for rows without a grammar. Automata are exported off the
engine thread; until then, and for those that are too large or have no end of states, rows are worked out on the host.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from grammar_workers import TokenFSM
from grammar_workers.matching.export import DeviceTables

logger = logging.getLogger(__name__)

_IDLE_STEPS = 256
"""An automaton that no step has used for so long gives its place to another."""
_MOST_STATES = 1 << 16
_BITS = 32


class TableMemory:
    """The tensors, a bump allocator over them, and what the static step asks of them.

    Of `nbytes` half goes to mask rows, a quarter to transitions, an eighth to classes of tokens.
    """

    def __init__(self, tokens: int, nbytes: int, device: torch.device) -> None:
        words = -(-tokens // _BITS)
        self.automaton_of = torch.zeros(_MOST_STATES, dtype=torch.int32, device=device)
        self.row_of = torch.zeros(_MOST_STATES, dtype=torch.int32, device=device)
        self.line_of = torch.zeros(_MOST_STATES, dtype=torch.int64, device=device)
        automata = 1 + max(1, nbytes // 8 // (tokens * 2))
        self.class_of = torch.zeros(automata, tokens, dtype=torch.int16, device=device)
        self.rows = torch.zeros(1 + max(1, nbytes // 2 // (words * 4)), words, dtype=torch.int32, device=device)
        self.next = torch.zeros(max(2, nbytes // 4 // 4), dtype=torch.int32, device=device)
        self.rows[0] = -1
        self._tokens = tokens
        self.clear()

    def clear(self) -> None:
        """Forgets all automata."""
        self._used = (1, 1, 1, 1)  # states, automata, rows, places of `next`

    @property
    def automata(self) -> int:
        """How many have been placed since the last `clear`."""
        return self._used[1] - 1

    def place(self, tables: DeviceTables) -> int | None:
        """Uploads an automaton and returns its base, or None where it does not fit."""
        base, automaton, row, place = self._used
        states, classes = tables.next.shape
        after = (base + states, automaton + 1, row + len(tables.rows), place + tables.next.size)
        room = (len(self.row_of), len(self.class_of), len(self.rows), len(self.next))
        if any(end > size for end, size in zip(after, room, strict=True)):
            return None
        self._used = after
        self.automaton_of[base : after[0]] = automaton
        # The end state's row is empty; what is computed behind an end is never used, but has to be finite.
        row_of = np.where(np.arange(states) == TokenFSM.end_state, 0, tables.row_of + row)
        self.row_of[base : after[0]] = torch.from_numpy(row_of)
        self.line_of[base : after[0]] = torch.from_numpy(place + np.arange(states) * classes)
        known = min(self._tokens, len(tables.class_of))
        self.class_of[automaton, :known] = torch.from_numpy(tables.class_of[:known])
        words = min(self.rows.shape[1], tables.rows.shape[1])
        self.rows[row : after[2], :words] = torch.from_numpy(tables.rows.view(np.int32)[:, :words])
        self.rows[row : after[2], words:] = 0
        # A forbidden token leads to state 0: nothing behind it is ever accepted.
        following = np.where(tables.next < 0, 0, tables.next + base).astype(np.int32)
        self.next[place : after[3]] = torch.from_numpy(following.ravel())
        return base

    def places(self, states: Tensor) -> Tensor:
        """Which of `rows` (int32 [r, words], packed) are the masks of `states`, both int64 [n]."""
        return self.row_of[states].long()

    def advance(self, states: Tensor, token_ids: Tensor) -> Tensor:
        """The states after `token_ids`, both int64 [n]."""
        classes = self.class_of[self.automaton_of[states].long(), token_ids]
        return self.next[self.line_of[states] + classes].long()


@dataclass(slots=True)
class _Entry:
    """One automaton. `base` is None while it is not on the device; `tables` while it is exported, or cannot be."""

    export: Future[DeviceTables | None] | None
    tables: DeviceTables | None = None
    base: int | None = None
    used: int = 0


class DeviceAutomata:
    """Which automata are on the device. Engine thread only, but for the exports."""

    def __init__(self, memory: TableMemory) -> None:
        self.memory = memory
        self._entries: weakref.WeakKeyDictionary[TokenFSM, _Entry] = weakref.WeakKeyDictionary()
        self._exports = ThreadPoolExecutor(1, thread_name_prefix="device-tables")
        self._step = 0

    def bring(self, fsms: Iterable[TokenFSM]) -> None:
        """A step with these automata begins: makes room for those that are ready and starts exports of new ones."""
        self._step += 1
        for fsm in fsms:
            if (entry := self._entries.get(fsm)) is None:
                entry = self._entries[fsm] = _Entry(self._exports.submit(fsm.device_tables))
            entry.used = self._step
            if entry.export is not None and entry.export.done():
                entry.tables = _result(entry.export)
                entry.export = None
            if entry.tables is not None and entry.base is None:
                entry.base = self.memory.place(entry.tables)
                if entry.base is None:
                    self._make_room()
                    entry.base = self.memory.place(entry.tables)

    def base(self, fsm: TokenFSM) -> int | None:
        """The device's number of the automaton's state 0, valid until `bring` is called again; None: not there."""
        entry = self._entries.get(fsm)
        return None if entry is None else entry.base

    def wait(self) -> None:
        """Until everything asked for has been exported."""
        for entry in list(self._entries.values()):
            if entry.export is not None:
                entry.export.exception()

    def close(self) -> None:
        self._exports.shutdown(wait=False, cancel_futures=True)

    def _make_room(self) -> None:
        """Lays out anew what has been used lately, if anything else is on the device: automata that are gone, too."""
        placed = [entry for entry in self._entries.values() if entry.base is not None]
        kept = [entry for entry in placed if self._step - entry.used < _IDLE_STEPS]
        if len(kept) == self.memory.automata:
            return
        self.memory.clear()
        for entry in placed:
            entry.base = None
        for entry in kept:
            assert entry.tables is not None
            entry.base = self.memory.place(entry.tables)


def _result(export: Future[DeviceTables | None]) -> DeviceTables | None:
    try:
        return export.result()
    except Exception:  # past a budget of the grammar's: its rows say so to whoever gets there
        logger.info("an automaton stays on the host", exc_info=True)
        return None
