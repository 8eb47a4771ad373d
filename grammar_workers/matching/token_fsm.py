"""TokenFSM: an automaton that reads tokens, made from an automaton that reads bytes and a vocabulary.

A configuration describes how the byte automaton can continue: mostly by a state, a counter and a stack frame. A state
of the TokenFSM is the number of a configuration. Numbers and masks are assigned when a state is first visited:

    configuration   --> state (an integer)
    state           --> mask of the allowed tokens. Equal masks are stored once. The mask is taken from another state
                        of the same mask equivalence class, or was prefetched, or is computed (see `fill_mask` in
                        `kernels.mask`).
    (state, token)  --> next state (a dozen byte steps and one dictionary look-up)

A regular specification has finitely many states. A recursive one has more states for deeper nesting. State numbers
depend on the order of the first visits, so they are valid in one process only.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from operator import index
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from grammar_workers.artifacts import artifact
from grammar_workers.errors import LimitExceededError
from grammar_workers.matching.cfg_recognizer import CfgRecognizer
from grammar_workers.matching.distinct.recognizer import DistinctRecognizer
from grammar_workers.matching.export import LEAVES, DeviceTables, TableBuilder
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
# Memory of one visited state in addition to its mask and its transitions: list slots and a dictionary entry.
_STATE_BYTES = 320
_TRANSITION_BYTES = 80
_STATES_PER_CHECK = 64
_ROWS_PER_CHECK = 8
_PAUSE_S = 0.0005
_MAX_PAYLOAD_BYTES = 1 << 30
_STATE_BITS = 32
_RECOGNIZERS = {recognizer.KIND: recognizer for recognizer in (PushdownRecognizer, DistinctRecognizer, CfgRecognizer)}


class TokenFSM:
    """Compiled grammar of one specification for one vocabulary: numbered states with a token mask each. Thread-safe.

    A state gets its number when it is first visited. The mask of a state allows a token exactly if `next_state` does
    not return -1 for it. A state is terminal if the output may end there. Only terminal states allow end tokens (tokens
    that end the output), which lead to `end_state`. A method raises LimitExceededError if the visited states exceed a
    limit on work or memory.

    Attributes:
        initial_state: State before the first token.
        end_state: State after an end token. It allows no token.
        vocabulary: The vocabulary.
        key: Grammar key: a hash of the specification, its options and the vocabulary.
        notes: Warnings of the compiler about the specification, as texts.
        unenforced: Keywords of the specification that the masks do not enforce.
        costs: CPU seconds of compilation per source location (JSON Pointer, or line and column). {} for a loaded FSM.
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
        self.vocabulary = vocabulary
        self._recognizer = recognizer
        self._limits = limits
        self._lock = threading.RLock()
        self._scratch_row = np.zeros(vocabulary.mask_words, np.uint32)
        self._configurations: list[Configuration] = [()]
        self._ids: dict[Configuration, StateId] = {}
        self._row_of: list[int] = [0]
        self._row_of_class: dict[int, int] = {}
        # Token and state, as one integer -> next state. A dictionary for each state would be one more object
        # whose creation may start the garbage collector.
        self._next: dict[int, StateId] = {}
        self._terminal: list[bool] = [True]
        self._rows = MaskRows(vocabulary.mask_words, pool_of(vocabulary))
        # The successors of all states below this one have been visited.
        self._expanded = _INITIAL
        with self._lock:
            self._look_up(recognizer.start())

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a TokenFSM is not copied or pickled: share it between threads, or send `to_bytes()` and read it by "
            "`TokenFSM.from_bytes(data, vocabulary)`"
        )

    def allowed_mask(self, state: StateId) -> MaskRow:
        """Return the mask of a state, read-only uint32 [ceil(V / 32)]. No bit is set for state -1.

        Bit t % 32 of word t // 32 is set if token t is allowed. V is the size of the vocabulary. The first call for a
        state computes the mask, unless it was prefetched or a state of the same mask equivalence class has it.
        LimitExceededError is raised if this exceeds a limit on work or memory.
        """
        return self._rows[self._row_number(state)]

    def known_mask(self, state: StateId) -> MaskRow | None:
        """Return the mask of `state` (0 or more) if it is cached, else None. The method never computes or waits."""
        row = self._row_of[state]
        return None if row == _UNKNOWN_ROW else self._rows[row]

    def allowed_tokens(self, state: StateId) -> set[TokenId]:
        """Return the IDs of all tokens that `state` allows, end tokens included. Slow: only for inspection."""
        bits = np.unpackbits(self.allowed_mask(state).view(np.uint8), bitorder="little")
        return set(np.flatnonzero(bits).tolist())

    def count_allowed(self, state: StateId) -> int:
        """Return the number of tokens that `state` allows, end tokens included."""
        return self._rows.counts[self._row_number(state)]

    def next_state(self, state: StateId, token_id: TokenId) -> StateId:
        """Return the state after a token.

        LimitExceededError is raised if the visited states exceed a limit on work or memory.

        Args:
            state: State before the token, or -1.
            token_id: ID of the token. It may be an end token.

        Returns:
            The next state; `end_state` after an end token. -1 if the token is disallowed or not in the vocabulary, or
            if `state` is -1.
        """
        if state < 0:
            return NO_STATE
        # An int32 of NumPy would overflow. The token is above the state, because any integer may be passed as token.
        known = self._next.get(index(token_id) << _STATE_BITS | index(state))
        return self._advance(state, token_id) if known is None else known

    def is_terminal(self, state: StateId) -> bool:
        """Return whether the output may end in this state. False for -1."""
        return state >= 0 and self._terminal[state]

    def only_ends(self, state: StateId) -> bool:
        """Return whether the output must end: `state` allows end tokens only, or is `end_state`. False for -1."""
        return self.is_terminal(state) and (
            state == _END or self.count_allowed(state) == len(self.vocabulary.eos_token_ids)
        )

    def forced_tokens(self, state: StateId, limit: int = 64) -> list[TokenId]:
        """Return the tokens that must follow from a state on, because no other token is allowed in their place.

        Args:
            state: State where the tokens begin.
            limit: Maximum number of returned tokens.

        Returns:
            Token IDs in order. The list ends before the first position where several tokens or an end token are
            allowed. [] if there is no forced token, and for state -1.
        """
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
        """Return the tokens of a completion: a text that completes the output from a state with the fewest bytes.

        Args:
            state: State where the completion begins.
            limit: Maximum number of tokens of the completion.

        Returns:
            Token IDs without an end token. [] if the output may end in `state`.

        Raises:
            ValueError: The state is -1.
            LimitExceededError: The completion has more than `limit` tokens, or the search exceeds a limit on work.
        """
        if state < 0:
            raise ValueError("state -1 has no completion")
        if self.is_terminal(state):
            return []
        try:
            with self._lock if self.remembers_values else contextlib.nullcontext():
                return self._recognizer.shortest(self._configurations[state], limit)
        except TooManyTokensError:
            raise LimitExceededError(f"the shortest way to an end has more than {limit} tokens") from None

    def successors(self, state: StateId, token_ids: Iterable[TokenId]) -> list[Successor]:
        """Return the distinct next states after some tokens. The call gives no numbers to new states.

        Args:
            state: State before the tokens.
            token_ids: IDs of the tokens, each a possible next token. Disallowed tokens are ignored.

        Returns:
            Next states with the tokens that lead to them, ordered by their first tokens in `token_ids`. A state that
            was never visited has None in place of a number. [] for -1 and `end_state`.
        """
        reached: dict[Configuration, list[TokenId]] = {}
        terminal: dict[Configuration, bool] = {self._configurations[_END]: True}
        if state < 0 or state == _END:
            return []
        with self._lock:
            here = self._configurations[state]
            for token in token_ids:
                if not 0 <= token < self.vocabulary.size:  # the kernels check no index
                    continue
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
        """Return the next states of a state for all tokens of the vocabulary. New next states get numbers.

        LimitExceededError is raised if the visited states exceed a limit on work or memory.

        Args:
            state: The state; not -1 and not `end_state`.

        Returns:
            The distinct next states, and for each token the index of its next state in this list, int32 [V].
            Disallowed tokens and end tokens have the index -1.
        """
        row = self.allowed_mask(state)
        with self._lock:
            configurations, places = self._recognizer.targets(self._configurations[state], row)
            return [self._look_up(configuration) for configuration in configurations], places

    def materialize(self, max_states: int | None = None) -> int:
        """Visit states breadth first and compute their masks, until `max_states` or more states are visited.

        LimitExceededError is raised if the visited states exceed a limit on work or memory.

        Args:
            max_states: Number of visited states at which the method stops. None: visit all states. With None, the
                method does not end by itself if there are infinitely many states.

        Returns:
            The number of states that are visited afterwards, `end_state` included.
        """
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
        """Return transitions and masks of the visited states as arrays, for a PyTorch device such as a GPU.

        Args:
            ahead: If fewer states are visited, visit more states, breadth first, up to this number.
            max_states: Maximum number of states in the arrays. States with low numbers come first.
            max_bytes: Maximum memory of the arrays, in bytes.

        Returns:
            The arrays, by state number. None if the initial state does not fit into `max_bytes`, or if states depend
            on earlier values of the output (unique items).

        Raises:
            LimitExceededError: The initial state exceeds a limit on work or memory.
        """
        if self.remembers_values:
            return None
        tokens = self.vocabulary.size
        builder = TableBuilder(tokens, max_bytes)
        builder.add(np.full(tokens, NO_STATE, np.int32), self._row_of[_END], self._rows[self._row_of[_END]])
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
            # Locks are not fair. The pause lets waiting threads acquire the lock.
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
        line = np.array([*following, NO_STATE], np.int32)[places]
        if self._terminal[state]:
            line[list(self.vocabulary.eos_token_ids)] = _END
        return line

    @property
    def _spares(self) -> bool:
        """True if memory is left for states that no output has reached. Half of the memory is for visited states."""
        return self.nbytes < self._limits.max_fsm_bytes // 2

    def prefetch_masks(self, max_places: int = 4000, max_seconds: float = 1.0) -> int:
        """Prefetch masks: compute the masks of configurations that ASCII text can reach, before outputs reach them.

        The masks are stored by mask equivalence class (set of configurations with equal masks). A state that
        `next_state` visits later gets the mask of its class at once. For a state that was visited before, `known_mask`
        still returns None until `allowed_mask` finds the class. Only configurations whose masks the recognizer leaves
        to this method (`PrefetchedMasks.wanted`) become numbered states. LimitExceededError is raised if a limit on
        work or memory is exceeded.

        Args:
            max_places: Maximum number of configurations to visit. If it is 0, no mask is computed.
            max_seconds: CPU time of the thread after which the search ends, in seconds. The search is breadth first, so
                configurations after few characters mostly come first. Another call continues the search.

        Returns:
            The number of distinct masks that exist afterwards.
        """
        deadline = time.thread_time() + max_seconds
        if max_places > 0:
            self._row_number(_INITIAL)
        ahead = self._recognizer.look_ahead(max_places)
        while time.thread_time() < deadline:
            # The lock is released between batches, so that other threads can use the automaton.
            with self._lock:
                found = next(ahead, None)
                if found is None:
                    break
                for row, row_class in zip(found.masks, found.classes, strict=True):
                    self._row_of_class[row_class] = self._rows.add(row)
                if found.wanted is not None:
                    self._row_number(self._look_up(found.wanted))
                self._check_memory()
        return len(self._rows)

    @property
    def state_count(self) -> int:
        """Number of visited states, `end_state` included."""
        return len(self._configurations)

    @property
    def nbytes(self) -> int:
        """Memory in use, in bytes. The value grows with the numbers of visited states and transitions."""
        visited = len(self._configurations) * _STATE_BYTES + len(self._next) * _TRANSITION_BYTES
        return self._recognizer.nbytes + self._rows.nbytes + visited

    @property
    def remembers_values(self) -> bool:
        """True if states depend on earlier values of the output (unique items).

        Then memory grows with every output, and completions may be longer than necessary.
        """
        return self._recognizer.remembers_values

    @property
    def is_worn(self) -> bool:
        """True if the visited states use much memory and are rarely reached again (only with unique items).

        "Much" is an eighth of `Limits.max_fsm_bytes`. New outputs should then use a newly loaded FSM.
        """
        return self.remembers_values and self.nbytes > self._limits.max_fsm_bytes // 8

    def to_bytes(self, details: Mapping[str, Any] = MappingProxyType({})) -> bytes:
        """Return the FSM as bytes (an artifact), without the visited states.

        ArtifactError is raised if the details and the warnings have more than 1 MiB.

        Args:
            details: Additional data to store in the artifact, which JSON can represent.
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
        """Return the FSM that an artifact contains.

        Args:
            data: Bytes from `to_bytes`. They may come from an untrusted source.
            vocabulary: The vocabulary for which the artifact was compiled.
            key: Grammar key that the artifact must have. None: any key.
            limits: Limits on the memory and work of the FSM.

        Raises:
            ArtifactError: The data is malformed, or is for another vocabulary or key.
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

    def renewed(self, *, force: bool = False) -> TokenFSM:
        """Return an FSM of this grammar for new outputs.

        Args:
            force: True: return a new FSM in any case.

        Returns:
            A new FSM without visited states if this one is worn (`is_worn`) or uses half of its memory limit. Otherwise
            this FSM. State numbers of two FSMs are independent.
        """
        if self._spares and not self.is_worn and not force:
            return self
        return TokenFSM.from_bytes(self.to_bytes(), self.vocabulary, key=self.key, limits=self._limits)

    # -- growth (under the lock) ---------------------------------------------------------------------------------

    def _row_number(self, state: StateId) -> int:
        if state < 0:
            return 0
        row = self._row_of[state]
        return self._store_mask(state) if row == _UNKNOWN_ROW else row

    def _store_mask(self, state: StateId) -> int:
        with self._lock:
            if self._row_of[state] != _UNKNOWN_ROW:
                return self._row_of[state]
            if len(self._rows) % _ROWS_PER_CHECK == 0:
                self._check_memory()
            row = self._scratch_row
            row_class = self._recognizer.find_or_fill_mask(self._configurations[state], row)
            number = self._row_of_class.get(row_class)
            if number is None:
                if self._terminal[state]:
                    row |= self.vocabulary.eos_mask
                number = self._rows.add(row)
                if row_class >= 0:
                    self._row_of_class[row_class] = number
            self._row_of[state] = number
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
            self._next[index(token_id) << _STATE_BITS | index(state)] = target
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
        self._row_of.append(self._row_of_class.get(row_class, _UNKNOWN_ROW))
        self._terminal.append(terminal)
        self._configurations.append(configuration)
        return state

    def _check_memory(self) -> None:
        check_bytes(self.nbytes, self._limits)
