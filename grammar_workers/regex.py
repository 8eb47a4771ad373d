"""Regular expressions: the common ground of ECMA-262 (with flag u) and Python's `re`, read into a character automaton.

Where the two dialects differ (`\\d`, `\\w`, `\\s` and their complements, `.`, `$` before a final line feed), a pattern
means what both agree on, so that whatever is generated is valid in both. Patterns are refused, with the position, where
one of them has no regular meaning here: look-around, back-references, `\\b`.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable

from grammar_workers import charset
from grammar_workers.character_automaton import CharacterAutomaton, NondeterministicAutomaton, determinize
from grammar_workers.charset import Charset
from grammar_workers.errors import InvalidSpecificationError, LimitExceededError, UnsupportedFeatureError
from grammar_workers.options import Limits

_MAX_REPEAT = 1 << 20
_LINE_ENDS = charset.of("\n\r\u2028\u2029")
_ECMA_SPACE = charset.make(
    (ord(span[0]), ord(span[-1]))
    for span in ["\t\r", " ", "\xa0", "\u1680", "\u2000\u200a", "\u2028\u2029", "\u202f", "\u205f", "\u3000", "\ufeff"]
)
_ECMA = {
    "d": charset.make([(0x30, 0x39)]),
    "w": charset.make([(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)]),
    "s": _ECMA_SPACE,
}
# Python's own classes hold more (all of Unicode's digits and letters), but for U+FEFF, which is no space there.
_COMMON = _ECMA | {"s": charset.subtract(_ECMA_SPACE, charset.of("\ufeff"))}
_COUNT = re.compile(r"[0-9]+(,[0-9]*)?")
_CONTROL = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13}


@dataclasses.dataclass(frozen=True)
class _Class:
    """A character class as each dialect reads it (computed when needed), and what both accept.

    `common` is None where it is not simply known: Python's sets of digits, letters and spaces are large.
    """

    ecma: Callable[[], Charset]
    python: Callable[[], Charset]
    common: Charset | None

    def characters(self, *, either: bool) -> Charset:
        """What both dialects accept, or what either does."""
        if either:
            return charset.union(self.ecma(), self.python())
        return charset.intersect(self.ecma(), self.python()) if self.common is None else self.common

    def negated(self) -> _Class:
        if self.common is not None and self.ecma is self.python:
            return _same_in_both(charset.complement(self.common))
        return _Class(lambda: charset.complement(self.ecma()), lambda: charset.complement(self.python()), None)


def _same_in_both(characters: Charset) -> _Class:
    def get() -> Charset:
        return characters

    return _Class(get, get, characters)


def _single(code_point: int) -> _Class:
    return _same_in_both(charset.make([(code_point, code_point)]))


def _named(name: str) -> _Class:
    return _Class(lambda: _ECMA[name], lambda: charset.matching(rf"\{name}"), _COMMON[name])


def _joined(items: list[_Class]) -> _Class:
    """The union. What both dialects accept of it may be more than the union of what both accept of the parts."""
    known = [item.common for item in items if item.common is not None]
    if all(item.ecma is item.python for item in items):
        return _same_in_both(charset.union(*known))
    return _Class(
        lambda: charset.union(*(item.ecma() for item in items)),
        lambda: charset.union(*(item.python() for item in items)),
        charset.union(*known) if len(known) == len(items) else None,
    )


def compile_regex(pattern: str, *, search: bool, limits: Limits, either: bool = False) -> CharacterAutomaton:
    """The automaton of the texts that `pattern` matches: somewhere inside when `search`, else as a whole.

    Both dialects agree that these texts match; with `either`, at least one says so (what a negation must avoid).

    Raises InvalidSpecificationError or UnsupportedFeatureError with the position in `pattern`, and LimitExceededError.
    """
    if "\0" in pattern:
        raise InvalidSpecificationError("a NUL character in a pattern", position=pattern.index("\0"))
    parser = _Parser(pattern, limits, either)
    automaton = parser.automaton
    begin = automaton.state()
    first, last = parser.parse()
    automaton.silent[begin].append(first)
    automaton.final = automaton.state()
    automaton.silent[last].append(automaton.final)
    if search:
        automaton.edges[begin].append((charset.ALL, begin))
        automaton.edges[automaton.final].append((charset.ALL, automaton.final))
    return determinize(automaton, limits)


@functools.lru_cache(maxsize=4096)
def search_automaton(pattern: str, limits: Limits, either: bool = False) -> CharacterAutomaton:
    """`compile_regex` with `search`, shared between schemas."""
    return compile_regex(pattern, search=True, limits=limits, either=either)


_Fragment = tuple[int, int]
"""(first state, last state) of a part of the automaton; nothing leaves the last state yet."""


class _Parser:
    """Recursive descent that builds the nondeterministic automaton on the way."""

    def __init__(self, pattern: str, limits: Limits, either: bool) -> None:
        self._pattern = pattern
        self._position = 0
        self._depth = 0
        self._limits = limits
        self._either = either
        self.automaton = NondeterministicAutomaton()

    def parse(self) -> _Fragment:
        fragment = self._alternatives()
        if self._position < len(self._pattern):
            raise self._invalid("unbalanced ')'")
        return fragment

    # -- grammar -------------------------------------------------------------------------------------------------

    def _alternatives(self) -> _Fragment:
        branches = [self._sequence()]
        while self._take("|"):
            branches.append(self._sequence())
        if len(branches) == 1:
            return branches[0]
        first, last = self._state(), self._state()
        for start, end in branches:
            self.automaton.silent[first].append(start)
            self.automaton.silent[end].append(last)
        return first, last

    def _sequence(self) -> _Fragment:
        first = last = self._state()
        while self._position < len(self._pattern) and self._peek() not in "|)":
            start, end = self._repeated()
            self.automaton.silent[last].append(start)
            last = end
        return first, last

    def _repeated(self) -> _Fragment:
        begin = self._position
        if self._peek() in "*+?":
            raise self._invalid("nothing to repeat")
        anchor = self._peek() in "^$"
        fragment = self._atom()
        bounds = self._quantifier()
        if bounds is None:
            return fragment
        if anchor:
            raise self._invalid("an anchor cannot be repeated", begin)
        self._take("?")  # A lazy quantifier matches the same texts.
        if self._position < len(self._pattern) and self._peek() in "*+?":
            raise self._unsupported("possessive or repeated quantifier")
        after = self._position
        first, last = self._repeat(fragment, begin, *bounds)
        self._position = after
        return first, last

    def _repeat(self, fragment: _Fragment, begin: int, low: int, high: int | None) -> _Fragment:
        first = last = self._state()
        silent = self.automaton.silent
        unused: _Fragment | None = fragment

        def copy() -> _Fragment:
            # Further copies read the same part of the pattern again.
            nonlocal unused
            if unused is not None:
                ready, unused = unused, None
                return ready
            self._position = begin
            return self._atom()

        for _ in range(low):
            start, end = copy()
            silent[last].append(start)
            last = end
        if high is None:
            start, end = copy()
            loop = self._state()
            silent[last].append(loop)
            silent[loop].append(start)
            silent[end].append(loop)
            return first, loop
        done = self._state()
        for _ in range(high - low):
            start, end = copy()
            silent[last].append(start)
            silent[last].append(done)
            last = end
        silent[last].append(done)
        return first, done

    def _quantifier(self) -> tuple[int, int | None] | None:
        for symbol, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(symbol):
                return bounds
        begin = self._position
        if not self._take("{"):
            return None
        text = self._pattern[self._position :].partition("}")
        low, comma, high = text[0].partition(",")
        if text[0].startswith(",") and text[1]:
            raise self._invalid("a count without a lower bound; write {0,n}", begin)
        if not _COUNT.fullmatch(text[0]) or not text[1]:
            # Python, and ECMA-262 without the flag u, read a brace that holds no count as the character.
            self._position = begin
            return None
        self._position += len(text[0]) + 1
        least = int(low)
        most = None if comma and not high else int(high or low)
        if max(least, most or 0) > _MAX_REPEAT:
            raise LimitExceededError(f"a repeat count above {_MAX_REPEAT}", position=begin)
        if most is not None and most < least:
            raise self._invalid("repeat bounds out of order", begin)
        return least, most

    def _atom(self) -> _Fragment:
        character = self._next()
        if character == "(":
            return self._group()
        if character == "[":
            return self._edge(self._bracket().characters(either=self._either))
        if character == ".":
            return self._edge(charset.complement(charset.of("\n") if self._either else _LINE_ENDS))
        if character in "^$":
            first, last = self._state(), self._state()
            anchors = self.automaton.at_start if character == "^" else self.automaton.at_end
            anchors.setdefault(first, []).append(last)
            if character == "$" and self._either:
                # Python's `$` matches before a final line feed, too.
                before = self._state()
                self.automaton.edges[first].append((charset.of("\n"), before))
                anchors.setdefault(before, []).append(last)
            return first, last
        if character == "\\":
            return self._edge(self._escape(in_class=False).characters(either=self._either))
        return self._edge(charset.of(character))

    def _group(self) -> _Fragment:
        begin = self._position - 1
        self._depth += 1
        if self._depth > self._limits.max_nesting:
            raise LimitExceededError(
                f"groups nested deeper than {self._limits.max_nesting} (limit max_nesting)", position=begin
            )
        if self._take("?"):
            if self._take(":"):
                pass
            elif self._position < len(self._pattern) and (self._take("=") or self._take("!")):
                raise self._unsupported("look-ahead", begin)
            elif self._take("P<") or (self._take("<") and self._peek_or_end() not in "=!"):
                name, closed, _ = self._pattern[self._position :].partition(">")
                if not closed or not name.isidentifier():
                    raise self._invalid("malformed group name", begin)
                self._position += len(name) + 1
            elif self._pattern[self._position - 1] == "<":
                raise self._unsupported("look-behind", begin)
            else:
                raise self._unsupported("group modifier", begin)
        fragment = self._alternatives()
        if not self._take(")"):
            raise self._invalid("missing ')'", begin)
        self._depth -= 1
        return fragment

    def _bracket(self) -> _Class:
        begin = self._position - 1
        negated = self._take("^")
        items: list[_Class] = []
        while not self._take("]"):
            if self._position >= len(self._pattern):
                raise self._invalid("missing ']'", begin)
            item = self._class_item()
            if self._peek_or_end() == "-" and self._pattern[self._position + 1 : self._position + 2] not in ("", "]"):
                at = self._position
                self._position += 1
                item = self._range(item, self._class_item(), at)
            items.append(item)
        if not items and not negated:
            raise self._unsupported("an empty class", begin)
        joined = _joined(items)
        return joined.negated() if negated else joined

    def _class_item(self) -> _Class:
        character = self._next()
        return self._escape(in_class=True) if character == "\\" else _single(ord(character))

    def _range(self, low: _Class, high: _Class, position: int) -> _Class:
        ends = []
        for side in (low, high):
            single = side.common if side.ecma is side.python else None
            if single is None or len(single) != 1 or single[0][0] != single[0][1]:
                raise self._invalid("a class as the end of a range", position)
            ends.append(single[0][0])
        if ends[0] > ends[1]:
            raise self._invalid("character range out of order", position)
        return _same_in_both(charset.make([(ends[0], ends[1])]))

    def _escape(self, *, in_class: bool) -> _Class:
        begin = self._position - 1
        if self._position >= len(self._pattern):
            raise self._invalid("a backslash at the end", begin)
        character = self._next()
        if character.lower() in "dws":
            named = _named(character.lower())
            return named.negated() if character.isupper() else named
        if character in _CONTROL:
            return _single(_CONTROL[character])
        if character in "xu":
            return _single(self._code_point(character, begin))
        if character == "c":
            letter = self._next() if self._position < len(self._pattern) else ""
            if not (letter.isascii() and letter.isalpha()):
                raise self._invalid("\\c without a letter", begin)
            return _single(ord(letter) % 32)
        if character == "b" and in_class:
            return _single(8)
        if character in "bB":
            raise self._unsupported("word boundary", begin)
        if character in "pP":
            raise self._unsupported("\\p class", begin)
        if character in "AZz":
            raise self._unsupported(f"\\{character}", begin)
        if character == "0" and not self._peek_or_end().isdecimal():
            raise self._invalid("a NUL character in a pattern", begin)
        if character.isdecimal() or character == "k":
            raise self._unsupported("back-reference", begin)
        if character.isascii() and character.isalpha():
            raise self._invalid(f"unknown escape \\{character}", begin)
        return _single(ord(character))

    def _code_point(self, kind: str, begin: int) -> int:
        value = self._hexadecimal(kind, begin)
        if 0xD800 <= value <= 0xDBFF and self._take("\\u"):
            low = self._hexadecimal("u", begin)
            if 0xDC00 <= low <= 0xDFFF:
                return 0x10000 + ((value - 0xD800) << 10) + (low - 0xDC00)
        if value == 0:
            raise self._invalid("a NUL character in a pattern", begin)
        if value > 0x10FFFF or 0xD800 <= value <= 0xDFFF:
            raise self._invalid("not a character", begin)
        return value

    def _hexadecimal(self, kind: str, begin: int) -> int:
        if kind == "u" and self._take("{"):
            digits, closed, _ = self._pattern[self._position :].partition("}")
            self._position += len(digits) + 1
        else:
            width = 2 if kind == "x" else 4
            digits = closed = self._pattern[self._position : self._position + width]
            self._position += width
            closed = closed if len(digits) == width else ""
        if not closed or not re.fullmatch("[0-9a-fA-F]+", digits):
            raise self._invalid(f"malformed \\{kind} escape", begin)
        return int(digits, 16)

    # -- tools ---------------------------------------------------------------------------------------------------

    def _state(self) -> int:
        state = self.automaton.state()
        if state > self._limits.max_regex_states * 8:
            raise LimitExceededError(
                f"the pattern is longer than {self._limits.max_regex_states * 8} elements once its counts are written "
                "out (limit max_regex_states)"
            )
        return state

    def _edge(self, characters: Charset) -> _Fragment:
        first, last = self._state(), self._state()
        if characters:
            self.automaton.edges[first].append((characters, last))
        return first, last

    def _peek(self) -> str:
        return self._pattern[self._position]

    def _peek_or_end(self) -> str:
        return self._pattern[self._position : self._position + 1]

    def _next(self) -> str:
        self._position += 1
        return self._pattern[self._position - 1]

    def _take(self, text: str) -> bool:
        if self._pattern.startswith(text, self._position):
            self._position += len(text)
            return True
        return False

    def _invalid(self, message: str, position: int | None = None) -> InvalidSpecificationError:
        return InvalidSpecificationError(
            f"malformed pattern: {message}", position=self._position if position is None else position
        )

    def _unsupported(self, what: str, position: int | None = None) -> UnsupportedFeatureError:
        return UnsupportedFeatureError(
            f"{what} in a pattern is not supported", position=self._position if position is None else position
        )
