"""Automata on the device: tables of many TokenFSMs (automata of grammars) in a few tensors of fixed size and address.

The states of all automata have consecutive indices. The states of one automaton start at its `base`:

    state      0             1         2 .. 21        22 .. 55
               no grammar    `LEFT`    automaton 1    automaton 2

States 0 and 1 (`LEFT`) allow every token and lead to themselves. Sequences without a grammar use state 0. A sequence
enters state 1 when its next grammar state has no table on the device, because automata can be very large or infinite.
The host then masks and samples for the sequence.

The tables of an automaton are computed (*exported*) on a thread of their own. They are exported again when requests
have visited more states of the automaton.
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

# Number of steps without use after which an automaton can be replaced by another one.
_IDLE_STEPS = 256
_ALL_STATES = 1 << 16
# One automaton gets at most 1 / `_SHARE` of the memory and of the states.
#
# This does not hold for each tensor: two automata may fill `next`.
_SHARE = 8
# Maximum number of states of one automaton.
MOST_STATES = _ALL_STATES // _SHARE
# An automaton is exported again after so many new states, which must also be 1 / `_NEW_SHARE` of the earlier ones.
_LEAST_NEW, _NEW_SHARE = 32, 4
_BITS = 32

# State of sequences that have reached a grammar state without a device table.
LEFT = 1


class TableMemory:
    """Device memory for the tables of automata (grammars), with look-ups by tensor operations.

    A *device state* is an index in `automaton_of`, `row_of` and `line_of`. The states of one automaton are consecutive.
    Tables are appended; only `clear` frees memory. Half of `nbytes` is for masks, a quarter for transitions, an eighth
    for token classes. The three tensors that are indexed by state take another 1 MiB.

    Args:
        tokens: Number of tokens of the model, V.
        nbytes: Memory for automata, in bytes.
        device: Device of the tensors.

    Attributes:
        automaton_of: Index of the automaton of each device state, int32 [states].
        row_of: Index in `rows` of the mask of each device state, int32 [states].
        line_of: Index in `next` of the first transition of each device state, int64 [states].
        class_of: Class of each token in each automaton, int16 [automata, V]. Tokens of one class lead from every state
            to the same state.
        rows: Token bitmasks, int32 [masks, ceil(V / 32)].
        next: Transitions, int32, flat: the device state that follows device state s after a token of class c is at
            index `line_of[s] + c`.
        share: Maximum number of bytes of one automaton.
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
        # Maximum number of bytes of one automaton.
        self.share = max(1, nbytes // _SHARE)
        self.clear()

    def clear(self) -> None:
        """Remove all automata."""
        self._used = (2, 1, 1, 2)  # states, automata, rows, places of `next`

    @property
    def automata(self) -> int:
        """Number of automata in the memory. An automaton whose tables were uploaded twice counts twice."""
        return self._used[1] - 1

    def place(self, tables: DeviceTables) -> int | None:
        """Upload the tables of an automaton to the device, after the tables of earlier automata.

        Args:
            tables: Tables of the automaton, on the host.

        Returns:
            Base of the automaton: the device state of its state 0. None if there is no room; then nothing is changed.
        """
        base, automaton, row, place = self._used
        states, classes = tables.next.shape
        after = (base + states, automaton + 1, row + len(tables.rows), place + tables.next.size)
        room = (len(self.row_of), len(self.class_of), len(self.rows), len(self.next))
        if any(end > size for end, size in zip(after, room, strict=True)):
            return None
        self._used = after
        self.automaton_of[base : after[0]] = automaton
        # The end state has an empty mask. It gets mask 0, which allows every token: results after an end are not used,
        # but must be finite.
        row_of = np.where(np.arange(states) == TokenFSM.end_state, 0, tables.row_of + row)
        self.row_of[base : after[0]] = torch.from_numpy(row_of)
        self.line_of[base : after[0]] = torch.from_numpy(place + np.arange(states) * classes)
        known = min(self._tokens, len(tables.class_of))
        self.class_of[automaton, :known] = torch.from_numpy(tables.class_of[:known])
        self.class_of[automaton, known:] = 0
        words = min(self.rows.shape[1], tables.rows.shape[1])
        self.rows[row : after[2], :words] = torch.from_numpy(tables.rows.view(np.int32)[:, :words])
        self.rows[row : after[2], words:] = 0
        # A disallowed token leads to state 0: no token after it is ever accepted.
        following = np.where(tables.next < 0, 0, tables.next + base).astype(np.int32)
        following[tables.next == LEAVES] = LEFT
        self.next[place : after[3]] = torch.from_numpy(following.ravel())
        return base

    def places(self, states: Tensor) -> Tensor:
        """Look up the masks of states.

        Args:
            states: Device states, int64 [n].

        Returns:
            Index in `rows` of the mask of each state, int64 [n].
        """
        return self.row_of[states].long()

    def advance(self, states: Tensor, token_ids: Tensor) -> Tensor:
        """Return the state of each sequence after one more token.

        Args:
            states: Device states before the tokens, int64 [n].
            token_ids: One token per sequence, int64 [n].

        Returns:
            Device states after the tokens, int64 [n]: 0 after a disallowed token, `LEFT` (1) if the next state has no
            table on the device.
        """
        classes = self.class_of[self.automaton_of[states].long(), token_ids]
        return self.next[self.line_of[states] + classes].long()


@dataclass(slots=True)
class _Entry:
    """One automaton.

    Attributes:
        export: The export in progress; None if there is none.
        tables: The exported tables; None before the first export has ended, or if it failed.
        base: The device's index of state 0; None while the automaton is not on the device.
        used: Last step that used the automaton.
        known: Number of visited states at the time of the last export.
    """

    export: Future[DeviceTables | None] | None
    tables: DeviceTables | None = None
    base: int | None = None
    used: int = 0
    known: int = 0


class DeviceAutomata:
    """Uploads automata of grammars to the device, and removes unused ones. For the engine thread only.

    The tables of an automaton are computed (*exported*) on another thread, and uploaded when they are ready. If the
    memory is full, automata that no sequence has used for 256 steps are removed.

    Args:
        memory: Device memory for the tables.
    """

    def __init__(self, memory: TableMemory) -> None:
        self.memory = memory
        self._entries: weakref.WeakKeyDictionary[TokenFSM, _Entry] = weakref.WeakKeyDictionary()
        self._exports = ThreadPoolExecutor(1, thread_name_prefix="device-tables")
        self._step = 0

    def bring(self, fsms: Iterable[TokenFSM]) -> None:
        """Begin a step: upload tables that are ready, and start exports of automata that are new or have grown.

        An automaton has *grown* when requests have visited many more of its states since its last export.

        Args:
            fsms: Automata of the sequences in the step.
        """
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
        """Start to export an automaton. A queued export does not keep it alive."""
        alive, limits = weakref.ref(fsm), {"max_states": MOST_STATES, "max_bytes": self.memory.share}
        return self._exports.submit(lambda: None if (one := alive()) is None else one.device_tables(**limits))

    def _take(self, entry: _Entry, fsm: TokenFSM) -> None:
        """Replace the tables of an automaton by newly exported ones.

        If there is no room for these, the old ones are kept.
        """
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
        """Return the base of an automaton (the device state of its state 0), if a given state is on the device.

        The device state of `state` is the base plus `state`. The base is valid until the next call of `bring`.

        Args:
            fsm: The automaton.
            state: State of the automaton, 0 or more.

        Returns:
            The base; None if `state` has no table on the device.
        """
        entry = self._entries.get(fsm)
        if entry is None or entry.tables is None or state >= entry.tables.states:
            return None
        return entry.base

    def wait(self) -> None:
        """Block until all exports (computations of device tables) have ended. The next `bring` uploads the tables."""
        for entry in list(self._entries.values()):
            if entry.export is not None:
                entry.export.exception()

    def close(self) -> None:
        """Cancel the queued exports (computations of an automaton's device tables). The call does not wait.

        An export that is already running goes on.
        """
        self._exports.shutdown(wait=False, cancel_futures=True)

    def _make_room(self) -> None:
        """Remove automata that were not used recently, if there are any, and place the others again."""
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
    except Exception:  # a limit of the grammar is exceeded: sequences that reach such a state get the error
        logger.info("automaton not copied to the device", exc_info=True)
        return None
