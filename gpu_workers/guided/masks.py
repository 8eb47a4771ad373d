"""Masks of running sequences, and the grammar state of each sequence.

A *mask* is the set of tokens that the grammar allows in a state. When a sequence reaches a state for the first time,
the automaton may already have the mask: the mask was prefetched, or another state of the same mask equivalence class
has it. Then the engine thread takes this mask. Otherwise a thread pool computes the mask, because a mask of a
pathological grammar takes long. Later the engine thread looks the mask up in a dictionary.

A mask that is not ready delays its own sequence, and sequences with the same grammar whose last token has not advanced
their state yet (`Constraint.behind`): advancing needs the lock of the automaton. If the last mask of the grammar was
computed fast, the whole step waits for the mask, up to `mask_timeout_ms`. Sequences with other grammars go on then.
"""

from __future__ import annotations

import dataclasses
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future
from itertools import takewhile
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from gpu_workers.guided.forced_text import ForcedText, ForcedTextFinder, MaskOf
from gpu_workers.guided.output_budget import OutputBudget
from gpu_workers.request import GenerationRequest, RequestError
from gpu_workers.sampling.allowed_tokens import AllowedTokens, read_row
from grammar_workers import TokenFSM

T = TypeVar("T")

# Maximum size, in bytes, of the text that a constrained output continues.
# It is tokenized in Python, which takes 50 µs per byte of a long run of spaces.
MOST_BEGUN_BYTES = 1 << 15

# Maximum number of masks in a search for forced text in the engine thread. A longer search runs on another thread.
MOST_KNOWN_MASKS = 48

# The engine waits for masks of a grammar only if its last mask took less than this, in seconds.
# With a slower grammar, each wait would delay the whole batch.
_FAST_S = 0.02


@dataclasses.dataclass(eq=False)
class MaskReader:
    """Computes masks of grammars on threads, for all grammars of an engine.

    Attributes:
        executor: Threads, one per slot of the KV cache, so that no sequence waits for the mask of another one.
        end_token_ids: End tokens of the model.
        sparse_limit: Masks with at most this many allowed tokens also get a list of these tokens.
        wake: Function that is called, from any thread, when a mask has been computed or its computation has failed.
        finder: Searches for forced text (the text with which every allowed output continues) after a state; None: no
            search.
    """

    executor: Executor
    end_token_ids: Sequence[int]
    sparse_limit: int
    wake: Callable[[], None]
    finder: ForcedTextFinder | None = None
    _tables: weakref.WeakKeyDictionary[TokenFSM, MaskTable] = dataclasses.field(
        default_factory=weakref.WeakKeyDictionary, init=False
    )

    def table(self, fsm: TokenFSM) -> MaskTable:
        """Return the table of the computed masks of the automaton `fsm`; the first call creates an empty table."""
        if (table := self._tables.get(fsm)) is None:
            table = self._tables[fsm] = MaskTable(self)
        return table

    def start(self, job: Callable[[], T]) -> Future[T]:
        """Start a function on a thread, and call `wake` when it has returned or raised an exception.

        Args:
            job: Function without arguments.

        Returns:
            Future of the function's return value.
        """
        future = self.executor.submit(job)
        future.add_done_callback(lambda _: self.wake())
        return future

    def row(self, mask: NDArray[np.uint32]) -> AllowedTokens:
        """Convert a token bitmask to `AllowedTokens`: count its tokens, and list them if there are few.

        Args:
            mask: Token bitmask, uint32 [ceil(V / 32)].

        Returns:
            The mask. It has a list of its tokens if there are at most `sparse_limit`.
        """
        return read_row(mask, self.end_token_ids, self.sparse_limit)

    def forces(self, row: AllowedTokens) -> bool:
        """Return whether there is forced text (the only possible continuation) after a state.

        Args:
            row: Mask of the state.

        Returns:
            True if text is forced. False if not, without a finder, or if the mask has no list of its tokens.
        """
        return self.finder is not None and row.token_ids is not None and self.finder.forces(row.token_ids)

    def forced_text(self, fsm: TokenFSM, state: int, *, only_known: bool = False) -> dict[int, ForcedText]:
        """Search for the forced text (the only possible continuation) after a state. Needs a finder.

        Args:
            fsm: Automaton of the grammar.
            state: State at which the text begins.
            only_known: True: compute no mask. The search fails if it needs a mask that the automaton does not have yet,
                or more than `MOST_KNOWN_MASKS` masks. False: compute masks, which may take long.

        Returns:
            Forced text by state: the whole text for `state`, and the rest of it for later states along the text. Empty
            if the search fails.
        """
        assert self.finder is not None
        try:
            return self.finder.find_all(fsm, state, _known_masks(fsm) if only_known else fsm.allowed_mask)
        except Exception:  # a later state cannot be computed: a sequence that reaches it gets the error
            return {}


