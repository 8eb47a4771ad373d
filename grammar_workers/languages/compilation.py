"""What the front ends of one compilation share."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from grammar_workers.errors import GrammarError
from grammar_workers.options import GrammarOptions, Limits
from grammar_workers.pushdown.builder import PushdownBuilder
from grammar_workers.types import UnenforcedKeyword
from grammar_workers.vocabulary.vocabulary import Vocabulary


@dataclasses.dataclass
class Compilation:
    """What is asked for, the builder that all write into, and what there is to say about the result.

    `notes`: what was ignored. `unenforced`: what schemas assert in vain. `doubt`: why some values are left out.
    """

    vocabulary: Vocabulary
    resources: Mapping[str, Any]
    options: GrammarOptions
    limits: Limits
    builder: PushdownBuilder = dataclasses.field(init=False)
    notes: list[str] = dataclasses.field(default_factory=list)
    unenforced: list[UnenforcedKeyword] = dataclasses.field(default_factory=list)
    doubt: str | None = None

    def __post_init__(self) -> None:
        self.builder = PushdownBuilder(self.limits)


@contextlib.contextmanager
def located(pointer: str, inside: str = "") -> Iterator[None]:
    """Errors inside point into the whole specification: `pointer` is the part's, `inside` that of its own pointers."""
    try:
        yield
    except GrammarError as error:
        if pointer:
            error.pointer = pointer if error.pointer is None else pointer + inside + error.pointer
        raise
