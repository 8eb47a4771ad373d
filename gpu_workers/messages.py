"""What the asyncio side tells the engine thread."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_workers.engine.sequence import Sequence
from gpu_workers.request import RequestError
from grammar_workers import TokenFSM


@dataclass(frozen=True, slots=True)
class Add:
    """A new sequence."""

    sequence: Sequence


@dataclass(frozen=True, slots=True)
class Constrain:
    """The grammar of `sequence` has arrived; `state` is where its replayed tokens lead."""

    sequence: Sequence
    fsm: TokenFSM
    state: int


@dataclass(frozen=True, slots=True)
class Fail:
    """`sequence` cannot go on."""

    sequence: Sequence
    error: RequestError


@dataclass(frozen=True, slots=True)
class Cancel:
    """Nobody wants the output any more; of no effect when it is over."""

    sequence: Sequence


@dataclass(frozen=True, slots=True)
class Wake:
    """A mask row has been read: look again."""


@dataclass(frozen=True, slots=True)
class Close:
    """End the engine thread."""


Message = Add | Constrain | Fail | Cancel | Wake | Close