class MaskTable:
    """Computed masks of one automaton, by state, shared by all sequences with this grammar.

    Only the engine thread may call the public methods. States with equal masks share one array and one `AllowedTokens`.

    Args:
        reader: Computes the masks on its threads.

    Attributes:
        last_read_s: Duration of the last computation of a mask, in seconds; 0 before the first one.
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
        """True if a thread may hold the lock of the automaton, because it computes a mask or searches completions."""
        if self._completing:
            self._completing = [future for future in self._completing if not future.done()]
        return bool(self._completing) or any(not future.done() for future in self._reading.values())

    def get(self, fsm: TokenFSM, state: int) -> AllowedTokens | None:
        """Return the mask of a state; None while it is being computed.

        The first call for a state starts the computation. The error of a failed computation is raised, such as
        LimitExceededError if a limit of the automaton is exceeded.

        Args:
            fsm: The automaton.
            state: The state.
        """
        if (future := self._reading.get(state)) is not None and future.done():
            del self._reading[state]
            future.result()
        self.start(fsm, state)
        return self._rows.get(state)

    def start(self, fsm: TokenFSM, state: int) -> None:
        """Take the mask of a state from the automaton, or start to compute the mask on a thread.

        A thread also searches for forced text (the only possible continuation) after the state. If the table has the
        mask, or the computation of the mask is in progress, nothing happens.

        Args:
            fsm: The automaton.
            state: The state.
        """
        if state in self._rows or state in self._reading:
            return
        if (mask := fsm.known_mask(state)) is None:
            self._reading[state] = self._reader.start(lambda: self._read(fsm, state))
        elif self._reader.forces(self._note(state, mask)) and state not in self._forced:
            # With cached masks, a search takes 40 µs. A thread would take 250 µs, for which the engine thread waits.
            found = {} if self.busy else self._reader.forced_text(fsm, state, only_known=True)
            if found:
                self._forced.update(found)
            else:
                self._reading[state] = self._reader.start(lambda: self._search(fsm, state))

    def within(
        self, budget: OutputBudget, since: Sequence[tuple[int, int]], row: AllowedTokens, state: int
    ) -> Future[AllowedTokens]:
        """Start to reduce a mask, on a thread, to the tokens after which the output can end within its token limit.

        Args:
            budget: Output budget of the sequence. The thread advances it over `since`.
            since: Pairs (token, state after it) of the tokens that `budget` has not received yet, in order.
            row: The mask.
            state: Grammar state to which the mask belongs.

        Returns:
            Future of the reduced mask; its result is `row` itself if nothing is removed.
        """

        def fitting() -> AllowedTokens:
            budget.accept([token_id for token_id, _ in since], [after for _, after in since])
            mask = budget.row(row.mask, state)
            return row if mask is row.mask else self._reader.row(mask)

        future = self._reader.start(fitting)
        self._completing.append(future)
        return future

    def known(self, state: int) -> AllowedTokens | None:
        """Return the mask of a state; None if the mask has not been computed. Starts no computation."""
        return self._rows.get(state)

    def forced_text(self, state: int) -> ForcedText | None:
        """Return the forced text (only possible continuation) after a state; None if none has been found."""
        return self._forced.get(state)

    def reading(self, state: int) -> Future[None] | None:
        """Return the future of the computation that `start` or `get` has started for a state.

        None if no computation was started, or if `get` was called after its end.
        """
        return self._reading.get(state)

    def _read(self, fsm: TokenFSM, state: int) -> None:
        """Compute a mask, then search for forced text after it. The mask can be used before the search has finished."""
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


def _known_masks(fsm: TokenFSM) -> MaskOf:
    """Return a function that returns cached masks. LookupError: no cached mask, or too many calls."""
    numbers = iter(range(MOST_KNOWN_MASKS))

    def known(state: int) -> NDArray[np.uint32]:
        mask = fsm.known_mask(state)
        if mask is None or next(numbers, None) is None:
            raise LookupError(f"the mask of state {state} is not cached, or the search takes too long")
        return mask

    return known


class ForbiddenTokenError(ValueError):
    """A token is not allowed in a grammar state: a resumed output belongs to another grammar, or there is a bug."""


def advance(fsm: TokenFSM, state: int, token_id: int) -> int:
    """Return the grammar state after a token that must be allowed.

    Args:
        fsm: Automaton of the grammar.
        state: State before the token.
        token_id: The token.

    Raises:
        ForbiddenTokenError: The token is not allowed in `state`.
    """
    following = fsm.next_state(state, token_id)
    if following < 0:
        raise ForbiddenTokenError(f"token {token_id} is not allowed in grammar state {state}")
    return following


def begun(fsm: TokenFSM, request: GenerationRequest) -> tuple[list[int], int]:
    """Tokenize the text with which the output of a request must begin, and advance the grammar over it. May take long.

    Args:
        fsm: Automaton of the grammar.
        request: The request. Its `begun_text` is the text, which may be empty.

    Returns:
        Token IDs of the text, and the grammar state after them; an empty list and the initial state if the text is
        empty.

    Raises:
        RequestError: The text has more than `MOST_BEGUN_BYTES` bytes, or the grammar allows no output that begins with
            it (code `invalid_prefix`).
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
    """The grammar state of one sequence, and its masks. For the engine thread only.

    The state can be advanced only with the lock of the automaton, and the engine thread never waits for this lock. So
    `state` can be *behind*: it stays the state before the last token until `catch_up` advances it.

    Args:
        fsm: Automaton of the grammar.
        state: State at the start.
        table: Masks of the automaton.
        budget: Output budget, which ensures that the output is complete within its token limit; None without the
            setting `finish_within_budget`.

    Attributes:
        state: State after the last token, or before it while `behind` is true.
        is_terminal: True if the grammar accepts an output that ends in `state`.
        fsm: Automaton of the grammar.
    """

    def __init__(self, fsm: TokenFSM, state: int, table: MaskTable, budget: OutputBudget | None = None) -> None:
        self.state = state
        self.is_terminal = fsm.is_terminal(state)
        self.fsm = fsm
        self.table = table
        self._token_id: int | None = None
        self._path: deque[tuple[int, int]] = deque()
        self._budget = budget
        self._since: list[tuple[int, int]] = []  # tokens that the budget has not accepted, with the states after them
        self._fitting: Future[AllowedTokens] | None = None

    @property
    def behind(self) -> bool:
        """True if `state` is still the grammar state before the last token."""
        return self._token_id is not None

    def accept(self, token_id: int) -> None:
        """Accept the next token of the sequence.

        If the token is the next one of the path that `follow` has stored, the state advances at once. Otherwise the
        state is behind until `catch_up` advances it. `catch_up` raises an error if the token is not allowed.

        Args:
            token_id: The token.
        """
        assert self._token_id is None
        if self._path and self._path[0][0] == token_id:
            self._move(*self._path.popleft())
        else:
            self._path.clear()
            self._token_id = token_id

    def catch_up(self) -> None:
        """Advance `state` over the last token, if it is behind and no other thread may hold the automaton's lock.

        ForbiddenTokenError is raised if the token is not allowed.
        """
        if self._token_id is not None and not self.table.busy:
            self._move(self._token_id, advance(self.fsm, self.state, self._token_id))
            self._token_id = None

    @property
    def blocked(self) -> bool:
        """True if the sequence must wait until its next grammar state, or the mask of its state, is available."""
        if self.behind:
            return self.table.busy
        if self._fitting is not None:
            return not self._fitting.done()
        future = self.table.reading(self.state)
        return future is not None and not future.done() and self.table.known(self.state) is None

    @property
    def reads_fast(self) -> bool:
        """True if the last mask of this grammar took less than 20 ms, so that a step may wait for the next mask."""
        return self.table.last_read_s < _FAST_S

    def allowed(self) -> AllowedTokens | None:
        """Return the mask of `state`; None while it is being computed. An error of this computation is raised."""
        return self.table.get(self.fsm, self.state)

    def drawable(self) -> AllowedTokens | None:
        """Return the mask under which the next token is sampled; None while it is being computed.

        This is the mask of `state`. With an output budget, the tokens after which the output could not be completed
        within `max_tokens` are removed. If a computation has failed, its error is raised.
        """
        row = self.allowed()
        if row is None or self._budget is None:
            return row
        if self._fitting is None:
            if self._budget.spares(self.state, len(self._since)):
                return row
            since, self._since = self._since, []
            self._fitting = self.table.within(self._budget, since, row, self.state)
        return self._fitting.result() if self._fitting.done() else None

    def row(self, state: int) -> AllowedTokens | None:
        """Return the mask of another state. If it has not been computed, start the computation and return None."""
        self.table.start(self.fsm, state)
        return self.table.known(state)

    def reading(self) -> Future[Any] | None:
        """Return the future of the mask for which the sequence waits; None if no computation was started."""
        return self._fitting or self.table.reading(self.state)

    def walk(self, state: int, token_ids: Iterable[int]) -> list[tuple[int, int]]:
        """Return the grammar states along some tokens, up to the first disallowed token or end token.

        The state of the sequence does not change.

        Args:
            state: State before the first token.
            token_ids: The tokens.

        Returns:
            Pairs (token, state after it), in order. Empty if `behind` is true or another thread may hold the
            automaton's lock.
        """
        path: list[tuple[int, int]] = []
        if self.behind or self.table.busy:
            return path
        for token_id in token_ids:
            state = self.fsm.next_state(state, token_id)
            if state < 0 or state == self.fsm.end_state:
                break
            path.append((token_id, state))
        return path

    def follow(self, path: Iterable[tuple[int, int]]) -> None:
        """Store the expected next tokens and the states after them, so that `accept` can advance at once.

        Args:
            path: Pairs (token, state after it), in order. The first pair with an unknown state (-1) and all later pairs
                are dropped.
        """
        self._path = deque(takewhile(lambda step: step[1] >= 0, path))

    def prefetch(self) -> None:
        """Start to compute the masks of the states that `follow` has stored."""
        for _, state in self._path:
            self.table.start(self.fsm, state)

    def _move(self, token_id: int, state: int) -> None:
        self._fitting = None
        if self._budget is not None:
            self._since.append((token_id, state))
        self.state = state
        self.is_terminal = self.fsm.is_terminal(state)
