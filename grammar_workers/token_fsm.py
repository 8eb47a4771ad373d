"""TokenFSM: byte automaton x vocabulary. Its states are the interned configurations of the machine.

    machine configuration (state, register, frame)  --interned-->  dense integer: the state that everybody else sees
    state --first visit--> mask row (one walk of the prefix tree), interned by content: state -> row number -> words
    (state, token) --first visit--> state (a dozen byte steps and one dictionary look-up)

A regular specification is a finite table; a recursive one grows as generations visit deeper nesting. State numbers are
local to one process: the first visit decides.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np

from grammar_workers import artifact, kernels
from grammar_workers.completion import shortest_bytes
from grammar_workers.errors import LimitExceededError
from grammar_workers.machine import Machine
from grammar_workers.options import Limits
from grammar_workers.string_slice import LONGEST_RUN
from grammar_workers.types import NO_STATE, GrammarKey, MaskRow, StateId, TokenId
from grammar_workers.vocabulary import Vocabulary

Configuration = tuple[int, int, int]
"""(machine state, register, frame), see `kernels`."""

_END: StateId = 0
_INITIAL: StateId = 1
_UNKNOWN_ROW = -1
_ROWS_PER_CHUNK = 64
_STATE_BYTES = 400
"""What one visited state costs beside its row: list slots, a dictionary entry and its transitions."""
_MAX_PAYLOAD_BYTES = 1 << 30


class TokenFSM:
    """The compiled grammar of one specification for one vocabulary. Thread-safe; readers of known states take no lock.

    A mask bit is set exactly when `next_state >= 0`; end tokens are allowed exactly in terminal states and lead to
    `end_state`, whose mask is empty.
    """

    initial_state: StateId = _INITIAL
    end_state: StateId = _END

    def __init__(
        self,
        machine: Machine,
        vocabulary: Vocabulary,
        key: GrammarKey,
        notes: Sequence[str] = (),
        limits: Limits = Limits(),  # noqa: B008 - immutable
    ) -> None:
        self.key = key
        self.notes = list(notes)
        self.vocabulary = vocabulary
        self._machine = machine
        self._limits = limits
        self._lock = threading.RLock()
        self._tables = (machine.states, machine.table, machine.ops, machine.guards, machine.returns)
        self._frames = np.zeros((64, 4), np.int64)
        self._buckets = np.full(128, -1, np.int64)
        # counters[0]: frames in use. Frame 0 is the bottom of every stack.
        self._counters = np.ones(1, np.int64)
        self._scratch = np.zeros(3, np.int64)
        self._scratch_row = np.zeros(vocabulary.mask_words, np.uint32)
        self._path = np.zeros((vocabulary.longest_token + 2, 3), np.int64)
        self._configurations: list[Configuration] = [(kernels.ACCEPT, 0, 0)]
        self._ids: dict[Configuration, StateId] = {}
        self._row_of: list[int] = [0]
        self._next: list[dict[TokenId, StateId]] = [{}]
        self._terminal: list[bool] = [True]
        self._rows: list[MaskRow] = []
        self._row_counts: list[int] = []
        self._row_lowest: list[int] = []
        self._row_ids: dict[int, list[int]] = {}
        # States below this one have had their successors visited.
        self._expanded = _INITIAL
        self._chunk = np.zeros((0, vocabulary.mask_words), np.uint32)
        with self._lock:
            self._intern_row(np.zeros(vocabulary.mask_words, np.uint32))
            self._visit(self._arrive(1))

    # -- what the rest of the system uses ------------------------------------------------------------------------

    def allowed_mask(self, state: StateId) -> MaskRow:
        """Mask row, uint32 [ceil(V / 32)]: bit t % 32 of word t // 32; read-only, valid for the life of the FSM."""
        return self._rows[self._row_number(state)]

    def allowed_tokens(self, state: StateId) -> set[TokenId]:
        """The allowed ids, for people and tests."""
        bits = np.unpackbits(self.allowed_mask(state).view(np.uint8), bitorder="little")
        return set(np.flatnonzero(bits).tolist())

    def count_allowed(self, state: StateId) -> int:
        """How many tokens `state` allows, end tokens included."""
        return self._row_counts[self._row_number(state)]

    def next_state(self, state: StateId, token_id: TokenId) -> StateId:
        """The state after `token_id`; -1 when it is forbidden, out of range, or `state` is -1."""
        if state < 0:
            return NO_STATE
        known = self._next[state].get(token_id)
        return self._advance(state, token_id) if known is None else known

    def is_terminal(self, state: StateId) -> bool:
        """Whether the text may stop here."""
        return state >= 0 and self._terminal[state]

    def only_ends(self, state: StateId) -> bool:
        """Whether nothing may follow: a terminal state whose only tokens are end tokens (or `end_state` itself)."""
        return self.is_terminal(state) and (
            state == _END or self.count_allowed(state) == len(self.vocabulary.eos_token_ids)
        )

    def forced_tokens(self, state: StateId, limit: int = 64) -> list[TokenId]:
        """The run of tokens while exactly one is allowed, at most `limit`; never contains an end token."""
        run: list[TokenId] = []
        while len(run) < limit:
            row = self._row_number(state)
            token = self._row_lowest[row]
            if self._row_counts[row] != 1 or token in self.vocabulary.eos_token_ids:
                break
            run.append(token)
            state = self.next_state(state, token)
        return run

    def shortest_completion(self, state: StateId) -> list[TokenId]:
        """Token ids of a shortest way (in bytes, then in tokens) to a terminal state; empty when `state` is terminal.

        Raises ValueError for state -1.
        """
        if state < 0:
            raise ValueError("state -1 has no completion")
        if self.is_terminal(state):
            return []
        with self._lock:
            text = shortest_bytes(self._machine, self._frames, self._configurations[state], self.vocabulary.spellable)
        tokens = self.vocabulary.encode(text)
        if tokens is None:
            raise AssertionError("the completion cannot be spelled by the vocabulary")
        return tokens

    def materialize(self, max_states: int | None = None) -> int:
        """Visit states breadth first and fill their rows until all are known or `max_states` exist; how many exist."""
        while self._expanded < len(self._configurations):
            state = self._expanded
            self.allowed_mask(state)
            if max_states is not None and len(self._configurations) >= max_states:
                break
            with self._lock:
                for configuration in self._successors(state):
                    self._visit(configuration)
                self._expanded = max(self._expanded, state + 1)
        return len(self._configurations)

    @property
    def state_count(self) -> int:
        """How many states have been visited so far, `end_state` included."""
        return len(self._configurations)

    @property
    def nbytes(self) -> int:
        """Memory held now, in bytes; grows as states are visited."""
        rows = len(self._rows) * self.vocabulary.mask_words * 4
        return self._machine.nbytes + rows + len(self._configurations) * _STATE_BYTES + self._frames.nbytes

    # -- serialisation -------------------------------------------------------------------------------------------

    def to_bytes(self) -> bytes:
        """The automaton in an `artifact` envelope, without visited states: walking a row is cheaper than loading it."""
        return artifact.pack(
            self._machine.to_bytes(), key=self.key, fingerprint=self.vocabulary.fingerprint, notes=self.notes
        )

    @classmethod
    def from_bytes(
        cls,
        data: bytes | memoryview,
        vocabulary: Vocabulary,
        *,
        key: GrammarKey | None = None,
        limits: Limits = Limits(),  # noqa: B008 - immutable
    ) -> TokenFSM:
        """The inverse of `to_bytes`; `key` checks that it is the expected grammar.

        Trusts nothing; raises `artifact.ArtifactError` for anything but an automaton for exactly this vocabulary.
        """
        payload = artifact.unpack(
            data, key=key, fingerprint=vocabulary.fingerprint, max_payload_bytes=_MAX_PAYLOAD_BYTES
        )
        try:
            machine = Machine.from_bytes(payload)
        except (ValueError, EOFError) as error:
            raise artifact.ArtifactError(str(error)) from None
        key = artifact.read_key(data)
        return cls(machine, vocabulary, key, artifact.read_notes(data, key=key), limits)

    # -- growth (under the lock) ---------------------------------------------------------------------------------

    def _row_number(self, state: StateId) -> int:
        if state < 0:
            return 0
        row = self._row_of[state]
        return self._fill_row(state) if row == _UNKNOWN_ROW else row

    def _fill_row(self, state: StateId) -> int:
        with self._lock:
            if self._row_of[state] != _UNKNOWN_ROW:
                return self._row_of[state]
            vocabulary, machine, row = self.vocabulary, self._machine, self._scratch_row
            slices = vocabulary.string_slice
            status = kernels.FRAMES_FULL
            while status == kernels.FRAMES_FULL:
                self._scratch[:] = self._configurations[state]
                status = kernels.fill_row(
                    *self._tables,
                    machine.loops,
                    self._frames,
                    self._buckets,
                    self._counters,
                    vocabulary.tree,
                    vocabulary.same_bytes,
                    slices.body,
                    slices.tails,
                    slices.spans,
                    slices.tokens,
                    slices.lengths,
                    slices.any_character.mask,
                    slices.any_character.rest,
                    slices.any_but_escaped.mask,
                    slices.any_but_escaped.rest,
                    LONGEST_RUN,
                    self._path,
                    self._scratch,
                    row,
                )
                if status == kernels.FRAMES_FULL:
                    self._grow_frames()
            if self._terminal[state]:
                row |= vocabulary.eos_mask
            number = self._intern_row(row)
            self._row_of[state] = number
            return number

    def _intern_row(self, row: MaskRow) -> int:
        """The number of a row with this content. Rows sit in chunks that never move and are published last."""
        count, lowest, digest = kernels.summarize_row(row)
        same_digest = self._row_ids.setdefault(int(digest), [])
        for number in same_digest:
            if np.array_equal(self._rows[number], row):
                return number
        self._check_memory()
        position = len(self._rows) % _ROWS_PER_CHUNK
        if position == 0:
            self._chunk = np.empty((_ROWS_PER_CHUNK, self.vocabulary.mask_words), np.uint32)
        stored = self._chunk[position]
        stored[:] = row
        stored.flags.writeable = False
        self._row_counts.append(count)
        self._row_lowest.append(lowest)
        self._rows.append(stored)
        same_digest.append(len(self._rows) - 1)
        return len(self._rows) - 1

    def _advance(self, state: StateId, token_id: TokenId) -> StateId:
        if not 0 <= token_id < self.vocabulary.size:
            return NO_STATE
        if token_id in self.vocabulary.eos_token_ids:
            return _END if self._terminal[state] and state != _END else NO_STATE
        data, offsets = self.vocabulary.packed
        start, end = int(offsets[token_id]), int(offsets[token_id + 1])
        if start == end or state == _END:
            return NO_STATE
        with self._lock:
            status = kernels.FRAMES_FULL
            while status == kernels.FRAMES_FULL:
                self._scratch[:] = self._configurations[state]
                status = kernels.advance(
                    *self._tables, self._frames, self._buckets, self._counters, self._scratch, data, start, end
                )
                if status == kernels.FRAMES_FULL:
                    self._grow_frames()
            if status < 0:
                return NO_STATE
            target = self._visit(self._scratch)
            self._next[state][token_id] = target
            return target

    def _visit(self, configuration: np.ndarray) -> StateId:
        identity: Configuration = tuple(configuration.tolist())
        known = self._ids.get(identity)
        if known is not None:
            return known
        self._check_memory()
        state = len(self._configurations)
        self._ids[identity] = state
        self._next.append({})
        self._row_of.append(_UNKNOWN_ROW)
        self._terminal.append(self._may_end(identity))
        self._configurations.append(identity)
        return state

    def _arrive(self, state: int) -> np.ndarray:
        """The configuration on entering a machine state with an empty stack."""
        while True:
            reached = kernels.arrive(
                *self._tables[2:],
                self._tables[0],
                self._frames,
                self._buckets,
                self._counters,
                np.int64(state),
                np.int64(0),
                np.int64(0),
            )
            if reached[0] != kernels.FRAMES_FULL:
                return np.array(reached, np.int64)
            self._grow_frames()

    def _may_end(self, configuration: Configuration) -> bool:
        states, _, ops, guards, returns = self._tables
        while True:
            status = kernels.may_end(
                states,
                ops,
                guards,
                returns,
                self._frames,
                self._buckets,
                self._counters,
                *map(np.int64, configuration),
            )
            if status != kernels.FRAMES_FULL:
                return bool(status)
            self._grow_frames()

    def _successors(self, state: StateId) -> np.ndarray:
        data, offsets = self.vocabulary.packed
        capacity = 1024
        while True:
            found = np.empty((capacity, 3), np.int64)
            seen = np.full(capacity * 4, -1, np.int32)
            self._scratch[:] = self._configurations[state]
            many = kernels.successors(
                *self._tables,
                self._frames,
                self._buckets,
                self._counters,
                self._scratch,
                self.allowed_mask(state) & ~self.vocabulary.eos_mask,
                offsets,
                data,
                found,
                seen,
            )
            if many >= 0:
                return found[:many]
            if many == kernels.FRAMES_FULL:
                self._grow_frames()
            else:
                capacity *= 8

    def _grow_frames(self) -> None:
        """Double the frame table. Frame numbers stay; only the hash chains are laid anew."""
        self._check_memory()
        many = len(self._frames)
        frames = np.zeros((many * 2, 4), np.int64)
        buckets = np.full(many * 4, -1, np.int64)
        frames[:many] = self._frames
        kernels.rehash_frames(frames, buckets, many)
        self._frames, self._buckets = frames, buckets

    def _check_memory(self) -> None:
        if self.nbytes > self._limits.max_fsm_bytes:
            raise LimitExceededError(
                f"the automaton holds more than {self._limits.max_fsm_bytes} bytes of states (limit max_fsm_bytes)"
            )
