"""Which tokens a running sequence may produce next, looked up in its TokenFSM.

A row that has to be made is read on a pool of threads the first time its state is met (a pathological grammar may take
long), and found in a dictionary ever after. The engine thread never waits for one row, and hands none over that is
there already: a thread's answer costs more than the row.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future
from itertools import takewhile
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from gpu_workers.guided.forced_text import ForcedText, ForcedTextFinder
from gpu_workers.guided.output_budget import OutputBudget
from gpu_workers.request import GenerationRequest, RequestError
from gpu_workers.sampling.allowed_tokens import AllowedTokens, read_row
from grammar_workers import TokenFSM

T = TypeVar("T")

MOST_BEGUN_BYTES = 1 << 15
"""Tokens of a text are looked for in Python, which takes 50 us for each byte of a long run of spaces."""

_FAST_S = 0.02
"""A grammar whose last row took longer is not waited for: every one of its rows would delay the whole batch."""


class MaskReader:
    """Reads rows on `executor`, which needs a thread per slot so that no sequence waits for another's row.

    `finder` looks for forced text behind every row that leaves no choice about the next byte; None: nobody looks.
    """

    def __init__(
        self,
        executor: Executor,
        end_token_ids: Sequence[int],
        sparse_limit: int,
        wake: Callable[[], None],
        finder: ForcedTextFinder | None = None,
    ) -> None:
        self._executor = executor
        self._end_token_ids = tuple(end_token_ids)
        self._sparse_limit = sparse_limit
        self._wake = wake
        self._finder = finder
        self._tables: weakref.WeakKeyDictionary[TokenFSM, MaskTable] = weakref.WeakKeyDictionary()

    def table(self, fsm: TokenFSM) -> MaskTable:
        """The rows of `fsm` read so far; they live as long as it does."""
        if (table := self._tables.get(fsm)) is None:
            table = self._tables[fsm] = MaskTable(self)
        return table

    def start(self, job: Callable[[], T]) -> Future[T]:
        """Runs `job` on a thread; `wake` is called when it is done."""
        future = self._executor.submit(job)
        future.add_done_callback(lambda _: self._wake())
        return future

    def row(self, mask: NDArray[np.uint32]) -> AllowedTokens:
        return read_row(mask, self._end_token_ids, self._sparse_limit)

    def forces(self, row: AllowedTokens) -> bool:
        """Whether a search for forced text behind `row` would find any."""
        return self._finder is not None and row.token_ids is not None and self._finder.forces(row.token_ids)

    def forced_text(self, fsm: TokenFSM, state: int) -> dict[int, ForcedText]:
        """The text forced after `state` and after those that it leads through."""
        assert self._finder is not None
        try:
            return self._finder.find_all(fsm, state)
        except Exception:  # a state further on cannot be built: whoever gets there is told
            return {}


class MaskTable:
    """Rows of one TokenFSM, shared by all sequences that follow it. Engine thread only, but for `_read` and `_search`.

    An FSM interns its rows: states with equal rows share one array, and it is counted once.
    """

    def __init__(self, reader: MaskReader) -> None:
        self._reader = reader
        self._rows: dict[int, AllowedTokens] = {}  # by state
        self._counted: dict[int, AllowedTokens] = {}  # by the identity of the array, which the entry keeps alive
        self._forced: dict[int, ForcedText] = {}
        self._reading: dict[int, Future[None]] = {}
        self._completing: list[Future[AllowedTokens]] = []
        self.last_read_s = 0.0

    @property
    def busy(self) -> bool:
        """Whether a row is being read or completions are looked up: the FSM's lock may be taken."""
        if self._completing:
            self._completing = [future for future in self._completing if not future.done()]
        return bool(self._completing) or any(not future.done() for future in self._reading.values())

    def get(self, fsm: TokenFSM, state: int) -> AllowedTokens | None:
        """The row of `state`, or None while it is being read (asking starts it). Raises what reading it raised."""
        if (future := self._reading.get(state)) is not None and future.done():
            del self._reading[state]
            future.result()
        self.prefetch(fsm, state)
        return self._rows.get(state)

    def prefetch(self, fsm: TokenFSM, state: int) -> None:
        """Reads the row of `state` if it is there; starts to have it made, and forced text behind it found, if not."""
        if state in self._rows or state in self._reading:
            return
        if (mask := fsm.known_mask(state)) is None:
            self._reading[state] = self._reader.start(lambda: self._read(fsm, state))
        elif self._reader.forces(self._note(state, mask)) and state not in self._forced:
            self._reading[state] = self._reader.start(lambda: self._search(fsm, state))

    def within(
        self, budget: OutputBudget, since: Sequence[tuple[int, int]], row: AllowedTokens, state: int
    ) -> Future[AllowedTokens]:
        """Look up what of the `row` of `state` fits `budget`, behind the (token, state) pairs of `since`."""

        def fitting() -> AllowedTokens:
            budget.accept([token_id for token_id, _ in since], [after for _, after in since])
            mask = budget.row(row.mask, state)
            return row if mask is row.mask else self._reader.row(mask)

        future = self._reader.start(fitting)
        self._completing.append(future)
        return future

    def known(self, state: int) -> AllowedTokens | None:
        """The row of `state` if it has been read."""
        return self._rows.get(state)

    def forced_text(self, state: int) -> ForcedText | None:
        """The text forced after `state`, as far as it has been found."""
        return self._forced.get(state)

    def reading(self, state: int) -> Future[None] | None:
        return self._reading.get(state)

    def _read(self, fsm: TokenFSM, state: int) -> None:
        """The row first: nobody who needs it waits for what may be found behind it."""
        started = time.monotonic()
        row = self._note(state, fsm.allowed_mask(state))
        self.last_read_s = time.monotonic() - started
        if self._reader.forces(row) and state not in self._forced:
            self._search(fsm, state)

    def _note(self, state: int, mask: NDArray[np.uint32]) -> AllowedTokens:
        if (row := self._counted.get(id(mask))) is None:
            row = self._counted[id(mask)] = self._reader.row(mask)
        self._rows[state] = row
        return row

    def _search(self, fsm: TokenFSM, state: int) -> None:
        self._forced.update(self._reader.forced_text(fsm, state))


