"""Parser of regular expressions. Constructs that are not regular, or differ in ECMA-262 and Python, are rejected."""

from __future__ import annotations

import dataclasses
import functools
import re
from typing import ClassVar, TypeAlias

from grammar_workers.dfa import charset
from grammar_workers.errors import InvalidSpecificationError, LimitExceededError, UnsupportedFeatureError
from grammar_workers.languages.regex import character_class
from grammar_workers.languages.regex.character_class import ANYTHING, DOT, CharacterClass, agreed, joined, named, single
from grammar_workers.options import Limits
from grammar_workers.scalar_values import is_scalar_value

# Maximum count of a repetition. `Limits` bounds the cost of repetitions.
MAX_REPEAT = 1 << 20
# A substring of the unsupported construct -> the advice in the error.
_INSTEAD = {
    "possessive": "write the quantifier without the second +",
    "repeated": "put what is repeated into a group, such as (?:x{2})*",
    "back-reference": "write what it may repeat as alternatives",
    "atomic": "write (?:...)",
    "conditional": "write both cases as alternatives",
    "comment": "remove it",
    "modifier": "write (?:...)",
    "beginning": "move it there, or write a group with it, such as (?i:...)",
    "itself": "write the sign with a backslash before it",
    "flag x": "write it into a class, such as [\\n]",
    "flag '": "i and s are known, and in Lark a, m, u and x",
    "empty class": "write \\] for the bracket",
    "property": "write its characters as ranges, such as [A-Za-z]",
    "\\": "write ^ or $",
}
# First characters of the elements that are not literal characters.
_SPECIAL = frozenset("([.^$\\")
# Bounds of the quantifiers of one character.
SIMPLE_REPEATS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_COUNT = re.compile(r"\{(?!\})([0-9]*)(,?)([0-9]*)\}")
_HEXADECIMAL = re.compile(r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|u\{([0-9a-fA-F]+)\}")
_CONTROL = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13}
_FLAGS = re.compile(r"([a-zA-Z]*)(?:-([a-zA-Z]+))?([:)])")


@dataclasses.dataclass(frozen=True, eq=False)
class Characters:
    """Part of a pattern that matches one character of a class."""

    characters: CharacterClass


