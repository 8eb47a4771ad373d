"""The few types that every part of the grammar library shares."""

from dataclasses import dataclass
from typing import Annotated, TypeAlias, TypedDict

import numpy as np
from numpy.typing import NDArray

TokenId: TypeAlias = int
StateId: TypeAlias = int
GrammarKey: TypeAlias = Annotated[str, "64 lower-case hexadecimal digits (SHA-256)"]
MaskRow: TypeAlias = NDArray[np.uint32]
"""uint32 [ceil(V / 32)]; bit t % 32 of word t // 32 is set when token t is allowed."""

NO_STATE: StateId = -1
"""What `next_state` returns for a forbidden token."""


class UnenforcedKeyword(TypedDict):
    """A keyword that is not enforced: its JSON Pointer in the specification, and why."""

    pointer: str
    reason: str


@dataclass(frozen=True, slots=True)
class Successor:
    """A state that tokens of a given list lead to.

    `state` is None while nothing has been there: numbers are given at the first visit. `token_ids` keep their order.
    """

    state: StateId | None
    terminal: bool
    token_ids: list[TokenId]