class ForbiddenTokenError(ValueError):
    """A token that its grammar state forbids: a resumed output of another grammar, or a fault of ours."""


def advance(fsm: TokenFSM, state: int, token_id: int) -> int:
    """The state after `token_id`. Raises ForbiddenTokenError."""
    following = fsm.next_state(state, token_id)
    if following < 0:
        raise ForbiddenTokenError(f"token {token_id} is not allowed in grammar state {state}")
    return following


def begun(fsm: TokenFSM, request: GenerationRequest) -> tuple[list[int], int]:
    """Return tokens that spell the text which the output of `request` continues, and the state after them.

    Raises RequestError where the grammar does not allow a text with this beginning. May take long.
    """
    text = request.begun_text.encode(errors="replace")
    if len(text) > MOST_BEGUN_BYTES:
        message = f"a constraint continues a message of at most {MOST_BEGUN_BYTES:,} bytes, this one has {len(text):,}"
        raise RequestError(message, code="invalid_prefix", param="messages")
    token_ids = fsm.vocabulary.encode(text)
    state = fsm.initial_state
    try:
        for token_id in [-1] if token_ids is None else token_ids:
            state = advance(fsm, state, token_id)
    except ForbiddenTokenError as error:
        message = "no output that the constraint allows begins with the last message: change it, or do not continue it"
        raise RequestError(message, code="invalid_prefix", param="messages") from error
    return token_ids or [], state


