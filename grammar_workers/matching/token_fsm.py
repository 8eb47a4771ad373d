"""TokenFSM: byte automaton x vocabulary. Its states are the interned configurations of a recognizer.

    configuration (mostly: state, counter, frame)  --interned-->  dense integer: the state everybody else sees
    state --first visit--> mask row (one walk of the prefix tree), interned by content: state -> row number -> words
    (state, token) --first visit--> state (a dozen byte steps and one dictionary look-up)

A regular specification is a finite table; a recursive one grows as generations visit deeper nesting. State numbers are
local to one process: the first visit decides.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from grammar_workers.artifacts import artifact
from grammar_workers.errors import LimitExceededError
from grammar_workers.matching.cfg_recognizer import CfgRecognizer
from grammar_workers.matching.distinct.recognizer import DistinctRecognizer
from grammar_workers.matching.export import LEAVES, DeviceTables, TableBuilder, line_of, no_tokens
from grammar_workers.matching.mask_store import MaskRows, pool_of
from grammar_workers.matching.pushdown_recognizer import PushdownRecognizer
from grammar_workers.matching.recognizer import Configuration, Recognizer, check_bytes
from grammar_workers.matching.spelling import TooManyTokensError
from grammar_workers.options import Limits
from grammar_workers.types import NO_STATE, GrammarKey, MaskRow, StateId, Successor, TokenId, UnenforcedKeyword
from grammar_workers.vocabulary.vocabulary import Vocabulary

MOST_COMPLETION_TOKENS = 1 << 16
_END: StateId = 0
_INITIAL: StateId = 1
_UNKNOWN_ROW = -1
_STATE_BYTES = 400
"""What one visited state costs beside its row: list slots, a dictionary entry and its transitions."""
_STATES_PER_CHECK = 64
_ROWS_PER_CHECK = 8
_PAUSE_S = 0.0005
_MAX_PAYLOAD_BYTES = 1 << 30
_RECOGNIZERS = {recognizer.KIND: recognizer for recognizer in (PushdownRecognizer, DistinctRecognizer, CfgRecognizer)}


class TokenFSM:
    """The compiled grammar of one specification for one vocabulary. Thread-safe; readers of known states take no lock.

    A mask bit is set exactly when `next_state >= 0`; end tokens are allowed exactly in terminal states and lead to
    `end_state`, whose mask is empty.
    """

    initial_state: StateId = _INITIAL
    end_state: StateId = _END

    def __init__(
        self,
        recognizer: Recognizer,
        vocabulary: Vocabulary,
        key: GrammarKey,
        notes: Sequence[str] = (),
        limits: Limits = Limits(),  # noqa: B008 - immutable
        *,
        unenforced: Sequence[UnenforcedKeyword] = (),
    ) -> None:
        self.key = key
        self.notes = list(notes)
        self.unenforced = list(unenforced)
        self.costs: dict[str, float] = {}
        """CPU seconds that compiling took at each place (pointer, or line and column); {} where it was loaded."""
        self.vocabulary = vocabulary
        self._recognizer = recognizer
        self._limits = limits
        self._lock = threading.RLock()
        self._scratch_row = np.zeros(vocabulary.mask_words, np.uint32)
        self._configurations: list[Configuration] = [()]
        self._ids: dict[Configuration, StateId] = {}
        self._row_of: list[int] = [0]
        self._row_of_class: dict[int, int] = {}
        self._next: list[dict[TokenId, StateId]] = [{}]
        self._terminal: list[bool] = [True]
        self._rows = MaskRows(vocabulary.mask_words, pool_of(vocabulary))
        # States below this one have had their successors visited.
        self._expanded = _INITIAL
        with self._lock:
            self._look_up(recognizer.start())

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a TokenFSM is not copied or pickled: share it between threads, or send `to_bytes()` and read it by "
            "`TokenFSM.from_bytes(data, vocabulary)`"
        )

    # -- what the rest of the system uses ------------------------------------------------------------------------

    def allowed_mask(self, state: StateId) -> MaskRow:
        """Mask row, uint32 [ceil(V / 32)]: bit t % 32 of word t // 32; read-only, valid for the life of the FSM."""
        return self._rows[self._row_number(state)]

    def known_mask(self, state: StateId) -> MaskRow | None:
        """`allowed_mask` where the row is there already; takes no lock."""
        row = self._row_of[state]
        return None if row == _UNKNOWN_ROW else self._rows[row]

    def allowed_tokens(self, state: StateId) -> set[TokenId]:
        """The allowed ids, for people and tests."""
        bits = np.unpackbits(self.allowed_mask(state).view(np.uint8), bitorder="little")
        return set(np.flatnonzero(bits).tolist())

    def count_allowed(self, state: StateId) -> int:
        """How many tokens `state` allows, end tokens included."""
        return self._rows.counts[self._row_number(state)]

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
            token = self._rows.lowest[row]
            if self._rows.counts[row] != 1 or token in self.vocabulary.eos_token_ids:
                break
            run.append(token)
            state = self.next_state(state, token)
        return run

    def shortest_completion(self, state: StateId, limit: int = MOST_COMPLETION_TOKENS) -> list[TokenId]:
        """Token ids of a shortest way (in bytes, then in tokens) to a terminal state; empty when `state` is terminal.

        Raises ValueError for state -1, and LimitExceededError where the way has more than `limit` tokens or takes too
        long to find.
        """
        if state < 0:
            raise ValueError("state -1 has no completion")
        if self.is_terminal(state):
            return []
        try:
            return self._recognizer.shortest(self._configurations[state], limit)
        except TooManyTokensError:
            raise LimitExceededError(f"the shortest way to an end has more than {limit} tokens") from None

    def successors(self, state: StateId, token_ids: Iterable[TokenId]) -> list[Successor]:
        """Where the allowed ones of `token_ids` lead from `state`, in the order of their first tokens.

        A look without visiting, for people: it costs a step for each token and the FSM does not grow.
        """
        reached: dict[Configuration, list[TokenId]] = {}
        terminal: dict[Configuration, bool] = {self._configurations[_END]: True}
        if state < 0 or state == _END:
            return []
        with self._lock:
            here = self._configurations[state]
            for token in token_ids:
                if token in self.vocabulary.eos_token_ids:
                    configuration = self._configurations[_END] if self._terminal[state] else None
                else:
                    step = self._recognizer.advance(here, token)
                    configuration = step and step[0]
                    terminal.update([step[:2]] if step else [])
                if configuration is not None:
                    reached.setdefault(configuration, []).append(token)
            return [
                Successor(_END, True, tokens)
                if configuration == self._configurations[_END]
                else Successor(self._ids.get(configuration), terminal[configuration], tokens)
                for configuration, tokens in reached.items()
            ]

    def targets(self, state: StateId) -> tuple[list[StateId], NDArray[np.int32]]:
        """The distinct states that the allowed tokens of `state` lead to, end tokens aside, all of which are visited.

        And for each token the place of its own among them, or -1: int32 [V]. Costs a walk of the row's tokens.
        """
        row = self.allowed_mask(state)
        with self._lock:
            configurations, places = self._recognizer.targets(self._configurations[state], row)
            return [self._look_up(configuration) for configuration in configurations], places

    def materialize(self, max_states: int | None = None) -> int:
        """Visit states breadth first and fill their rows until all are known or `max_states` exist; how many exist."""
        while self._expanded < len(self._configurations):
            state = self._expanded
            self.allowed_mask(state)
            if max_states is not None and len(self._configurations) >= max_states:
                break
            self.targets(state)
            self._expanded = max(self._expanded, state + 1)
        return len(self._configurations)

    def device_tables(
        self, ahead: int = 512, max_states: int = 1 << 13, max_bytes: int = 16 << 20
    ) -> DeviceTables | None:
        """The states visited so far as arrays, in the order of their numbers, as far as both limits go.

        If there are fewer than `ahead`, visits others breadth first: a walk of the vocabulary for each. None where not
        even the initial state fits, or values are remembered. May raise LimitExceededError before that state is known.
        """
        if self.remembers_values:
            return None
        tokens = self.vocabulary.size
        builder = TableBuilder(tokens, max_bytes)
        builder.add(no_tokens(tokens), self._row_of[_END], self._rows[self._row_of[_END]])
        state = _INITIAL
        while state < min(len(self._configurations), max_states):
            if state > _INITIAL and self._row_of[state] == _UNKNOWN_ROW and not self._spares:
                break
            try:
                line = self._device_line(state, ahead)
            except LimitExceededError:
                if state == _INITIAL:
                    raise
                break
            number = self._row_of[state]
            if not builder.add(line, number, self._rows[number]):
                break
            state += 1
            # Locks are not fair: whoever waits for this one gets it while nobody else asks.
            time.sleep(_PAUSE_S)
        return None if state == _INITIAL else builder.finish()

    def _device_line(self, state: StateId, ahead: int) -> NDArray[np.int32]:
        row = self.allowed_mask(state)
        with self._lock:
            configurations, places = self._recognizer.targets(self._configurations[state], row)
            spares = self._spares
            following = [
                self._look_up(one) if spares and len(self._configurations) < ahead else self._ids.get(one, LEAVES)
                for one in configurations
            ]
        line = line_of(places, following)
        if self._terminal[state]:
            line[list(self.vocabulary.eos_token_ids)] = _END
        return line

    @property
    def _spares(self) -> bool:
        """Whether memory is left for states that nobody has asked for: half of it is for those that requests visit."""
        return self.nbytes < self._limits.max_fsm_bytes // 2

    def fill_rows(self, max_places: int = 4000) -> int:
        """Make the mask rows of all places between ASCII characters ahead; how many rows exist now.

        Looks at `max_places` at most, see `Recognizer.look_ahead`.
        """
        if max_places > 0:
            self._row_number(_INITIAL)
        ahead = self._recognizer.look_ahead(max_places)
        while True:
            # Others may walk in between.
            with self._lock:
                found = next(ahead, None)
                if found is None:
                    return len(self._rows)
                for row, row_class in zip(found.rows, found.classes, strict=True):
                    self._row_of_class[row_class] = self._rows.add(row)
                if found.wanted is not None:
                    self._row_number(self._look_up(found.wanted))
                self._check_memory()

    @property
    def state_count(self) -> int:
        """How many states have been visited so far, `end_state` included."""
        return len(self._configurations)

    @property
    def nbytes(self) -> int:
        """Memory held now, in bytes; grows as states are visited."""
        return self._recognizer.nbytes + self._rows.nbytes + len(self._configurations) * _STATE_BYTES

    @property
    def remembers_values(self) -> bool:
        """Whether states depend on values that have been read: memory grows with outputs, completions may be longer."""
        return self._recognizer.remembers_values

    @property
    def is_worn(self) -> bool:
        """Whether states that hardly come up again hold so much memory that new outputs should have a fresh FSM."""
        return self.remembers_values and self.nbytes > self._limits.max_fsm_bytes // 8

    # -- serialisation -------------------------------------------------------------------------------------------

    def to_bytes(self, details: Mapping[str, Any] = MappingProxyType({})) -> bytes:
        """The automaton in an `artifact` envelope, without visited states (docs/decisions/0011 says why).

        `details` are plain data that `artifact.Envelope.details` gives back, with the number of "automaton_states".
        """
        payload = self._recognizer.KIND + self._recognizer.to_bytes()
        details = {**details, "automaton_states": self._recognizer.size, "unenforced": self.unenforced}
        return artifact.pack(
            payload, key=self.key, fingerprint=self.vocabulary.fingerprint, notes=self.notes, details=details
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
        envelope = artifact.verify(data, key=key, fingerprint=vocabulary.fingerprint)
        payload, details = envelope.payload(_MAX_PAYLOAD_BYTES), envelope.details()
        if payload[:1] not in _RECOGNIZERS:
            raise artifact.ArtifactError("kind of automaton")
        try:
            recognizer = _RECOGNIZERS[payload[:1]].from_bytes(payload[1:], vocabulary, limits)
        except (ValueError, EOFError) as error:
            raise artifact.ArtifactError(str(error)) from None
        return cls(recognizer, vocabulary, envelope.key, details["notes"], limits, unenforced=details["unenforced"])

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
            number = self._make_row(self._configurations[state], self._terminal[state])
            self._row_of[state] = number
            return number

    def _make_row(self, configuration: Configuration, terminal: bool) -> int:
        """The number of the row of a configuration."""
        if len(self._rows) % _ROWS_PER_CHECK == 0:
            self._check_memory()
        row = self._scratch_row
        row_class = self._recognizer.fill_row(configuration, row)
        known = self._row_of_class.get(row_class)
        if known is not None:
            return known
        if terminal:
            row |= self.vocabulary.eos_mask
        number = self._rows.add(row)
        if row_class >= 0:
            self._row_of_class[row_class] = number
        return number

    def _advance(self, state: StateId, token_id: TokenId) -> StateId:
        if not 0 <= token_id < self.vocabulary.size:
            return NO_STATE
        if token_id in self.vocabulary.eos_token_ids:
            return _END if self._terminal[state] and state != _END else NO_STATE
        if state == _END:
            return NO_STATE
        with self._lock:
            reached = self._recognizer.advance(self._configurations[state], token_id)
            if reached is None:
                return NO_STATE
            target = self._visit(*reached)
            self._next[state][token_id] = target
            return target

    def _look_up(self, configuration: Configuration) -> StateId:
        known = self._ids.get(configuration)
        return self._visit(configuration, self._recognizer.may_end(configuration)) if known is None else known

    def _visit(self, configuration: Configuration, terminal: bool, row_class: int = -1) -> StateId:
        known = self._ids.get(configuration)
        if known is not None:
            return known
        state = len(self._configurations)
        if state % _STATES_PER_CHECK == 0:
            self._check_memory()
        self._ids[configuration] = state
        self._next.append({})
        self._row_of.append(self._row_of_class.get(row_class, _UNKNOWN_ROW))
        self._terminal.append(terminal)
        self._configurations.append(configuration)
        return state

    def _check_memory(self) -> None:
        check_bytes(self.nbytes, self._limits)
