"""Typed errors of the grammar library. Each error concerns one request and never stops the process."""

from __future__ import annotations

from typing import Any

# Maximum number of characters of a message and of a pointer, because specifications may be very long.
MAX_MESSAGE, MAX_POINTER = 1000, 500


def shortened(text: str, most: int) -> str:
    """Return a text, or its first characters and `...` if the text is too long.

    Args:
        text: The text.
        most: Maximum number of characters of the text to keep. The three dots are not counted.

    Returns:
        `text` if it has at most `most` characters, otherwise its first `most` characters and `...`.
    """
    return text if len(text) <= most else f"{text[:most]}..."


class GrammarError(ValueError):
    """A specification (constraint of an output) is rejected, because it cannot be compiled.

    Attributes:
        code: Machine-readable kind of the error.
        message: Text of the error without pointer and position, shortened to `MAX_MESSAGE` (1000) characters.
        pointer: JSON Pointer of the keyword inside the specification. None if the error concerns no keyword. Empty for
            the whole specification.
        position: Character offset inside a pattern or grammar text. None if the error concerns no such text.
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
        pointer = "" if self.pointer is None or (placed and not self.pointer) else self.pointer or "#"
        position = "" if self.position is None or placed else f"position {self.position}"
        place = ", ".join(filter(None, [pointer, position]))
        return f"{self.message} (at {place})" if place else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return GrammarError.from_dict, (self.to_dict(),)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for another process, Redis or an HTTP body. `from_dict` is the inverse.

        Returns:
            `{"code", "message", "pointer", "position"}`. Pointer and position may be None.
        """
        return {"code": self.code, "message": self.message, "pointer": self.pointer, "position": self.position}

    @staticmethod
    def from_dict(data: dict[str, Any]) -> GrammarError:
        """Return the error that `to_dict` has converted to `data`.

        Args:
            data: `code` and `message`, and optionally `pointer` and `position`.

        Returns:
            An error of the subclass with that code, or a plain GrammarError if the code is unknown.
        """
        kind = _BY_CODE.get(data["code"], GrammarError)
        return kind(data["message"], pointer=data.get("pointer"), position=data.get("position"))


class InvalidSpecificationError(GrammarError):
    """A specification is malformed: it has a keyword of the wrong type, an invalid regex, or an unresolvable `$ref`."""

    code = "invalid_grammar"


class UnsupportedFeatureError(GrammarError):
    """A specification is well-formed, but the compiler cannot enforce it exactly."""

    code = "unsupported_grammar"


class UnsatisfiableError(GrammarError):
    """No output matches a specification, or no such output can be written with the tokens of the vocabulary."""

    code = "unsatisfiable_grammar"


class LimitExceededError(GrammarError):
    """A compilation, or the use of a compiled grammar, exceeds a limit in `Limits`. The message names the limit."""

    code = "grammar_limit_exceeded"


_BY_CODE: dict[str, type[GrammarError]] = {
    kind.code: kind
    for kind in (InvalidSpecificationError, UnsupportedFeatureError, UnsatisfiableError, LimitExceededError)
}


# Codes of the errors that reject a specification.
GRAMMAR_CODES = _BY_CODE.keys()


class ArtifactError(ValueError):
    """Bytes are not a valid artifact (compiled grammar) for the required grammar key and vocabulary.

    Attributes:
        reason: Short phrase for the cause, such as `digest`.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"invalid grammar artifact: {reason}")
        self.reason = reason

    def __reduce__(self) -> tuple[type[ArtifactError], tuple[str]]:
        return ArtifactError, (self.reason,)
