"""Which tokens a running sequence may produce next, looked up in its TokenFSM.

A row is read on a pool of threads the first time its state is met (reading may have to build it, and a pathological
grammar may take long), and found in a dictionary ever after. The engine thread never waits for one row.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from grammar_workers import TokenFSM


@dataclass(frozen=True, slots=True)
class AllowedTokens:
    """The mask row of one state, read once.

    `mask` uint32 [ceil(V / 32)]; `count` of its bits; `token_ids` int64 [count], ascending, or None when there are more
    than the engine's `sparse_limit`; `only_end`: nothing but end tokens may follow, the output is complete here.
    """

    mask: NDArray[np.uint32]
    count: int
    token_ids: NDArray[np.int64] | None
    only_end: bool

    def without(self, token_ids: Collection[int]) -> AllowedTokens:
        """The row without some of its tokens; it may be empty then."""
        gone = np.array(sorted(token_ids), dtype=np.int64)
        gone = gone[gone < len(self.mask) * 32]
        bits = np.left_shift(np.uint32(1), (gone % 32).astype(np.uint32))
        mask = self.mask.copy()
        removed = int(np.count_nonzero(mask[gone // 32] & bits))
        np.bitwise_and.at(mask, gone // 32, ~bits)
        left = None if self.token_ids is None else np.setdiff1d(self.token_ids, gone, assume_unique=True)
        return AllowedTokens(mask, self.count - removed, left, self.only_end)


def read_row(mask: NDArray[np.uint32], end_token_ids: Sequence[int], sparse_limit: int) -> AllowedTokens:
    """Counts a mask row and lists its tokens when they are few. Cost: a pass over the words, bits only where set."""
    count = int(np.bitwise_count(mask).sum())
    if count > sparse_limit:
        return AllowedTokens(mask, count, None, only_end=False)
    words = np.flatnonzero(mask)
    bits = np.unpackbits(mask[words].view(np.uint8).reshape(-1, 4), axis=1, bitorder="little")
    row, bit = np.nonzero(bits)
    token_ids = (words[row] * 32 + bit).astype(np.int64)
    only_end = count > 0 and bool(np.isin(token_ids, end_token_ids).all())
    return AllowedTokens(mask, count, token_ids, only_end)


def unpack(rows: Sequence[AllowedTokens], tokens: int) -> NDArray[np.bool_]:
    """The packed rows as bool [n, tokens]; tokens past their width are forbidden."""
    packed = np.stack([row.mask for row in rows]).view(np.uint8)
    return np.unpackbits(packed, axis=1, count=tokens, bitorder="little").view(np.bool_)


class MaskReader:
    """Reads rows on `executor`, which needs a thread per slot so that no sequence waits for another's row."""

    def __init__(
        self, executor: Executor, end_token_ids: Sequence[int], sparse_limit: int, wake: Callable[[], None]
    ) -> None:
        self._executor = executor
        self._end_token_ids = tuple(end_token_ids)
        self._sparse_limit = sparse_limit
        self._wake = wake
        self._tables: weakref.WeakKeyDictionary[TokenFSM, MaskTable] = weakref.WeakKeyDictionary()

    def table(self, fsm: TokenFSM) -> MaskTable:
        """The rows of `fsm` read so far; they live as long as it does."""
        if (table := self._tables.get(fsm)) is None:
            table = self._tables[fsm] = MaskTable(self)
        return table

    def read(self, fsm: TokenFSM, state: int) -> Future[AllowedTokens]:
        """Starts reading a row; `wake` is called when it is there."""
        future = self._executor.submit(
            lambda: read_row(fsm.allowed_mask(state), self._end_token_ids, self._sparse_limit)
        )
        future.add_done_callback(lambda _: self._wake())
        return future


class MaskTable:
    """Rows of one TokenFSM, shared by all sequences that follow it. Engine thread only."""

    def __init__(self, reader: MaskReader) -> None:
        self._reader = reader
        self._rows: dict[int, AllowedTokens] = {}
        self._reading: dict[int, Future[AllowedTokens]] = {}

    @property
    def busy(self) -> bool:
        """Whether a row is being read: the FSM's lock may be taken."""
        return any(not future.done() for future in self._reading.values())

    def get(self, fsm: TokenFSM, state: int) -> AllowedTokens | None:
        """The row of `state`, or None while it is being read (asking starts it). Raises what reading it raised."""
        if (row := self._rows.get(state)) is not None:
            return row
        if (future := self._reading.get(state)) is None:
            future = self._reading[state] = self._reader.read(fsm, state)
        if not future.done():
            return None
        del self._reading[state]
        row = self._rows[state] = future.result()
        return row

    def reading(self, state: int) -> Future[AllowedTokens] | None:
        return self._reading.get(state)


class ForbiddenTokenError(ValueError):
    """A token that its grammar state forbids: a resumed output of another grammar, or a fault of ours."""


def advance(fsm: TokenFSM, state: int, token_id: int) -> int:
    """The state after `token_id`. Raises ForbiddenTokenError."""
    following = fsm.next_state(state, token_id)
    if following < 0:
        raise ForbiddenTokenError(f"token {token_id} is not allowed in grammar state {state}")
    return following


class Constraint:
    """One sequence's place in its TokenFSM. Engine thread only."""

    def __init__(self, fsm: TokenFSM, state: int, table: MaskTable) -> None:
        self.state = state
        self.is_terminal = fsm.is_terminal(state)
        self._fsm = fsm
        self._table = table
        self._token_id: int | None = None

    @property
    def behind(self) -> bool:
        """Whether a token waits for `catch_up`."""
        return self._token_id is not None

    def accept(self, token_id: int) -> None:
        """Takes note of the next token; `catch_up` advances over it."""
        assert self._token_id is None
        self._token_id = token_id

    def catch_up(self) -> None:
        """Advances, unless a row of this FSM is being read: its lock would hold the engine thread up."""
        if self._token_id is not None and not self._table.busy:
            self.state = advance(self._fsm, self.state, self._token_id)
            self.is_terminal = self._fsm.is_terminal(self.state)
            self._token_id = None

    def allowed(self) -> AllowedTokens | None:
        """What may follow, or None while the row is being read. Raises what reading it raised."""
        return self._table.get(self._fsm, self.state)

    def reading(self) -> Future[AllowedTokens] | None:
        return self._table.reading(self.state)