@dataclasses.dataclass(frozen=True, eq=False)
class Sequence:
    """Part of a pattern that matches its parts in order. Without parts it matches the empty text."""

    parts: tuple[Node, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Alternatives:
    """Part of a pattern that matches one of the branches. Python's `re` tries them in order."""

    branches: tuple[Node, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Repeat:
    """Part of a pattern that repeats another part.

    Attributes:
        body: The repeated part.
        low: Minimum number of repetitions.
        high: Maximum number of repetitions, inclusive. None: unlimited.
        lazy: True if a backtracking matcher tries few repetitions first, as for `*?`.
        position: Offset of the repetition in the pattern.
    """

    body: Node
    low: int
    high: int | None
    lazy: bool = False
    position: int = 0


@dataclasses.dataclass(frozen=True, eq=False)
class Anchor:
    """Anchor: `$` (end of the text) if `at_end`, else `^` (beginning). `position` is its offset in the pattern."""

    at_end: bool
    position: int


@dataclasses.dataclass(frozen=True, eq=False)
class WordBoundary:
    r"""Word boundary `\b` in a pattern, or its negation `\B`.

    Attributes:
        negative: True for `\B`.
        words: The characters of which words consist.
        position: Offset in the pattern.
    """

    negative: bool
    words: CharacterClass
    position: int


@dataclasses.dataclass(frozen=True, eq=False)
class Look:
    """Look-ahead or look-behind in a pattern: a condition on the text after or before a position.

    Attributes:
        body: The part that must match, or must not match if `negative`.
        behind: True for a look-behind (`(?<=..)`), False for a look-ahead (`(?=..)`).
        negative: True for `(?<!..)` and `(?!..)`.
        position: Offset of the opening bracket in the pattern.
        end: Offset after the closing bracket; 0 if there is none.
    """

    body: Node
    behind: bool
    negative: bool
    position: int
    end: int = 0


Node: TypeAlias = Characters | Sequence | Alternatives | Repeat | Anchor | WordBoundary | Look

# The pattern of the empty text.
NOTHING = Sequence(())


@functools.lru_cache(maxsize=64)
def read_regex(pattern: str, limits: Limits) -> Node:
    """Parse a regular expression to a syntax tree.

    A malformed pattern raises InvalidSpecificationError, an unsupported construct UnsupportedFeatureError, and a too
    large pattern LimitExceededError. The error has the position in the pattern.

    Args:
        pattern: The regular expression.
        limits: Bounds on nesting and on the number of characters.

    Returns:
        The root of the syntax tree.
    """
    return PatternReader(pattern, limits).read()


class PatternReader:
    """Recursive descent parser of patterns. A subclass in `python_dialect` overrides methods for Python's dialect.

    Args:
        pattern: The regular expression.
        limits: Bounds on nesting and on the number of characters.
    """

    is_python: ClassVar = False

    def __init__(self, pattern: str, limits: Limits) -> None:
        self._pattern = pattern
        self._position = 0
        self._depth = 0
        self._limits = limits
        self._characters = 0
        self._flags: frozenset[str] = frozenset()
        self._names: set[str] = set()

    def read(self) -> Node:
        """Parse the whole pattern. Call this method once.

        A malformed pattern raises InvalidSpecificationError, an unsupported construct UnsupportedFeatureError, and a
        too large pattern LimitExceededError. The error has the position in the pattern.

        Returns:
            The root of the syntax tree.
        """
        if flags := re.match(r"\(\?([a-zA-Z]+)\)", self._pattern):
            self._flags = self._with_flags(flags[1], "", 0)
            self._position = flags.end()
        node = self._alternatives()
        if self._position < len(self._pattern):
            raise self._invalid("unbalanced ')'")
        return node

    # -- grammar -------------------------------------------------------------------------------------------------

    def _alternatives(self) -> Node:
        branches = [self._sequence()]
        while self._take("|"):
            branches.append(self._sequence())
        return branches[0] if len(branches) == 1 else Alternatives(tuple(branches))

    def _sequence(self) -> Node:
        parts: list[Node] = []
        self._skip()
        while self._position < len(self._pattern) and self._peek() not in "|)":
            parts.append(self._repeated())
            self._skip()
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _repeated(self) -> Node:
        begin = self._position
        if self._peek() in "*+?":
            raise self._invalid("nothing to repeat")
        atom = self._atom()
        self._characters += isinstance(atom, Characters)
        if self._characters > self._limits.max_pattern_characters:
            # A pattern that is too long is rejected before it is read to its end.
            raise LimitExceededError(
                f"the pattern has more than {self._limits.max_pattern_characters} characters (fixed limit "
                "max_pattern_characters); list fixed strings as `enum` of a JSON Schema, or as choices",
            )
        self._skip()
        bounds = self._quantifier()
        if bounds is None:
            return atom
        if isinstance(atom, Anchor | WordBoundary | Look):
            raise self._invalid("an anchor, a word boundary or a look-around cannot be repeated", begin)
        lazy = self._take("?")
        behind = self._position
        if self._quantifier() is not None:
            kind = "possessive" if self._pattern[behind] == "+" else "repeated"
            raise self._unsupported(f"{kind} quantifier", behind)
        return Repeat(atom, *bounds, lazy, begin)

    def _skip(self) -> None:
        """Advance past text without meaning. Here there is none."""

    def _quantifier(self) -> tuple[int, int | None] | None:
        begin = self._position
        if bounds := SIMPLE_REPEATS.get(self._peek()):
            self._position += 1
            return bounds
        count = _COUNT.match(self._pattern, begin)
        if count is None:
            return None  # Python, and ECMA-262 without the flag u, read such a brace as the character.
        low, comma, high = count.groups()
        if not low and not self.is_python:
            raise self._invalid("a count without a lower bound; write {0,n}", begin)
        self._position = count.end()
        high = high if comma else low
        least, most = int(low[:20] or 0), int(high[:20]) if high else None
        if max(least, most or 0) > MAX_REPEAT:
            message = f"the repeat count {max(least, most or 0)} is above {MAX_REPEAT}"
            raise LimitExceededError(f"{message}; repeat a group that repeats, or leave it open", position=begin)
        if most is not None and most < least:
            raise self._invalid("repeat bounds out of order", begin)
        return least, most

    def _atom(self) -> Node:
        begin = self._position
        character = self._next()
        if character not in _SPECIAL:
            return Characters(self._folded(single(ord(character))))
        if character == "(":
            return self._group()
        if character == "[":
            return Characters(self._bracket())
        if character == ".":
            return Characters(ANYTHING if "s" in self._flags else DOT)
        if character in "^$":
            return Anchor(character == "$", begin)
        if self._peek() in ("b", "B"):
            # In ECMA-262, characters that equal a word character without case (U+017F, U+212A) are word characters.
            return WordBoundary(self._next() == "B", self._folded(self._named("w")), begin)
        return Characters(self._folded(self._escape(in_class=False)))

    def _group(self) -> Node:
        begin = self._position - 1
        self._depth += 1
        if self._depth > self._limits.max_nesting:
            raise LimitExceededError(
                f"groups nested deeper than {self._limits.max_nesting} (fixed limit max_nesting)", position=begin
            )
        flags = self._flags
        look = self._group_head(begin) if self._take("?") else None
        body = self._alternatives()
        if not self._take(")"):
            raise self._invalid("missing ')': this '(' is never closed", begin)
        self._depth -= 1
        self._flags = flags
        if look is not None:
            return Look(body, *look, begin, self._position)
        # A group may be repeated, whatever it contains.
        return Sequence((body,)) if isinstance(body, Anchor | WordBoundary | Look) else body

    def _group_head(self, begin: int) -> tuple[bool, bool] | None:
        """Read the text after `(?`. Return (behind, negative) for a look-around, None for a group."""
        if self._take(":"):
            return None
        for symbol, look in (("=", (False, False)), ("!", (False, True)), ("<=", (True, False)), ("<!", (True, True))):
            if self._take(symbol):
                return look
        if self._take("P=") or self._take("P>"):
            raise self._unsupported("back-reference", begin)
        if self._take("P<") or (not self.is_python and self._take("<")):
            name = self._until(">")
            if name is None or not name.isidentifier() or name in self._names:
                raise self._invalid("malformed group name, or the name of another group", begin)
            self._names.add(name)
            return None
        for symbol, what in ((">", "atomic group"), ("(", "conditional group"), ("#", "comment")):
            if self._take(symbol):
                raise self._unsupported(what, begin)
        flags = _FLAGS.match(self._pattern, self._position)
        if flags is None:
            raise self._unsupported("group modifier", begin)
        if flags[3] == ")":
            raise self._unsupported("flag that does not stand at the beginning", begin)
        self._flags = self._with_flags(flags[1], flags[2] or "", begin)
        self._position = flags.end()
        return None

    def _with_flags(self, added: str, removed: str, begin: int) -> frozenset[str]:
        for flag in added + removed:
            if flag not in ("aimsux" if self.is_python else "is"):
                raise self._unsupported(f"flag '{flag}'", begin)
        return (self._flags | frozenset(added)) - frozenset(removed)

    # -- classes -------------------------------------------------------------------------------------------------

    def _folded(self, characters: CharacterClass) -> CharacterClass:
        return characters.folded() if "i" in self._flags else characters

    def _named(self, name: str) -> CharacterClass:
        return named(name)

    def _bracket(self) -> CharacterClass:
        begin = self._position - 1
        negated = self._take("^")
        items: list[CharacterClass] = []
        while (self.is_python and not items) or not self._take("]"):
            if self._position >= len(self._pattern):
                raise self._invalid("missing ']'", begin)
            item = self._class_item()
            if self._peek() == "-" and self._pattern[self._position + 1 : self._position + 2] not in ("", "]"):
                at = self._position
                self._position += 1
                item = self._range(item, self._class_item(), at)
            items.append(self._folded(item))
        if not items:
            # Python reads the closing bracket as the first character of the class.
            raise self._unsupported("an empty class", begin)
        class_ = joined(items)
        return class_.negated() if negated else class_

    def _class_item(self) -> CharacterClass:
        character = self._next()
        return self._escape(in_class=True) if character == "\\" else single(ord(character))

    def _range(self, low: CharacterClass, high: CharacterClass, position: int) -> CharacterClass:
        first, last = low.single, high.single
        if first is None or last is None:
            raise self._invalid("a class as the end of a range", position)
        if first > last:
            raise self._invalid("character range out of order", position)
        return agreed(charset.make([(first, last)]))

    def _escape(self, *, in_class: bool) -> CharacterClass:
        begin = self._position - 1
        if self._position >= len(self._pattern):
            raise self._invalid("a backslash at the end", begin)
        character = self._next()
        if character.lower() in "dws":
            class_ = self._folded(self._named(character.lower()))
            return class_.negated() if character.isupper() else class_
        if character in _CONTROL:
            return single(_CONTROL[character])
        if character in "xu":
            return single(self._code_point(character, begin))
        if character == "c":
            letter = self._next() if self._position < len(self._pattern) else ""
            if not (letter.isascii() and letter.isalpha()):
                raise self._invalid("\\c without a letter", begin)
            return single(ord(letter) % 32)
        if character == "b" and in_class:
            return single(8)
        if character in "pP":
            return self._property(begin, negated=character == "P")
        if character in "AZz":
            raise self._unsupported(f"\\{character}", begin)
        if character == "0" and not self._peek().isdecimal():
            return single(0)
        if character.isdecimal() or character == "k":
            raise self._unsupported("back-reference", begin)
        if character.isascii() and character.isalpha():
            raise self._invalid(f"unknown escape \\{character}", begin)
        return single(ord(character))

    def _property(self, begin: int, *, negated: bool) -> CharacterClass:
        name = self._until("}") if self._take("{") else None
        if name is None:
            raise self._invalid("a property without braces", begin)
        class_ = character_class.with_property(name)
        if class_ is None:
            raise self._unsupported(f"the Unicode property {name!a}", begin)
        return class_.negated() if negated else class_

    def _code_point(self, kind: str, begin: int) -> int:
        value = self._hexadecimal(kind, begin)
        if 0xD800 <= value <= 0xDBFF and self._take("\\u"):
            low = self._hexadecimal("u", begin)
            if 0xDC00 <= low <= 0xDFFF:
                return 0x10000 + ((value - 0xD800) << 10) + (low - 0xDC00)
        if not is_scalar_value(value):
            raise self._invalid("not a character", begin)
        return value

    def _hexadecimal(self, kind: str, begin: int) -> int:
        found = _HEXADECIMAL.match(self._pattern, self._position - 1)
        if found is None:
            raise self._invalid(f"malformed \\{kind} escape", begin)
        self._position = found.end()
        return int(found[found.lastindex or 0], 16)

    # -- tools ---------------------------------------------------------------------------------------------------

    def _peek(self) -> str:
        return self._pattern[self._position : self._position + 1]

    def _next(self) -> str:
        self._position += 1
        return self._pattern[self._position - 1]

    def _take(self, text: str) -> bool:
        if self._pattern.startswith(text, self._position):
            self._position += len(text)
            return True
        return False

    def _until(self, end: str) -> str | None:
        text, found, _ = self._pattern[self._position :].partition(end)
        self._position += len(text) + 1
        return text if found else None

    def _invalid(self, message: str, position: int | None = None) -> InvalidSpecificationError:
        return InvalidSpecificationError(
            f"malformed pattern: {message}", position=self._position if position is None else position
        )

    def _unsupported(self, what: str, position: int | None = None) -> UnsupportedFeatureError:
        instead = next((f"; {todo}" for name, todo in _INSTEAD.items() if name in what), "")
        return UnsupportedFeatureError(
            f"{what} in a pattern is not supported{instead}",
            position=self._position if position is None else position,
        )
