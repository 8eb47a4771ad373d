"""Export of a TokenFSM (compiled grammar) as arrays, from which a PyTorch device reads next states and masks.

    class_of   [V]                 class of each token: in every state, tokens of one class lead to one next state
    next       [states, classes]   next state after a token of the class; -1: disallowed; LEAVES: not in the tables
    row_of     [states]            index of the state's mask in `rows`
    rows       [rows, words]       the distinct masks

A grammar with recursion or counters has infinitely many states. Some schemas have more states than a device should
hold. So the tables have only some of the states. If a sequence reaches another state (LEAVES), the TokenFSM on the host
advances it. Later tables contain more of the states that sequences have visited.

With 131,072 tokens, a mask takes 16 KiB. A row of `next` with one entry for each token would take 512 KiB. Grammars
with a few hundred states have between a few dozen and a few thousand classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from grammar_workers.matching.kernels import transitions
from grammar_workers.types import MaskRow

# Maximum number of token classes, which must fit into int16.
MAX_CLASSES = 1 << 15


# Entry of `next` for an allowed token whose target state is not in the tables.
LEAVES = -2


@dataclass(frozen=True, slots=True, eq=False)
class DeviceTables:
    """Transitions and masks of the first states of one TokenFSM (compiled grammar) as arrays, for a PyTorch device.

    States have the numbers of the TokenFSM. A token class is a set of equivalent tokens: from each state in the tables,
    they all lead to the same next state.

    Attributes:
        class_of: Class of each token, int16 [V].
        next: State after a token of each class, int32 [states, classes]. -1: the token is disallowed. -2 (LEAVES): the
            next state is not in the tables.
        row_of: Index in `rows` of each state's mask, int32 [states].
        rows: Distinct masks, uint32 [rows, words].
        complete: True if `next` has no LEAVES.
    """

    class_of: NDArray[np.int16]
    next: NDArray[np.int32]
    row_of: NDArray[np.int32]
    rows: NDArray[np.uint32]
    complete: bool

    @property
    def states(self) -> int:
        """Number of states in the tables."""
        return len(self.next)

    @property
    def nbytes(self) -> int:
        """Memory of the four arrays, in bytes."""
        return self.class_of.nbytes + self.next.nbytes + self.row_of.nbytes + self.rows.nbytes


class TableBuilder:
    """Builder of `DeviceTables` (states of a compiled grammar as arrays). The caller adds the states in order.

    A token class is a set of equivalent tokens: from each added state, they all lead to the same next state. At first,
    all tokens are one class. `add` splits classes.

    Args:
        tokens: Number of tokens V of the vocabulary.
        max_bytes: Maximum size of the tables, in bytes.
    """

    def __init__(self, tokens: int, max_bytes: int) -> None:
        self._class_of = np.zeros(tokens, np.int32)
        self._before = np.empty(tokens, np.int32)
        self._max_bytes = max_bytes
        self._many = 1
        # Rows of `next`, with one column per class.
        self._lines: list[NDArray[np.int32]] = []
        self._row_of: list[int] = []
        self._rows: dict[int, MaskRow] = {}
        self._places: dict[int, int] = {}
        self._origin = np.empty(MAX_CLASSES, np.int32)
        self._pairs = np.empty((MAX_CLASSES, 3), np.int64)
        self._seen = np.empty(MAX_CLASSES * 4, np.int32)

    def add(self, following: NDArray[np.int32], number: int, row: MaskRow) -> bool:
        """Add the state with the next number. The first added state has number 0.

        Args:
            following: Number of the state after each token, int32 [V]; -1: disallowed. In the tables, LEAVES (-2)
                replaces states that were never added.
            number: Number of the state's mask in the TokenFSM (compiled grammar). Equal masks have equal numbers.
            row: The mask, uint32 [words]. It is not copied.

        Returns:
            True if the state was added. If the tables would exceed `max_bytes` or MAX_CLASSES (32768) token classes,
            nothing is changed and the result is False.
        """
        np.copyto(self._before, self._class_of)
        self._seen.fill(-1)
        many = transitions.refine(self._class_of, following, self._many, self._origin, self._pairs, self._seen)
        rows = len(self._rows) + (number not in self._rows)
        nbytes = len(self._class_of) * 2 + (len(self._lines) + 1) * (many + 1) * 4 + rows * row.nbytes
        if many < 0 or nbytes > self._max_bytes:
            np.copyto(self._class_of, self._before)
            return False
        if many > self._many:
            origin = self._origin[: many - self._many]
            self._lines = [np.concatenate([line, line[origin]]) for line in self._lines]
            self._many = many
        line = np.empty(many, np.int32)
        line[self._class_of] = following
        self._lines.append(line)
        self._rows.setdefault(number, row)
        self._row_of.append(self._places.setdefault(number, len(self._places)))
        return True

    def finish(self) -> DeviceTables:
        """Return the tables of all added states. ValueError is raised if no state was added."""
        lines = np.stack(self._lines)
        lines[lines >= len(lines)] = LEAVES
        return DeviceTables(
            self._class_of.astype(np.int16),
            lines,
            np.array(self._row_of, np.int32),
            np.stack(list(self._rows.values())),
            complete=not (lines == LEAVES).any(),
        )
