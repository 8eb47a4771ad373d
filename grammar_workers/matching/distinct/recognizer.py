"""The recognizer of pushdown automata with unique items: reads tokens, and computes masks of allowed tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from grammar_workers.budget import Budget
from grammar_workers.matching.distinct.histories import Histories, levels_of
from grammar_workers.matching.distinct.rows import ForbiddenTokens
from grammar_workers.matching.distinct.steps import HistoryConfiguration, Steps
from grammar_workers.matching.distinct.ways import Ways
from grammar_workers.matching.pushdown_recognizer import PushdownRecognizer
from grammar_workers.matching.recognizer import Configuration, PrefetchedMasks, Reached, check_bytes
from grammar_workers.matching.spelling import spell
from grammar_workers.options import Limits
from grammar_workers.pushdown import instructions as code
from grammar_workers.pushdown.automaton import PushdownAutomaton
from grammar_workers.types import MaskRow, TokenId
from grammar_workers.vocabulary.vocabulary import Vocabulary

_LEVEL_BYTES = 600
# One query may use `max_steps` divided by this number: by default 50,000 steps, about a quarter of a second.
_QUESTIONS_AT_MOST = 80


class DistinctRecognizer:
    """A `Recognizer` (reads tokens and computes masks) of a pushdown automaton with unique items.

    A configuration is (state, counter, frame, history). `frame` is the number of the return stack. The history has the
    seen values of the open arrays and objects (see `histories`). The number of configurations is unlimited. `nbytes`
    grows with each token of a value that later values must not repeat.

    A mask does not allow tokens that repeat a seen value, or after which every completion (text up to the end of the
    output) repeats a seen value. Completions repeat no value. They are short, but not always the shortest ones. Each
    query (a mask, a token, a completion) has a work budget. If it is exhausted, LimitExceededError is raised.

    Args:
        pushdown: The automaton.
        vocabulary: Tokens of the model.
        limits: `max_steps` / 80 is the work budget of a query; `max_fsm_bytes` limits the memory.

    Attributes:
        KIND: Byte that selects this class in an artifact.
        remembers_values: True: configurations depend on seen values.
    """

    KIND: ClassVar[bytes] = b"D"
    remembers_values: ClassVar[bool] = True

    def __init__(self, pushdown: PushdownAutomaton, vocabulary: Vocabulary, limits: Limits) -> None:
        self._inner = PushdownRecognizer(pushdown, vocabulary, limits)
        self._vocabulary = vocabulary
        self._limits = limits
        self._budget = Budget(
            limits, limits.max_steps // _QUESTIONS_AT_MOST, "a mask row or step beside earlier values"
        )
        self._histories = Histories(self._budget)
        self._steps = Steps(pushdown, self._inner, self._histories, self._budget)
        self._ways = Ways(self._steps, self._histories, self._inner, vocabulary.spellable)
        self._forbidden = ForbiddenTokens(
            vocabulary, self._steps, self._histories, self._ways, late=_begin_late(pushdown)
        )
        self._configuration_bytes = 0
        # Classes whose mask has been computed, and classes whose mask no seen value within a token restricts.
        self._noted: set[int] = set()
        self._unrestricted: set[int] = set()

    @classmethod
    def from_bytes(cls, data: bytes, vocabulary: Vocabulary, limits: Limits) -> DistinctRecognizer:
        """Return the recognizer of a serialized automaton, which may come from an untrusted source.

        Malformed tables raise ValueError.

        Args:
            data: Bytes from `to_bytes`.
            vocabulary: Tokens of the model.
            limits: `max_steps` / 80 is the work budget of a query; `max_fsm_bytes` limits the memory.
        """
        return cls(PushdownAutomaton.from_bytes(data), vocabulary, limits)

    def to_bytes(self) -> bytes:
        """Return the pushdown automaton as bytes, for `from_bytes`. They do not contain seen values."""
        return self._inner.to_bytes()

    @property
    def nbytes(self) -> int:
        """Approximate memory of the automaton, the seen values and the configurations, in bytes."""
        return self._inner.nbytes + self._histories.nbytes + self._configuration_bytes

    @property
    def size(self) -> int:
        """Number of states of the pushdown automaton."""
        return self._inner.size

    def start(self) -> Configuration:
        """Return the configuration in which matching begins: (state, counter, frame, None). None: no seen values."""
        state, counter, frame = self._inner.start()
        return state, counter, frame, None

    def find_or_fill_mask(self, configuration: Configuration, row: MaskRow) -> int:
        """Compute the mask (bit set of allowed tokens) of a configuration.

        An exhausted work budget raises LimitExceededError.

        Args:
            configuration: (state, counter, frame, history).
            row: Receives the mask without end tokens, uint32 [words]. It is unchanged if the returned class was
                returned before.

        Returns:
            The mask equivalence class (configurations of a class have equal masks). -1 if there is none, for example
            because of seen values.
        """
        self._budget.steps = 0
        state, counter, frame, history = configuration
        if history is not None:
            self._inner.fill_mask((state, counter, frame), row)
            self._forbidden.clear(configuration, row)
            return -1
        row_class = self._inner.find_or_fill_mask((state, counter, frame), row)
        # Without a history, the disallowed tokens depend only on the class of the mask.
        if row_class in self._unrestricted:
            return row_class
        if row_class in self._noted:  # `find_or_fill_mask` leaves the mask of a known class unchanged
            self._inner.fill_mask((state, counter, frame), row)
        if row_class >= 0:
            self._noted.add(row_class)
        if self._forbidden.clear(configuration, row):
            return -1
        if row_class >= 0:
            self._unrestricted.add(row_class)
        return row_class

    def advance(self, configuration: Configuration, token_id: TokenId) -> Reached | None:
        """Return the configuration after a token.

        An exhausted work budget or memory limit raises LimitExceededError.

        Args:
            configuration: (state, counter, frame, history).
            token_id: A token other than an end token.

        Returns:
            (configuration, True if the output may end there, -1). None if the token is not allowed. -1 means that the
            mask equivalence class is not known. So at the first visit of each state, `find_or_fill_mask` must be called
            (by the native engine on a mask thread).
        """
        self._budget.steps = 0
        reached = self._read(configuration, token_id)
        if reached is None:
            return None
        if reached[3]:
            self._configuration_bytes += sum(_LEVEL_BYTES + len(level.position[1]) for level in levels_of(reached[3]))
            check_bytes(self.nbytes, self._limits, "the automaton holds", " of values that others must differ from")
        return reached, self.may_end(reached), -1

    def _read(self, configuration: HistoryConfiguration, token_id: TokenId) -> HistoryConfiguration | None:
        if not configuration[3] and (named := self._inner.named(configuration[:3], token_id)) is not None:
            state, counter, frame = named
            return state, counter, frame, None
        data = self._vocabulary.read_bytes(token_id)
        here = self._within_string(configuration, token_id, data)
        if here is None:
            here = configuration if data else None
            for byte in data:
                here = self._steps.step(here, byte) if here is not None else None
        if here is None or not self._ways.is_alive(here):
            return None
        if here[3]:
            return here
        state, counter, frame = self._inner.next_token(here[:3])
        return state, counter, frame, None

    def _within_string(self, here: HistoryConfiguration, token_id: TokenId, data: bytes) -> HistoryConfiguration | None:
        """Return the configuration after a token that continues a string, by a fast path; None for other tokens."""
        if not here[3] or not data or b'"' in data or b"\\" in data:
            return None
        history = self._histories.read_text(here[3], data)
        reached = None if history is None else self._inner.advance(here[:3], token_id)
        if reached is None:
            return None
        state, counter, frame = reached[0]
        # A different frame means that rules were called or have returned, so parts may have begun or ended.
        return (state, counter, frame, history) if frame == here[2] else None

    def may_end(self, configuration: Configuration) -> bool:
        """Return whether the output may end in a configuration (state, counter, frame, history)."""
        return self._inner.may_end(configuration[:3])

    def targets(self, configuration: Configuration, row: MaskRow) -> tuple[list[Configuration], NDArray[np.int32]]:
        """Compute the configurations after all tokens of a mask.

        All tokens share one work budget. If it is exhausted, LimitExceededError is raised.

        Args:
            configuration: (state, counter, frame, history).
            row: The mask of the configuration, uint32 [words].

        Returns:
            The distinct configurations, and for each token the index of its configuration in this list, int32 [V]. The
            index is -1 for tokens that are not allowed and for end tokens.
        """
        self._budget.steps = 0
        numbers: dict[Configuration, int] = {}
        places = np.full(self._vocabulary.size, -1, np.int32)
        for token in np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist():
            reached = self._read(configuration, token)
            if reached is not None:
                places[token] = numbers.setdefault(reached, len(numbers))
        return list(numbers), places

    def look_ahead(self, max_places: int) -> Iterator[PrefetchedMasks]:
        """Return an empty iterator, because masks depend on the output so far and cannot be prefetched."""
        return iter(())

    def shortest(self, configuration: Configuration, limit: int) -> list[TokenId]:
        """Return the tokens of a short completion (text up to the end of the output) that repeats no seen value.

        Equal configurations have equal completions. A completion with more than `limit` tokens raises
        TooManyTokensError. If no completion is found within the work budget, LimitExceededError is raised.

        Args:
            configuration: (state, counter, frame, history).
            limit: Maximum number of tokens.

        Returns:
            Token IDs. Empty if the output may end in the configuration.
        """
        self._budget.steps = 0
        # Without cached decisions, so that a configuration always has the same completion.
        text = self._ways.uncached().to_end(configuration, limit * self._vocabulary.longest_token)
        return spell(text, self._vocabulary, limit)


def _begin_late(pushdown: PushdownAutomaton) -> bool:
    """Return whether a first part may begin only after another rule, such as white space, has returned."""
    instructions = pushdown.instructions
    calls = (instructions[:, code.INSTRUCTION_MOVE] == code.CALL) & np.isin(
        instructions[:, code.INSTRUCTION_SITE], pushdown.distinct[:, code.DISTINCT_SITE]
    )
    behind = pushdown.returns[pushdown.returns >= 0]
    return bool(calls[pushdown.states[behind, code.STATE_INSTRUCTION]].any())
