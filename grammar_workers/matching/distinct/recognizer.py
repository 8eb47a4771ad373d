"""The recognizer over a `PushdownAutomaton` in which some values must differ from earlier ones (`DISTINCT_SITE`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from grammar_workers.budget import Budget
from grammar_workers.matching.distinct.histories import Histories, levels_of
from grammar_workers.matching.distinct.rows import ForbiddenTokens
from grammar_workers.matching.distinct.steps import Place, Steps
from grammar_workers.matching.distinct.ways import Ways
from grammar_workers.matching.pushdown_recognizer import PushdownRecognizer
from grammar_workers.matching.recognizer import Configuration, PrefetchedRows, Reached, check_bytes
from grammar_workers.matching.spelling import spell
from grammar_workers.options import Limits
from grammar_workers.pushdown import instructions as code
from grammar_workers.pushdown.automaton import PushdownAutomaton
from grammar_workers.types import MaskRow, TokenId
from grammar_workers.vocabulary.vocabulary import Vocabulary

_LEVEL_BYTES = 600
_QUESTIONS_AT_MOST = 80
"""A query may take this part of `max_steps`, by default 50,000 steps, about a quarter of a second."""


class DistinctRecognizer:
    """A `Recognizer` whose configurations are those of the `PushdownRecognizer` with a history (`histories`).

    Rows are those of the underlying automaton less the tokens that lead to a repeated value or to where only repeated
    ones are left. Configurations hold what has been read, so there is no end of them: `nbytes` grows with each token of
    a value that later ones must differ from. Ways to an end repeat no value; they are short, not always the shortest.
    Each query (a row, a step, a way to an end) has a work budget of its own, and raises LimitExceededError beyond it.
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
        self._place_bytes = 0
        # Classes of rows, and of those that earlier parts within a single token do not restrict.
        self._noted: set[int] = set()
        self._unrestricted: set[int] = set()

    @classmethod
    def from_bytes(cls, data: bytes, vocabulary: Vocabulary, limits: Limits) -> DistinctRecognizer:
        """The inverse of `to_bytes`. Trusts nothing: raises ValueError for malformed tables."""
        return cls(PushdownAutomaton.from_bytes(data), vocabulary, limits)

    def to_bytes(self) -> bytes:
        return self._inner.to_bytes()

    @property
    def nbytes(self) -> int:
        return self._inner.nbytes + self._histories.nbytes + self._place_bytes

    @property
    def size(self) -> int:
        return self._inner.size

    def start(self) -> Configuration:
        state, counter, frame = self._inner.start()
        return state, counter, frame, None

    def fill_row(self, configuration: Configuration, row: MaskRow) -> int:
        state, counter, frame, history = configuration
        if history is not None:
            self._inner.fill_whole_row((state, counter, frame), row)
            self._clear_forbidden(configuration, row)
            return -1
        row_class = self._inner.fill_row((state, counter, frame), row)
        # Where there is no history, what is forbidden depends on what the row depends on.
        if row_class in self._unrestricted:
            return row_class
        if row_class in self._noted:  # so it has not been filled again
            self._inner.fill_whole_row((state, counter, frame), row)
        if row_class >= 0:
            self._noted.add(row_class)
        if self._clear_forbidden(configuration, row):
            return -1
        if row_class >= 0:
            self._unrestricted.add(row_class)
        return row_class

    def _clear_forbidden(self, place: Place, row: MaskRow) -> bool:
        self._budget.steps = 0
        return self._forbidden.clear(place, row)

    def advance(self, configuration: Configuration, token_id: TokenId) -> Reached | None:
        self._budget.steps = 0
        reached = self._read(configuration, token_id)
        if reached is None:
            return None
        if reached[3]:
            self._place_bytes += sum(_LEVEL_BYTES + len(level.position[1]) for level in levels_of(reached[3]))
            check_bytes(self.nbytes, self._limits, "the automaton holds", " of values that others must differ from")
        return reached, self.may_end(reached), -1

    def _read(self, place: Place, token_id: TokenId) -> Place | None:
        if not place[3] and (named := self._inner.named(place[:3], token_id)) is not None:
            state, counter, frame = named
            return state, counter, frame, None
        data = self._vocabulary.read_bytes(token_id)
        here = self._within_string(place, token_id, data)
        if here is None:
            here = place if data else None
            for byte in data:
                here = self._steps.step(here, byte) if here is not None else None
        if here is None or not self._ways.is_alive(here):
            return None
        if here[3]:
            return here
        state, counter, frame = self._inner.next_token(here[:3])
        return state, counter, frame, None

    def _within_string(self, place: Place, token_id: TokenId, data: bytes) -> Place | None:
        """The place after a token that goes on with a string, as fast as in other automata; None for all others."""
        if not place[3] or not data or b'"' in data or b"\\" in data:
            return None
        history = self._histories.read_text(place[3], data)
        reached = None if history is None else self._inner.advance(place[:3], token_id)
        if reached is None:
            return None
        state, counter, frame = reached[0]
        # Another frame tells that rules have been called or have returned, and so parts may have begun or ended.
        return (state, counter, frame, history) if frame == place[2] else None

    def may_end(self, configuration: Configuration) -> bool:
        return self._inner.may_end(configuration[:3])

    def targets(self, configuration: Configuration, row: MaskRow) -> tuple[list[Configuration], NDArray[np.int32]]:
        self._budget.steps = 0
        numbers: dict[Configuration, int] = {}
        places = np.full(self._vocabulary.size, -1, np.int32)
        for token in np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist():
            reached = self._read(configuration, token)
            if reached is not None:
                places[token] = numbers.setdefault(reached, len(numbers))
        return list(numbers), places

    def look_ahead(self, max_places: int) -> Iterator[PrefetchedRows]:
        # What may come depends on what has been written.
        return iter(())

    def shortest(self, configuration: Configuration, limit: int) -> list[TokenId]:
        self._budget.steps = 0
        text = self._ways.to_end(configuration, limit * self._vocabulary.longest_token)
        return spell(text, self._vocabulary, limit)


def _begin_late(pushdown: PushdownAutomaton) -> bool:
    """Whether a first part may begin only once a rule has returned, such as that of white space behind the bracket."""
    instructions = pushdown.instructions
    calls = (instructions[:, code.INSTRUCTION_MOVE] == code.CALL) & np.isin(
        instructions[:, code.INSTRUCTION_SITE], pushdown.distinct[:, code.DISTINCT_SITE]
    )
    behind = pushdown.returns[pushdown.returns >= 0]
    return bool(calls[pushdown.states[behind, code.STATE_INSTRUCTION]].any())