class Constraint:
    """One sequence's place in its TokenFSM. Engine thread only.

    `state` is the one after the last token, or after the last but one while it is `behind`: finding the next state may
    have to wait for the FSM's lock, and the engine thread never does.
    """

    def __init__(self, fsm: TokenFSM, state: int, table: MaskTable, budget: OutputBudget | None = None) -> None:
        self.state = state
        self.is_terminal = fsm.is_terminal(state)
        self.fsm = fsm
        self._table = table
        self._token_id: int | None = None
        self._path: deque[tuple[int, int]] = deque()
        self._budget = budget
        self._since: list[tuple[int, int]] = []  # tokens that the budget has not accepted, with the states after them
        self._fitting: Future[AllowedTokens] | None = None

    @property
    def behind(self) -> bool:
        """Whether a token waits for `catch_up`."""
        return self._token_id is not None

    def accept(self, token_id: int) -> None:
        """Takes the next token: advances at once along a known path, otherwise `catch_up` does."""
        assert self._token_id is None
        if self._path and self._path[0][0] == token_id:
            self._move(*self._path.popleft())
        else:
            self._path.clear()
            self._token_id = token_id

    def catch_up(self) -> None:
        """Advances, unless a row of this FSM is being read: its lock would hold the engine thread up."""
        if self._token_id is not None and not self._table.busy:
            self._move(self._token_id, advance(self.fsm, self.state, self._token_id))
            self._token_id = None

    @property
    def blocked(self) -> bool:
        """Whether the state or its row cannot be had now."""
        if self.behind:
            return self._table.busy
        if self._fitting is not None:
            return not self._fitting.done()
        future = self._table.reading(self.state)
        return future is not None and not future.done() and self._table.known(self.state) is None

    @property
    def reads_fast(self) -> bool:
        """Whether rows of this grammar are worth a moment's wait."""
        return self._table.last_read_s < _FAST_S

    def allowed(self) -> AllowedTokens | None:
        """What may follow, or None while the row is being read. Raises what reading it raised."""
        return self._table.get(self.fsm, self.state)

    def drawable(self) -> AllowedTokens | None:
        """What of `allowed` fits the budget, if there is one. None, and errors, as there."""
        row = self.allowed()
        if row is None or self._budget is None:
            return row
        if self._fitting is None:
            if self._budget.spares(self.state, len(self._since)):
                return row
            since, self._since = self._since, []
            self._fitting = self._table.within(self._budget, since, row, self.state)
        return self._fitting.result() if self._fitting.done() else None

    def row(self, state: int) -> AllowedTokens | None:
        """What may follow a state further on, if its row has been read; otherwise starts to read it."""
        self._table.prefetch(self.fsm, state)
        return self._table.known(state)

    def known_row(self, state: int) -> AllowedTokens | None:
        """What may follow a state, if its row has been read."""
        return self._table.known(state)

    def reading(self) -> Future[Any] | None:
        return self._fitting or self._table.reading(self.state)

    def forced_text(self, state: int) -> ForcedText | None:
        """What must follow `state`, as far as it has been found."""
        return self._table.forced_text(state)

    def walk(self, state: int, token_ids: Iterable[int]) -> list[tuple[int, int]]:
        """As many of `token_ids` as may follow `state`, with the state after each; none of them an end token.

        Nothing while the FSM is busy.
        """
        path: list[tuple[int, int]] = []
        if self.behind or self._table.busy:
            return path
        for token_id in token_ids:
            state = self.fsm.next_state(state, token_id)
            if state < 0 or state == self.fsm.end_state:
                break
            path.append((token_id, state))
        return path

    def follow(self, path: Iterable[tuple[int, int]]) -> None:
        """Remembers the next tokens and the states after them for `accept`, up to a state that is not known: -1."""
        self._path = deque(takewhile(lambda step: step[1] >= 0, path))

    def prefetch(self) -> None:
        """Starts to read the rows of the states remembered."""
        for _, state in self._path:
            self._table.prefetch(self.fsm, state)

    def _move(self, token_id: int, state: int) -> None:
        self._fitting = None
        if self._budget is not None:
            self._since.append((token_id, state))
        self.state = state
        self.is_terminal = self.fsm.is_terminal(state)
