"""The interface `Recognizer`: an automaton over bytes that reads tokens and computes token masks.

A `TokenFSM` (numbered states and their masks) uses it. A *configuration* is the complete state of the automaton, for
example (state, counter, top of the return stack).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from grammar_workers.errors import LimitExceededError
from grammar_workers.options import Limits
from grammar_workers.types import MaskRow, TokenId

# The complete state of an automaton, in canonical form.
#
# Equal configurations have equal continuations and equal hashes.
Configuration = tuple[Any, ...]

# (configuration, whether the output may end there, mask equivalence class).
#
# Configurations of one class have equal masks, and the output may end in all of them or in none. -1: the class is not
# known.
Reached = tuple[Configuration, bool, int]


def check_bytes(held: int, limits: Limits, what: str = "the states take", of: str = "") -> None:
    """Check that the memory of a TokenFSM (compiled grammar), or of a part of it, is at most `max_fsm_bytes`.

    Args:
        held: Memory in use, in bytes.
        limits: `max_fsm_bytes` is the limit.
        what: Beginning of the error message: subject and verb, such as "the states take".
        of: Text in the error message after "bytes", such as " of return stacks".

    Raises:
        LimitExceededError: The memory exceeds the limit.
    """
    if held > limits.max_fsm_bytes:
        raise LimitExceededError(f"{what} more than {limits.max_fsm_bytes} bytes{of} (fixed limit max_fsm_bytes)")


class PrefetchedMasks(NamedTuple):
    """A batch of prefetched masks: masks of configurations that may come next. Valid until the next batch.

    Attributes:
        masks: Masks, uint32 [words] each. End tokens are included. The caller may change the masks.
        classes: Mask equivalence class of each mask: configurations of one class have equal masks.
        wanted: None, or a configuration (complete state of the recognizer) that has no class, or whose mask takes long.
            The caller must compute its mask before it requests the next batch.
    """

    masks: Sequence[MaskRow] = ()
    classes: Sequence[int] = ()
    wanted: Configuration | None = None


class Recognizer(Protocol):
    """Interface of an automaton over bytes that reads the tokens of one vocabulary and computes token masks.

    A *configuration* is the complete state of the automaton. The caller (`TokenFSM`) must serialize all calls. Only
    `shortest` needs no lock if `remembers_values` is False. A method raises LimitExceededError if it exceeds a limit on
    work or memory. There are three implementations: `PushdownRecognizer`, `DistinctRecognizer` (unique items) and
    `CfgRecognizer` (context-free grammars).

    Attributes:
        KIND: One byte that selects the recognizer class in an artifact (serialized grammar).
        remembers_values: True if configurations contain values that have been read, so that the same configuration is
            rarely reached again.
    """

    # One byte that selects the recognizer class in an artifact.
    KIND: ClassVar[bytes]
    # True if configurations hold values that have been read, so that states rarely recur.
    remembers_values: ClassVar[bool]

    @property
    def nbytes(self) -> int:
        """Memory in use, in bytes. May grow with every call."""

    @property
    def size(self) -> int:
        """Number of states of the automaton itself. Does not grow."""

    def start(self) -> Configuration:
        """Return the configuration (complete state of the automaton) in which matching begins."""

    def find_or_fill_mask(self, configuration: Configuration, row: MaskRow) -> int:
        """Compute the mask (bit set of allowed tokens) of a configuration, or find its mask equivalence class.

        LimitExceededError is raised if a limit on work or memory is exceeded.

        Args:
            configuration: The configuration (complete state of the automaton).
            row: Receives the mask without end tokens, uint32 [words]. It is unchanged if the returned class was
                returned or prefetched before.

        Returns:
            The mask equivalence class, numbered from 0: all configurations of a class have equal masks. -1 if the
            configuration has no class.
        """

    def advance(self, configuration: Configuration, token_id: TokenId) -> Reached | None:
        """Return the configuration after a token.

        LimitExceededError is raised if a limit on work or memory is exceeded.

        Args:
            configuration: The configuration (complete state of the automaton) before the token.
            token_id: ID of a token other than an end token.

        Returns:
            A triple: the configuration after the token; True if the output may end there; its mask equivalence class
            (all configurations of a class have equal masks; -1: not known). None if the token is not allowed.
        """

    def may_end(self, configuration: Configuration) -> bool:
        """Return whether the output may end in a configuration (complete state of the automaton)."""

    def targets(self, configuration: Configuration, row: MaskRow) -> tuple[list[Configuration], NDArray[np.int32]]:
        """Compute the configurations (complete states of the automaton) after all allowed tokens.

        LimitExceededError is raised if a limit on work or memory is exceeded.

        Args:
            configuration: The configuration before the token.
            row: The mask of the configuration, from `find_or_fill_mask`, uint32 [words].

        Returns:
            The distinct configurations, and for each token the index of its configuration in this list, int32 [V]. The
            index is -1 for disallowed tokens and end tokens.
        """

    def look_ahead(self, max_places: int) -> Iterator[PrefetchedMasks]:
        """Prefetch the masks of configurations (complete states) that can be reached through ASCII characters.

        The search is breadth first, but configurations with a new state of the automaton come before those with a
        visited state. It visits one configuration of each mask equivalence class (set of configurations with equal
        masks). So it usually ends, even if there are infinitely many configurations. Within a class, the configurations
        after a return of a rule or after a property name may differ, so the search adds these separately.
        LimitExceededError is raised if a limit on work or memory is exceeded.

        Args:
            max_places: Maximum number of configurations to visit.

        Yields:
            Batches of masks. The caller must serialize each step of the iterator with its calls of other methods.
        """

    def shortest(self, configuration: Configuration, limit: int) -> list[TokenId]:
        """Find a completion (text up to the end of the output) with the fewest bytes, and tokenize it.

        A configuration has the same completion at each call. If `remembers_values` is False, the call needs no lock.
        `TooManyTokensError` is raised if the completion has more than `limit` tokens, and `LimitExceededError` if the
        search takes too long.

        Args:
            configuration: The configuration (complete state of the automaton) where the completion begins.
            limit: Maximum number of tokens.

        Returns:
            Token IDs of the completion, as few as possible. Empty if the output may end in the configuration.
        """

    def to_bytes(self) -> bytes:
        """Return the automaton as bytes, for the class method `from_bytes`. Visited configurations are not included."""
