"""Types that all parts of the grammar library share: tokens, states, masks and grammar keys."""

from dataclasses import dataclass
from typing import Annotated, TypeAlias, TypedDict

import numpy as np
from numpy.typing import NDArray

TokenId: TypeAlias = int
StateId: TypeAlias = int
GrammarKey: TypeAlias = Annotated[str, "64 lower-case hexadecimal digits (SHA-256)"]
# Mask of a state, uint32 [ceil(V / 32)]. Bit t % 32 of word t // 32 is set if token t is allowed.
MaskRow: TypeAlias = NDArray[np.uint32]

# Result of `next_state` for a disallowed token.
NO_STATE: StateId = -1


class UnenforcedKeyword(TypedDict):
    """Keyword of a JSON Schema that is not enforced: the output may violate it.

    Attributes:
        pointer: JSON Pointer of the keyword in the specification.
        reason: Reason why the keyword is not enforced.
    """

    pointer: str
    reason: str


@dataclass(frozen=True, slots=True)
class Successor:
    """A next state of an automaton, with the tokens that lead to it. `TokenFSM.successors` returns such objects.

    Attributes:
        state: Number of the next state. None: it has no number yet, because it was never visited.
        terminal: True if the output may end in the next state.
        token_ids: IDs of the tokens that lead to the next state, in the order of the argument of `successors`.
    """

    state: StateId | None
    terminal: bool
    token_ids: list[TokenId]
