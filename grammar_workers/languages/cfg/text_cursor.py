"""Base class of the readers of GBNF and Lark: the reading position, errors, and the syntax common to both notations."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar, NoReturn

from grammar_workers import tag_formats as formats
from grammar_workers.errors import GrammarError, InvalidSpecificationError, LimitExceededError, UnsupportedFeatureError
from grammar_workers.languages.cfg import syntax
from grammar_workers.languages.regex.parse import MAX_REPEAT, SIMPLE_REPEATS
from grammar_workers.options import Limits
from grammar_workers.scalar_values import has_surrogate, is_scalar_value

_TOKEN = re.compile(r"(!?)(?=<)(?:<\[([^\]\n]*)\]>|(<[^>\n]+>))")
_TOKEN_IDS = re.compile(r"\*|[0-9]{1,9}(?:-[0-9]{1,9})?(?:,[0-9]{1,9}(?:-[0-9]{1,9})?)*")
# Number of hexadecimal digits of each kind of escape.
_WIDTHS = {"x": 2, "u": 4, "U": 8}


class TextCursor:
    """Reader of a grammar text, with a position that moves forward. Base class of the readers of GBNF and Lark.

    Methods that read raise InvalidSpecificationError for malformed text, UnsupportedFeatureError for unsupported
    syntax, and LimitExceededError. The errors have a position: a character offset in the text.

    Args:
        text: The grammar text. A NUL character raises InvalidSpecificationError.
        limits: `max_nesting` bounds how deep groups are nested.

    Attributes:
        text: The argument `text`.
        position: Offset of the next character to read.
    """

    # The character that each escape letter stands for; hexadecimal escapes are not listed.
    escapes: ClassVar[Mapping[str, str]]
    # True if a backslash before any other character is a backslash. False if it is an error.
    keeps_unknown_escapes: ClassVar[bool]
    # Operators of other dialects -> the advice in the error that rejects them.
    refused: ClassVar[Mapping[str, str]] = {}

    def __init__(self, text: str, limits: Limits) -> None:
        if "\0" in text:
            position = text.index("\0")
            raise InvalidSpecificationError("a NUL character in a grammar; write it as an escape", position=position)
        self.text = text
        self.position = 0
        self._formats: dict[str, tuple[int, syntax.PlacedFormat]] = {}
        self._limits = limits
        self._depth = 0

    @property
    def placed_formats(self) -> tuple[syntax.PlacedFormat, ...]:
        """Tokens and JSON values that the grammar mentions. Element i is what the placeholder number i stands for."""
        return tuple(placed for _, placed in self._formats.values())

    @property
    def at_end(self) -> bool:
        """True if the whole text has been read."""
        return self.position >= len(self.text)

    def peek(self, many: int = 1) -> str:
        """Return the next characters without advancing.

        Args:
            many: Number of characters. Fewer are returned at the end of the text.
        """
        return self.text[self.position : self.position + many]

    def take(self, text: str) -> bool:
        """Advance past a fixed text if it comes next.

        Args:
            text: The fixed text.

        Returns:
            True if the text came next. If False, the position is unchanged.
        """
        if self.text.startswith(text, self.position):
            self.position += len(text)
            return True
        return False

    def match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Advance past the match of a pattern at the current position.

        Args:
            pattern: The pattern.

        Returns:
            The match. None if the pattern does not match here; the position is then unchanged.
        """
        found = pattern.match(self.text, self.position)
        if found:
            self.position = found.end()
        return found

    # -- expressions ---------------------------------------------------------------------------------------------

    def sequence(self) -> syntax.Expression:
        """Read one alternative: the expression up to the next bar, closing bracket or end.

        Subclasses implement this method. Here it raises NotImplementedError.
        """
        raise NotImplementedError

    def alternatives(self) -> syntax.Expression:
        """Read one or more expressions that are separated by bars.

        Returns:
            The expression that matches a text if at least one of the expressions matches it.
        """
        branches = [self.sequence()]
        while self.take("|"):
            branches.append(self.sequence())
        return branches[0] if len(branches) == 1 else syntax.Alternatives(tuple(branches))

    def group(self, closing: str, begin: int) -> syntax.Expression:
        """Read the rest of a bracketed expression, after its opening bracket.

        Args:
            closing: The closing bracket, which is read, too. If it is missing, InvalidSpecificationError is raised.
            begin: Offset of the opening bracket, for errors.

        Returns:
            The expression inside the brackets.
        """
        self._deeper(begin)
        inner = self.alternatives()
        if not self.take(closing):
            self.fail(f"missing {closing!r}", begin)
        self._depth -= 1
        return inner

    def _deeper(self, begin: int) -> None:
        self._depth += 1
        if self._depth > self._limits.max_nesting:
            self._exceed(f"groups nested deeper than {self._limits.max_nesting} (fixed limit max_nesting)", begin)

    def token(self) -> syntax.Marker | None:
        """Read a reference to a token of the vocabulary.

        A reference has the token's text, `<think>`, or token IDs: `<[17]>`, `<[1,5-9]>`. `<[*]>` is any token, and
        `<[^17]>` any token except 17. A preceding `!` means any token except the listed ones.

        Returns:
            The marker (reserved character) that stands for the token. None if no such reference comes next.
        """
        begin = self.position
        if not (found := self.match(_TOKEN)):
            return None
        but, ids, name = found.groups()
        if name is not None:
            named: list[str | int] = [name]
        else:
            but, ids = ("!" if not but else "", ids[1:]) if ids[:1] == "^" else (but, ids)
            if not _TOKEN_IDS.fullmatch(ids) or (but and ids == "*"):
                self.fail("ids of tokens are written `<[17]>`, `<[1,5-9]>`, `<[^17]>` or `<[*]>`", begin)
            runs = [] if ids == "*" else [[int(one) for one in run.split("-")] for run in ids.split(",")]
            if any(run[-1] < run[0] for run in runs):
                self.fail("the ids of a range are not in order", begin)
            if sum(run[-1] - run[0] + 1 for run in runs) > formats.MOST_FORMATS:
                self._exceed(f"more than {formats.MOST_FORMATS} tokens", begin)
            named, but = [one for run in runs for one in range(run[0], run[-1] + 1)], but or "!" * (ids == "*")
        if but:
            return self.marker(found[0], formats.ExcludeTokenFormat(exclude_tokens=named), begin)
        return self.marker(
            found[0], formats.OrFormat(elements=[formats.TokenFormat(token=one) for one in named]), begin
        )

    def marker(self, text: str, format_: formats.Format, position: int) -> syntax.Marker:
        """Return the marker (reserved character) that stands for a token or JSON value.

        Args:
            text: The token or JSON value as the grammar writes it. The same `text` always gets the same marker.
            format_: The structural-tag format for which the marker stands.
            position: Offset of `text` in the grammar.
        """
        self._formats.setdefault(
            text, (syntax.FIRST_FORMAT + len(self._formats), syntax.PlacedFormat(format_, position))
        )
        if len(self._formats) > syntax.LAST_FORMAT - syntax.FIRST_FORMAT:
            self._exceed("too many tokens and JSON values", position)
        return syntax.Marker(self._formats[text][0])

    def reference(self, name: re.Pattern[str]) -> syntax.Reference:
        """Read the name of a rule.

        Args:
            name: Pattern of valid names. If it does not match here, InvalidSpecificationError is raised, or
                UnsupportedFeatureError if an operator of another dialect comes next.

        Returns:
            The reference to the rule.
        """
        begin = self.position
        found = self.match(name)
        if not found:
            for sign, instead in self.refused.items():
                if self.text.startswith(sign, begin):
                    self.refuse(f"`{sign}` of llguidance is not supported; {instead}")
            self.fail(f"unexpected {self.peek()!r}: a name, a quoted text, a class or a group belongs here")
        return syntax.Reference(found[0], begin)

    def simple_repeat(self) -> tuple[int, int | None] | None:
        """Read `*`, `+` or `?`, if one of them comes next.

        Returns:
            Pair of the smallest and the largest number of repetitions: `*` (0, None), `+` (1, None), `?` (0, 1). A
            largest number of None means no maximum. None instead of a pair if none of the signs comes next.
        """
        bounds = SIMPLE_REPEATS.get(self.peek())
        self.position += bounds is not None
        return bounds

    def bounds(self, low: str, high: str | None, position: int) -> tuple[int, int | None]:
        """Convert the bounds of a repetition to integers.

        Bounds in the wrong order raise InvalidSpecificationError. A bound above `MAX_REPEAT` raises
        LimitExceededError.

        Args:
            low: Decimal digits of the smallest number.
            high: Decimal digits of the largest number. None: no maximum.
            position: Offset for errors.

        Returns:
            Smallest and largest number. None as the largest number means no maximum.
        """
        least = self._count(low, position)
        most = None if high is None else self._count(high, position)
        if most is not None and most < least:
            self.fail("repeat bounds out of order", position)
        return least, most

    def _count(self, digits: str, position: int) -> int:
        if len(digits) > 7 or int(digits) > MAX_REPEAT:
            self._exceed(f"a repeat count above {MAX_REPEAT}", position)
        return int(digits)

    def character(self) -> str:
        """Read one character, which may be written as an escape, and return it. The text must not be at its end."""
        begin = self.position
        character = self.peek()
        self.position += 1
        if has_surrogate(character):
            self.fail("a lone surrogate", begin)
        if character != "\\":
            return character
        kind = self.peek()
        if kind in _WIDTHS:
            self.position += 1 + _WIDTHS[kind]
            return self._scalar(self.text[begin + 2 : self.position], _WIDTHS[kind], begin)
        if kind in self.escapes:
            self.position += 1
            return self.escapes[kind]
        if not self.keeps_unknown_escapes:
            self.fail(f"unknown escape \\{kind}", begin)
        return character

    def _scalar(self, digits: str, width: int, position: int) -> str:
        """Return the character of an escape, which must have exactly `width` hexadecimal digits."""
        if len(digits) != width or not re.fullmatch("[0-9a-fA-F]+", digits):
            self.fail("malformed escape", position)
        value = int(digits, 16)
        if not is_scalar_value(value):
            self.fail("an escape that is no character", position)
        return chr(value)

    # -- errors --------------------------------------------------------------------------------------------------

    def fail(self, message: str, position: int | None = None) -> NoReturn:
        """Raise InvalidSpecificationError for malformed text.

        Args:
            message: Description of the problem. Line and column are appended.
            position: Offset of the error. None: the current position.
        """
        self._raise(InvalidSpecificationError, f"malformed grammar: {message}", position)

    def refuse(self, what: str, position: int | None = None) -> NoReturn:
        """Raise UnsupportedFeatureError.

        Args:
            what: Description of the problem. Line and column are appended.
            position: Offset of the error. None: the current position.
        """
        self._raise(UnsupportedFeatureError, what, position)

    def _exceed(self, what: str, position: int) -> NoReturn:
        self._raise(LimitExceededError, what, position)

    def _raise(self, kind: type[GrammarError], message: str, position: int | None) -> NoReturn:
        at = self.position if position is None else position
        raise kind(f"{message}{syntax.line_and_column(self.text, at)}", position=at)
