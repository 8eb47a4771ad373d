"""What a `TokenFSM` asks of a byte automaton: it knows states and rows, a recognizer knows bytes and stacks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from grammar_workers.errors import LimitExceededError
from grammar_workers.options import Limits
from grammar_workers.types import MaskRow, TokenId

Configuration = tuple[Any, ...]
"""Where a byte automaton stands, in canonical form: equal configurations have equal futures, and hash alike."""

Reached = tuple[Configuration, bool, int]
"""A configuration, whether the text may stop there, and its class.

Configurations of a class have the same row and stop in the same way; -1 where the class is not known.
"""


def check_bytes(held: int, limits: Limits, what: str = "the states take", of: str = "") -> None:
    """Raise LimitExceededError where a TokenFSM, or the part of it that `what` and `of` name, holds too many bytes."""
    if held > limits.max_fsm_bytes:
        raise LimitExceededError(f"{what} more than {limits.max_fsm_bytes} bytes{of} (fixed limit max_fsm_bytes)")


class PrefetchedRows(NamedTuple):
    """Mask rows (writable, end tokens included) and the class of each; valid until the next ones are asked for."""

    rows: Sequence[MaskRow] = ()
    classes: Sequence[int] = ()
    wanted: Configuration | None = None
    """Whose row the TokenFSM has to make by itself before it goes on: it has no class or is long in the making."""


class Recognizer(Protocol):
    """A byte automaton read by the tokens of one vocabulary. The TokenFSM calls it under its lock."""

    KIND: ClassVar[bytes]
    """One byte that tells in an artifact which recognizer reads the payload."""
    remembers_values: ClassVar[bool]
    """Whether configurations hold values that have been read, so that hardly any state comes up again."""

    @property
    def nbytes(self) -> int:
        """Memory held now, in bytes; may grow with every call."""

    @property
    def size(self) -> int:
        """How many states the automaton itself has; does not grow."""

    def start(self) -> Configuration:
        """Where matching begins."""

    def fill_row(self, configuration: Configuration, row: MaskRow) -> int:
        """Set `row` (uint32 [words], writable) to the tokens that may come next, end tokens excluded.

        Returns the class of the configuration, -1 when it has none. When the class was known before, `row` is left as
        it is. Classes are numbered from 0.
        """

    def advance(self, configuration: Configuration, token_id: TokenId) -> Reached | None:
        """What is reached by a token of the vocabulary that is no end token; None when the token is forbidden."""

    def may_end(self, configuration: Configuration) -> bool:
        """Whether the text may stop here."""

    def targets(self, configuration: Configuration, row: MaskRow) -> tuple[list[Configuration], NDArray[np.int32]]:
        """The distinct configurations that the tokens of `row`, the row of `configuration`, lead to.

        And for each token the place of its own among them, or -1: int32 [V]. End tokens lead nowhere.
        """

    def look_ahead(self, max_places: int) -> Iterator[PrefetchedRows]:
        """Make the rows of all places between ASCII characters, a few with each step of the iterator.

        Breadth first, but states that have not been met before others. Looks at `max_places` at most, and each step is
        a call under the lock. Places that must have the same row are looked at once, so that this mostly ends where
        there is no end of places, too. What follows them may differ: it is looked at where the callers of rules go on,
        and behind each name of an object.
        """

    def shortest(self, configuration: Configuration, limit: int) -> list[TokenId]:
        """Token ids of a shortest way (in bytes, then in tokens) to a configuration where the text may stop.

        Raises TooManyTokensError for more than `limit`, LimitExceededError where it takes too long to find. Takes no
        lock and needs none: it reads only what never changes.
        """

    def to_bytes(self) -> bytes:
        """The automaton without anything visited, for the class method `from_bytes` of the same kind."""
