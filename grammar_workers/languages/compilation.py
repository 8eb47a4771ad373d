"""State that the front ends of one compilation share: inputs, the automaton builder and the collected warnings."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from grammar_workers.errors import GrammarError
from grammar_workers.options import GrammarOptions, Limits
from grammar_workers.pushdown.builder import PushdownBuilder
from grammar_workers.types import UnenforcedKeyword
from grammar_workers.vocabulary.vocabulary import Vocabulary


@dataclasses.dataclass
class Compilation:
    """State that the front ends of one compilation share: inputs, an automaton builder, and warnings.

    Attributes:
        vocabulary: Tokens of the model.
        resources: JSON Schema documents by URI, for `$ref` to other documents.
        options: Options for the format of the output.
        limits: Limits of the compilation and of the automaton.
        builder: Pushdown automaton under construction. The front ends append states and edges.
        notes: Warnings for the client, such as ignored keywords. The front ends append to this list.
        unenforced: Schema keywords that are not enforced, with pointer and reason. The front ends append to this list.
        doubt: Reason why the automaton excludes some values that the schemas allow. None: no such value is excluded. If
            there is a reason, an empty intersection does not prove that no value matches.
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


class located:
    """Context manager that prefixes the JSON Pointers of the GrammarErrors raised in its block.

    In `located("/specifications/1", "/schema")`, an error at `/items` gets the pointer
    `/specifications/1/schema/items`. An error without a pointer gets only `pointer`.

    Args:
        pointer: JSON Pointer of the part within the whole specification. Empty: errors keep their pointers.
        inside: JSON Pointer of a value within the part. The pointers of errors are relative to this value.
    """

    __slots__ = ("_inside", "_pointer")

    def __init__(self, pointer: str, inside: str = "") -> None:
        self._pointer, self._inside = pointer, inside

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if self._pointer and isinstance(error, GrammarError):
            error.pointer = self._pointer if error.pointer is None else self._pointer + self._inside + error.pointer
