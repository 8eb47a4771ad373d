"""Automata on the device: the tables of many TokenFSMs in a few tensors of fixed size and address.

    state      0            1         2 .. 21        22 .. 55
               anything     left      automaton 1    automaton 2      an automaton's states follow its `base`

State 0 allows every token and leads to itself: it stands in for rows without a grammar. So does LEFT, behind a state
that is not here: automata may be large, or have no end of states. They are exported off the engine thread, and anew as
requests visit more of them; whoever is in a state that is not here is worked out on the host.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from grammar_workers import TokenFSM
from grammar_workers.logs import get_logger
from grammar_workers.matching.export import LEAVES, DeviceTables

logger = get_logger(__name__)

_IDLE_STEPS = 256
"""An automaton that no step has used for so long gives its place to another."""
_ALL_STATES = 1 << 16
_SHARE = 8
"""One automaton has at most this part of the memory, and of the states; not of each tensor: two may fill `next`."""
MOST_STATES = _ALL_STATES // _SHARE
"""Of one automaton."""
_LEAST_NEW, _NEW_SHARE = 32, 4
"""So many states have been visited since, and this fraction of those before: an automaton is exported anew."""
_BITS = 32

LEFT = 1
"""The state of rows that have left what is here of their automaton."""


class TableMemory:
    """The tensors, a bump allocator over them, and what the static step asks of them.

    Of `nbytes` half goes to mask rows, a quarter to transitions, an eighth to classes of tokens; 1 MiB more to states.
    """

    def __init__(self, tokens: int, nbytes: int, device: torch.device) -> None:
        words = -(-tokens // _BITS)
        self.automaton_of = torch.zeros(_ALL_STATES, dtype=torch.int32, device=device)
        self.row_of = torch.zeros(_ALL_STATES, dtype=torch.int32, device=device)
        self.line_of = torch.zeros(_ALL_STATES, dtype=torch.int64, device=device)
        automata = 1 + max(1, nbytes // 8 // (tokens * 2))
        self.class_of = torch.zeros(automata, tokens, dtype=torch.int16, device=device)
        self.rows = torch.zeros(1 + max(1, nbytes // 2 // (words * 4)), words, dtype=torch.int32, device=device)
        self.next = torch.zeros(max(2, nbytes // 4 // 4), dtype=torch.int32, device=device)
        self.rows[0] = -1
        self.next[LEFT] = self.line_of[LEFT] = LEFT
        self._tokens = tokens
        self.share = max(1, nbytes // _SHARE)
        """The most bytes of one automaton."""
        self.clear()

    def clear(self) -> None:
        """Forgets all automata."""
        self._used = (2, 1, 1, 2)  # states, automata, rows, places of `next`

    @property
    def automata(self) -> int:
        """How many tables have been placed since the last `clear`."""
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
        self.class_of[automaton, known:] = 0
        words = min(self.rows.shape[1], tables.rows.shape[1])
        self.rows[row : after[2], :words] = torch.from_numpy(tables.rows.view(np.int32)[:, :words])
        self.rows[row : after[2], words:] = 0
        # A forbidden token leads to state 0: nothing behind it is ever accepted.
        following = np.where(tables.next < 0, 0, tables.next + base).astype(np.int32)
        following[tables.next == LEAVES] = LEFT
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
    """One automaton. `base` is None while it is not on the device, `tables` until it has been exported, or cannot be.

    `known`: how many states had been visited when the last ones were taken.
    """

    export: Future[DeviceTables | None] | None
    tables: DeviceTables | None = None
    base: int | None = None
    used: int = 0
    known: int = 0


class DeviceAutomata:
    """Which automata are on the device. Engine thread only, but for the exports."""

    def __init__(self, memory: TableMemory) -> None:
        self.memory = memory
        self._entries: weakref.WeakKeyDictionary[TokenFSM, _Entry] = weakref.WeakKeyDictionary()
        self._exports = ThreadPoolExecutor(1, thread_name_prefix="device-tables")
        self._step = 0

    def bring(self, fsms: Iterable[TokenFSM]) -> None:
        """A step with these automata begins: makes room for those that are ready, exports new ones and grown ones."""
        self._step += 1
        for fsm in fsms:
            if (entry := self._entries.get(fsm)) is None:
                entry = self._entries[fsm] = _Entry(self._export(fsm))
            entry.used = self._step
            if entry.export is not None and entry.export.done():
                self._take(entry, fsm)
            elif entry.export is None and _has_grown(entry, fsm):
                entry.export = self._export(fsm)
            if entry.tables is not None and entry.base is None:
                self._place(entry)

    def _place(self, entry: _Entry) -> None:
        assert entry.tables is not None
        entry.base = self.memory.place(entry.tables)
        if entry.base is None:
            self._make_room()
            entry.base = self.memory.place(entry.tables)

    def _export(self, fsm: TokenFSM) -> Future[DeviceTables | None]:
        """Those that wait for others' exports keep no automaton alive."""
        alive, limits = weakref.ref(fsm), {"max_states": MOST_STATES, "max_bytes": self.memory.share}
        return self._exports.submit(lambda: None if (one := alive()) is None else one.device_tables(**limits))

    def _take(self, entry: _Entry, fsm: TokenFSM) -> None:
        """What has been exported takes the place of what was there, unless there is no room for it."""
        assert entry.export is not None
        tables, entry.export = _result(entry.export), None
        before, there = entry.tables, entry.base is not None
        if before is not None or tables is not None:
            entry.known = fsm.state_count
        if tables is None or (before is not None and tables.states <= before.states):
            return
        entry.tables, entry.base = tables, None
        self._place(entry)
        if there and entry.base is None:
            entry.tables = before
            self._place(entry)

    def base(self, fsm: TokenFSM, state: int) -> int | None:
        """The device's number of the automaton's state 0, until `bring` is called again; None: `state` is not there."""
        entry = self._entries.get(fsm)
        if entry is None or entry.tables is None or state >= entry.tables.states:
            return None
        return entry.base

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


def _has_grown(entry: _Entry, fsm: TokenFSM) -> bool:
    if entry.tables is None or entry.tables.complete:
        return False
    return fsm.state_count - entry.known >= max(_LEAST_NEW, entry.known // _NEW_SHARE)


def _result(export: Future[DeviceTables | None]) -> DeviceTables | None:
    try:
        return export.result()
    except Exception:  # past a budget of the grammar's: its rows say so to whoever gets there
        logger.info("an automaton stays on the host", exc_info=True)
        return None
