"""What the readers of both notations share: a position in a grammar text, with errors that say where, and the parts of
expressions that are written alike.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar, NoReturn

from grammar_workers import tag_formats as formats
from grammar_workers.errors import GrammarError, InvalidSpecificationError, LimitExceededError, UnsupportedFeatureError
from grammar_workers.languages.cfg import syntax
from grammar_workers.languages.scalar_values import has_surrogate, is_scalar_value
from grammar_workers.options import Limits

MOST_REPEATS = 1 << 20
"""The largest count that a repetition may name; `Limits` bounds what it may cost."""

_SIMPLE_REPEATS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_TOKEN = re.compile(r"(!?)(?=<)(?:<\[([^\]\n]*)\]>|(<[^>\n]+>))")
_TOKEN_IDS = re.compile(r"\*|[0-9]{1,9}(?:-[0-9]{1,9})?(?:,[0-9]{1,9}(?:-[0-9]{1,9})?)*")
_WIDTHS = {"x": 2, "u": 4, "U": 8}
"""Hexadecimal digits of escapes."""


class TextCursor:
    """A position that moves from left to right. All error positions are character offsets into the text."""

    escapes: ClassVar[Mapping[str, str]]
    """What a character behind a backslash stands for, beside those with hexadecimal digits."""
    keeps_unknown_escapes: ClassVar[bool]
    """Whether a backslash before any other character is just that, or an error."""
    refused: ClassVar[Mapping[str, str]] = {}
    """Signs of other dialects -> the advice in the error that refuses them."""

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
        """What the markers stand for that have been given out, in order."""
        return tuple(placed for _, placed in self._formats.values())

    @property
    def at_end(self) -> bool:
        return self.position >= len(self.text)

    def peek(self, many: int = 1) -> str:
        """The next characters, fewer (or none) at the end of the text."""
        return self.text[self.position : self.position + many]

    def take(self, text: str) -> bool:
        """Move behind `text` if it comes next."""
        if self.text.startswith(text, self.position):
            self.position += len(text)
            return True
        return False

    def match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Move behind what `pattern` matches here."""
        found = pattern.match(self.text, self.position)
        if found:
            self.position = found.end()
        return found

    # -- expressions ---------------------------------------------------------------------------------------------

    def sequence(self) -> syntax.Expression:
        """What stands between two bars, with the space before it."""
        raise NotImplementedError

    def alternatives(self) -> syntax.Expression:
        branches = [self.sequence()]
        while self.take("|"):
            branches.append(self.sequence())
        return branches[0] if len(branches) == 1 else syntax.Alternatives(tuple(branches))

    def group(self, closing: str, begin: int) -> syntax.Expression:
        """What stands in brackets, behind the opening one at `begin`."""
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
        """A token by its text, as in `<think>`, or by ids, as in `<[17]>`, `<[1,5-9]>`, `<[^17]>` and `<[*]>`.

        None where no `<` or `!<` comes next, which stands for any token but these.
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
        """The character that stands for a format, which the grammar writes as `text`, wherever it does."""
        self._formats.setdefault(
            text, (syntax.FIRST_FORMAT + len(self._formats), syntax.PlacedFormat(format_, position))
        )
        if len(self._formats) > syntax.LAST_FORMAT - syntax.FIRST_FORMAT:
            self._exceed("too many tokens and JSON values", position)
        return syntax.Marker(self._formats[text][0])

    def reference(self, name: re.Pattern[str]) -> syntax.Reference:
        """The name of a rule."""
        begin = self.position
        found = self.match(name)
        if not found:
            for sign, instead in self.refused.items():
                if self.text.startswith(sign, begin):
                    self.refuse(f"`{sign}` of llguidance is not supported; {instead}")
            self.fail(f"unexpected {self.peek()!r}: a name, a quoted text, a class or a group belongs here")
        return syntax.Reference(found[0], begin)

    def simple_repeat(self) -> tuple[int, int | None] | None:
        """The counts of `*`, `+` and `?`."""
        bounds = _SIMPLE_REPEATS.get(self.peek())
        self.position += bounds is not None
        return bounds

    def bounds(self, low: str, high: str | None, position: int) -> tuple[int, int | None]:
        """The counts of a repetition (None: no maximum)."""
        least = self._count(low, position)
        most = None if high is None else self._count(high, position)
        if most is not None and most < least:
            self.fail("repeat bounds out of order", position)
        return least, most

    def _count(self, digits: str, position: int) -> int:
        if len(digits) > 7 or int(digits) > MOST_REPEATS:
            self._exceed(f"a repeat count above {MOST_REPEATS}", position)
        return int(digits)

    def character(self) -> str:
        """One character, written plainly or as an escape."""
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
        """The character that an escape of exactly `width` hexadecimal digits names."""
        if len(digits) != width or not re.fullmatch("[0-9a-fA-F]+", digits):
            self.fail("malformed escape", position)
        value = int(digits, 16)
        if not is_scalar_value(value):
            self.fail("an escape that is no character", position)
        return chr(value)

    # -- errors --------------------------------------------------------------------------------------------------

    def fail(self, message: str, position: int | None = None) -> NoReturn:
        """Raise InvalidSpecificationError at `position` (default: here)."""
        self._raise(InvalidSpecificationError, f"malformed grammar: {message}", position)

    def refuse(self, what: str, position: int | None = None) -> NoReturn:
        """Raise UnsupportedFeatureError at `position` (default: here)."""
        self._raise(UnsupportedFeatureError, what, position)

    def _exceed(self, what: str, position: int) -> NoReturn:
        self._raise(LimitExceededError, what, position)

    def _raise(self, kind: type[GrammarError], message: str, position: int | None) -> NoReturn:
        at = self.position if position is None else position
        raise kind(f"{message}{syntax.line_and_column(self.text, at)}", position=at)
