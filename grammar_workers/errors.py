"""Typed errors of the grammar library. Each one belongs to one request and never to the process."""

from __future__ import annotations

from typing import Any

MAX_MESSAGE, MAX_POINTER = 1000, 500
"""Characters: specifications are as long as their authors like, errors are for reading."""


def shortened(text: str, most: int) -> str:
    """`text`, or its beginning where it has more than `most` characters."""
    return text if len(text) <= most else f"{text[:most]}..."


class GrammarError(ValueError):
    """A specification that cannot be compiled.

    `code` is the machine-readable kind, `pointer` the JSON Pointer of the keyword inside the specification
    (for schemas), `position` the character offset inside a pattern or grammar text.
    """

    code = "invalid_grammar"

    def __init__(self, message: str, *, pointer: str | None = None, position: int | None = None) -> None:
        super().__init__(shortened(message, MAX_MESSAGE))
        self.message = shortened(message, MAX_MESSAGE)
        self.pointer = None if pointer is None else shortened(pointer, MAX_POINTER)
        self.position = position

    def __str__(self) -> str:
        # The message about a place in a grammar ends with its line and column.
        placed = self.position is not None and self.message.endswith(")") and " (line " in self.message
        pointer = "" if self.pointer is None or (placed and not self.pointer) else f" at {self.pointer or '#'}"
        position = "" if self.position is None or placed else f" at position {self.position}"
        return f"{self.message}{pointer}{position}"

    def __reduce__(self) -> tuple[Any, ...]:
        return GrammarError.from_dict, (self.to_dict(),)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for another process, Redis or an HTTP body; `from_dict` is its inverse."""
        return {
            "code": self.code,
            "message": self.message,
            "pointer": self.pointer,
            "position": self.position,
        }

    @staticmethod
    def from_dict(data: dict[str, Any]) -> GrammarError:
        kind = _BY_CODE.get(data["code"], GrammarError)
        return kind(data["message"], pointer=data.get("pointer"), position=data.get("position"))


class InvalidSpecificationError(GrammarError):
    """The specification is malformed: a keyword of the wrong type, a broken regex, an unresolvable `$ref`."""

    code = "invalid_grammar"


class UnsupportedFeatureError(GrammarError):
    """A well-formed assertion that the compiler cannot honour exactly, so it refuses."""

    code = "unsupported_grammar"


class UnsatisfiableError(GrammarError):
    """Nothing matches the specification (with this vocabulary)."""

    code = "unsatisfiable_grammar"


class LimitExceededError(GrammarError):
    """Compilation would need more than a budget in `Limits`; the message names the limit."""

    code = "grammar_limit_exceeded"


_BY_CODE: dict[str, type[GrammarError]] = {
    kind.code: kind
    for kind in (InvalidSpecificationError, UnsupportedFeatureError, UnsatisfiableError, LimitExceededError)
}


GRAMMAR_CODES = _BY_CODE.keys()
"""The codes with which a specification is refused."""


class ArtifactError(ValueError):
    """Bytes that are not a valid artifact for this key and vocabulary; `reason` is one short word or phrase."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"invalid grammar artifact: {reason}")
        self.reason = reason

    def __reduce__(self) -> tuple[type[ArtifactError], tuple[str]]:
        return ArtifactError, (self.reason,)
