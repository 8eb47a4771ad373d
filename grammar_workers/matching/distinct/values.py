"""JSON values as they are read, numbered by what they mean: 1.0 is 1, \\u0061 is a, and names have no order.

A *position* is what has been read of one value: (kind, text, pending, container). `text` is what has been read of a
scalar: the UTF-8 of a string with its escapes resolved but for a `pending` one, the spelling of anything else.
`container` is the innermost open array or object around it, whose complete parts are values; 0 for none.

Nothing here fails on text that is no JSON, which an automaton that somebody has tampered with may read.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any, NamedTuple, TypeAlias, TypeVar

from grammar_workers.matching.distinct.numbers import may_become, meaning_of

BEGIN, STRING, NAME, NUMBER, WORD, DONE = range(6)
"""Kinds: before a value or between the parts of a container; inside of a string, a property name, a number, or a word
such as `true`; behind the value, whose number stands in place of the container."""
Position: TypeAlias = tuple[int, bytes, bytes, int]
ValueId: TypeAlias = int
AT_VALUE: Position = (BEGIN, b"", b"", 0)
AT_NAME: Position = (NAME, b"", b"", 0)
"""Where a name begins behind its quote."""

_SCALARS = frozenset(b"+-.0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_NUMBERS = frozenset(b"-0123456789")
_BETWEEN = frozenset(b" \t\n\r,:")
_SHORT_ESCAPES = dict(zip(b"bfnrt", b"\b\f\n\r\t", strict=True))
_IN_ESCAPES = b'"/\\bfnrtu0123456789abcdefABCDEF'
_FEW = 16
_ESCAPE_LENGTH = len(rb"\u0000")
_MOST_REMEMBERED = 1 << 17
_ENTRY_BYTES = 250
_ARRAY, _OBJECT = range(2)


class _Container(NamedTuple):
    """An open container: its kind, the one around it, its parts so far, and in an object the name just read."""

    kind: int
    parent: int
    parts: int
    name: bytes | None


class _Part(NamedTuple):
    """One more part behind `before` (0: the first one): its name in an object, its value, and how many there are."""

    before: int
    name: bytes | None
    value: ValueId
    many: int


Entry = TypeVar("Entry", bound="tuple[Any, ...]")


class Values:
    """Values, open containers and their parts, each numbered once."""

    def __init__(self) -> None:
        self._ids: dict[Hashable, int] = {}
        self._meanings: list[tuple[str, Any]] = []
        self._containers: list[_Container] = [_Container(_ARRAY, 0, 0, None)]
        self._parts: list[_Part] = [_Part(0, None, -1, 0)]
        self._members: dict[ValueId, dict[bytes, ValueId]] = {}
        self._wanted: dict[tuple[int, ValueId], ValueId | None] = {}
        self.nbytes = 0

    # -- reading ---------------------------------------------------------------------------------------------------

    def read(self, position: Position, byte: int) -> Position:
        """The position after one more byte."""
        kind, text, pending, container = position
        if kind in (STRING, NAME):
            return self._read_string(kind, text, pending, container, byte)
        if kind in (NUMBER, WORD):
            if byte in _SCALARS:
                return kind, text + bytes([byte]), b"", container
            kind, _, _, container = self._closed(container, self._scalar(kind, text))
        if kind == DONE or byte in _BETWEEN:
            return kind, b"", b"", container
        if byte == ord('"'):
            around = self._containers[container]
            is_name = container > 0 and around.kind == _OBJECT and around.name is None
            return NAME if is_name else STRING, b"", b"", container
        if byte in b"[{":
            opened = _Container(_ARRAY if byte == ord("[") else _OBJECT, container, 0, None)
            return BEGIN, b"", b"", self._number(self._containers, opened)
        if byte in b"]}":
            return self._closed(self._containers[container].parent, self._whole(container)) if container else position
        return NUMBER if byte in _NUMBERS else WORD, bytes([byte]), b"", container

    def finish(self, position: Position) -> ValueId:
        """The value that ends here."""
        kind, text, _, container = position
        if kind == DONE:
            return container
        if container == 0 and kind in (NUMBER, WORD):
            return self._scalar(kind, text)
        return self._value("unfinished", position)

    def _read_string(self, kind: int, text: bytes, pending: bytes, container: int, byte: int) -> Position:
        high = pending[:_ESCAPE_LENGTH] if len(pending) >= _ESCAPE_LENGTH else b""
        escape = pending[len(high) :]
        if not escape:
            if byte == ord("\\"):
                return kind, text, high + b"\\", container
            # A high surrogate that no low one follows stands for itself.
            text += _character(high)
            if byte != ord('"'):
                return kind, text + bytes([byte]), b"", container
            if kind == NAME and container:
                named = self._containers[container]._replace(name=text)
                return BEGIN, b"", b"", self._number(self._containers, named)
            return self._closed(container, self._value("string", text))
        if escape == b"\\" and byte != ord("u"):
            return kind, text + _character(high) + bytes([_SHORT_ESCAPES.get(byte, byte)]), b"", container
        escape += bytes([byte]).lower()
        if len(escape) < _ESCAPE_LENGTH:
            return kind, text, high + escape, container
        if high and b"\\udc00" <= escape <= b"\\udfff":
            code = 0x10000 + ((_code(high) - 0xD800) << 10) + _code(escape) - 0xDC00
            return kind, text + chr(code).encode(), b"", container
        text += _character(high)
        if b"\\ud800" <= escape <= b"\\udbff":
            return kind, text, escape, container
        return kind, text + _character(escape), b"", container

    def _closed(self, container: int, value: ValueId) -> Position:
        """The position behind a part of a container, or behind the whole value."""
        if not container:
            return DONE, b"", b"", value
        kind, parent, parts, name = self._containers[container]
        part = self._number(self._parts, _Part(parts, name, value, self._parts[parts].many + 1))
        return BEGIN, b"", b"", self._number(self._containers, _Container(kind, parent, part, None))

    def _whole(self, container: int) -> ValueId:
        parts = self._parts_of(self._containers[container].parts)
        if self._containers[container].kind == _ARRAY:
            return self._value("array", tuple(part.value for part in parts))
        members = {part.name or b"": part.value for part in parts}
        value = self._value("object", frozenset(members.items()))
        self._members[value] = members
        return value

    def _parts_of(self, last: int) -> list[_Part]:
        parts = []
        while last:
            parts.append(self._parts[last])
            last = self._parts[last].before
        return parts[::-1]

    def _scalar(self, kind: int, text: bytes) -> ValueId:
        number = meaning_of(text) if kind == NUMBER else None
        return self._value("word", text) if number is None else self._value("number", number)

    def _value(self, kind: str, content: Hashable) -> ValueId:
        return self._number(self._meanings, (kind, content))

    def _number(self, entries: list[Entry], entry: Entry) -> int:
        """The number of an entry, made when new."""
        key = (type(entry), entry)
        number = self._ids.get(key)
        if number is None:
            number = self._ids[key] = len(entries)
            entries.append(entry)
            content = entry[1]
            self.nbytes += _ENTRY_BYTES + (8 * len(content) if isinstance(content, bytes | tuple | frozenset) else 0)
        return number

    # -- asking ------------------------------------------------------------------------------------------------------

    def meaning(self, value: ValueId) -> tuple[str, Any]:
        """The kind of a value and what tells it from others of that kind."""
        return self._meanings[value]

    def opened_before(self, container: int) -> int:
        """An open container before the last name or part of it was read; before its bracket, the one around it or 0."""
        kind, parent, parts, name = self._containers[container]
        if name is None and not parts:
            return parent
        before = parts if name is not None else self._parts[parts].before
        return self._number(self._containers, _Container(kind, parent, before, None))

    def may_lead_to(self, container: int, value: ValueId) -> bool:
        """Whether a value may come out of an open container."""
        return self._wanted_of(container, value) is not None

    # -- looking ahead ---------------------------------------------------------------------------------------------

    def may_become(self, position: Position, value: ValueId) -> bool:
        """Whether what has been read may be the beginning of this value; True, too, where that is hard to tell of a
        number, but not for more than finitely many beginnings."""
        kind, text, pending, container = position
        if kind == DONE:
            return container == value
        if kind == BEGIN:
            return container == 0 or self._wanted_of(container, value) is not None
        if kind in (STRING, NAME):
            return any(_spells(text, pending, whole) for whole in self._texts(position, value))
        target = self._part_wanted(container, value)
        if target is None:
            return False
        meaning, content = self._meanings[target]
        if kind == WORD:
            return meaning == "word" and content.startswith(text)
        return meaning == "number" and may_become(text, content)

    def next_bytes(self, position: Position, values: Iterable[ValueId]) -> frozenset[int] | None:
        """Inside of a string: the bytes after which it may still become a part of one of the values; None for any."""
        kind, text, pending, container = position
        wholes = [whole for value in values for whole in self._texts(position, value) if whole.startswith(text)]
        if not pending:
            found = {whole[len(text)] if len(whole) > len(text) else ord('"') for whole in wholes}
            return frozenset({*found, ord("\\")} if found else ())
        # An escape spells one character, and many values go on with the same.
        longer = {first_character(whole, len(text)) for whole in wholes if len(whole) > len(text)}
        begun = [whole for whole in longer if _spells(text, pending, whole)]
        if begun and (len(pending) >= _ESCAPE_LENGTH or len(begun) > _FEW):
            return None
        found = set()
        for byte in _IN_ESCAPES if begun else b"":
            _, after, still, _ = self._read_string(kind, text, pending, container, byte)
            if any(_spells(after, still, whole) for whole in begun):
                found.add(byte)
        return frozenset(found)

    def _texts(self, position: Position, value: ValueId) -> list[bytes]:
        """What the string or name in progress must be, if `value` is to come out of it."""
        kind, _, _, container = position
        if kind == NAME and container:
            target = self._wanted_of(container, value)
            return [] if target is None else list(self._members[target])
        target = self._part_wanted(container, value)
        meaning, content = ("", b"") if target is None else self._meanings[target]
        return [content] if meaning == "string" else []

    def _part_wanted(self, container: int, value: ValueId) -> ValueId | None:
        """What the part in progress of a container must be; None where `value` cannot come out of it any more."""
        if not container:
            return value
        target = self._wanted_of(container, value)
        if target is None:
            return None
        kind, _, parts, name = self._containers[container]
        if kind == _OBJECT:
            return self._members[target].get(name or b"")
        items: tuple[ValueId, ...] = self._meanings[target][1]
        many = self._parts[parts].many
        return items[many] if many < len(items) else None

    def _wanted_of(self, container: int, value: ValueId) -> ValueId | None:
        """What an open container must become, the outermost one becoming `value`; None where it cannot."""
        if len(self._wanted) > _MOST_REMEMBERED:
            self._wanted.clear()
        around = []
        while container and (container, value) not in self._wanted:
            around.append(container)
            container = self._containers[container].parent
        for inner in reversed(around):
            target = self._part_wanted(self._containers[inner].parent, value)
            self._wanted[inner, value] = target if target is not None and self._fits(inner, target) else None
            container = inner
        return self._wanted[container, value]

    def _fits(self, container: int, target: ValueId) -> bool:
        """Whether the parts of an open container are among those of a value."""
        kind, _, last, _ = self._containers[container]
        meaning, content = self._meanings[target]
        parts = self._parts_of(last)
        if kind == _ARRAY:
            if meaning != "array" or len(parts) > len(content):
                return False
            return all(part.value == wanted for part, wanted in zip(parts, content, strict=False))
        if meaning != "object":
            return False
        members = self._members[target]
        return all(members.get(part.name or b"") == part.value for part in parts)


def _code(escape: bytes) -> int:
    try:
        return int(escape[2:], 16)
    except ValueError:
        return 0xFFFD


def _character(escape: bytes) -> bytes:
    """The UTF-8 of an escape with four digits, a surrogate like any other character; nothing for none."""
    return chr(_code(escape)).encode("utf-8", "surrogatepass") if escape else b""


def first_character(text: bytes, behind: int) -> bytes:
    """A text in UTF-8 up to and with the character that follows so many bytes; all of it where none follows."""
    first = text[behind : behind + 1]
    width = 1 if first < b"\x80" else 2 if first < b"\xe0" else 3 if first < b"\xf0" else 4
    return text[: behind + width]


def _spells(text: bytes, pending: bytes, whole: bytes) -> bool:
    """Whether a string of which `text` and a `pending` escape have been read may become `whole`."""
    if not whole.startswith(text):
        return False
    if not pending:
        return True
    rest = whole[len(text) :].decode("utf-8", "surrogatepass")[:1]
    if not rest:
        return False
    code = ord(rest)
    units = [code] if code < 0x10000 else [0xD800 + ((code - 0x10000) >> 10), 0xDC00 + (code & 0x3FF)]
    return len(pending) == 1 or "".join(f"\\u{unit:04x}" for unit in units).startswith(pending.decode("latin-1"))
