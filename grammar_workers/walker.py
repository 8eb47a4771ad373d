"""What a `TokenFSM` asks of a byte automaton: it knows states and rows, a walker knows bytes and stacks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from grammar_workers.types import MaskRow, TokenId

Configuration = tuple[int, ...]
"""Where a byte automaton stands, in canonical form: equal configurations have equal futures, and hash alike."""

Reached = tuple[Configuration, bool, int]
"""A configuration, whether the text may stop there, and its class (see `Walker.find_class`)."""


class Walker(Protocol):
    """A byte automaton read by the tokens of one vocabulary. The TokenFSM calls it under its lock."""

    KIND: ClassVar[bytes]
    """One byte that tells in an artifact which walker reads the payload."""

    @property
    def nbytes(self) -> int:
        """Memory held now, in bytes; may grow with every call."""

    @property
    def size(self) -> int:
        """How many states the automaton itself has; does not grow."""

    def start(self) -> Configuration:
        """Where matching begins."""

    def find_class(self, configuration: Configuration) -> int:
        """The class of configurations that have the same row and stop in the same way; -1 when it is not known."""

    def fill_row(self, configuration: Configuration, row: MaskRow) -> int:
        """Set `row` (uint32 [words], writable) to the tokens that may come next, end tokens excluded.

        Returns the class of the configuration, -1 when it has none. When the class was known before, `row` is left as
        it is. Classes are numbered from 0.
        """

    def advance(self, configuration: Configuration, token_id: TokenId) -> Reached | None:
        """What is reached by a token of the vocabulary that is no end token; None when the token is forbidden."""

    def may_end(self, configuration: Configuration) -> bool:
        """Whether the text may stop here."""

    def successors(self, configuration: Configuration, row: MaskRow) -> Iterable[Configuration]:
        """The distinct configurations that the tokens of `row`, the row of `configuration`, lead to."""

    def targets(self, configuration: Configuration, row: MaskRow) -> tuple[list[Configuration], NDArray[np.int32]]:
        """The distinct configurations that the tokens of `row`, the row of `configuration`, lead to.

        And for each token the place of its own among them, or -1: int32 [V]. End tokens lead nowhere.
        """

    def after_ascii(self, configuration: Configuration, callers: set[int]) -> Iterable[Reached]:
        """The distinct configurations that an ASCII character, or a token without bytes, leads to.

        And where the callers of the rules that these are in go on, so that nobody has to walk through a rule again to
        see what follows it. `callers` holds those that have been looked at and grows.
        """

    def beside(self, configuration: Configuration, row_class: int) -> Configuration | None:
        """The same place after another choice than the one that led to `configuration`, which is of `row_class` >= 0.

        Such as behind another property of the same object; a guess, its row may be empty. Goes on from what it returns
        and ends with None.
        """

    def shortest(self, configuration: Configuration) -> list[TokenId]:
        """Token ids of a shortest way (in bytes, then in tokens) to a configuration where the text may stop."""

    def to_bytes(self) -> bytes:
        """The automaton without anything visited, for the class method `from_bytes` of the same kind."""
