"""Numbering of JSON values while they are read. Equal values have equal numbers.

Equality is that of JSON Schema: 1.0 equals 1, escapes are decoded, and the order of properties does not matter. A
*position* is the part of one value that has been read: (kind, text, pending, container).

- `kind` is one of the constants BEGIN, STRING, NAME, NUMBER, WORD and DONE.
- `text` is the part of a scalar that has been read: the UTF-8 of a string with its escapes decoded, or the literal text
  of a number or word.
- `pending` is an escape that is not complete yet. It is not part of `text`.
- `container` is the number of the innermost open array or object with its complete parts (items or properties). 0: no
  container is open.

If `kind` is DONE, the value is complete, and `container` is the number of the value. Values, open containers and their
parts are numbered when they first occur. A malicious automaton may read text that is not JSON. No function fails on it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any, NamedTuple, TypeAlias, TypeVar

from grammar_workers.matching.distinct.numbers import may_become, meaning_of
from grammar_workers.pushdown.json_text import SHORT_ESCAPES

# Kinds of positions: before a value or between the parts of a container; inside a string, a property name, a
# number, or a word such as `true`; after the value (the number of the value is then in the field `container`).
BEGIN, STRING, NAME, NUMBER, WORD, DONE = range(6)
Position: TypeAlias = tuple[int, bytes, bytes, int]
ValueId: TypeAlias = int
AT_VALUE: Position = (BEGIN, b"", b"", 0)
# Position at the beginning of a property name, after its opening quote.
AT_NAME: Position = (NAME, b"", b"", 0)

_SCALARS = frozenset(b"+-.0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_NUMBERS = frozenset(b"-0123456789")
_BETWEEN = frozenset(b" \t\n\r,:")
_SHORT_ESCAPES = {byte: ord(character) for character, byte in SHORT_ESCAPES.items()}
_IN_ESCAPES = b'"/\\bfnrtu0123456789abcdefABCDEF'
_FEW = 16
_ESCAPE_LENGTH = len(rb"\u0000")
_MOST_REMEMBERED = 1 << 17
_ENTRY_BYTES = 250
_ARRAY, _OBJECT = range(2)


class _Container(NamedTuple):
    """An open container.

    `kind` is _ARRAY or _OBJECT, `parent` is the container around it, `parts` is its last part (0: none), and `name` is
    the property name that was just read in an object.
    """

    kind: int
    parent: int
    parts: int
    name: bytes | None


class _Part(NamedTuple):
    """A part of a container, linked to the part `before` (0: it is the first one).

    `name` is its property name in an object, `value` is its value, and `many` is the number of parts up to this one.
    """

    before: int
    name: bytes | None
    value: ValueId
    many: int


Entry = TypeVar("Entry", bound="tuple[Any, ...]")


class Values:
    """Numbering of the JSON values that one automaton has read, and of open containers (arrays or objects).

    Equal values have equal numbers. A *position* is the part of a value that has been read: (kind, text, pending,
    container), see the module.

    Attributes:
        nbytes: Approximate memory of all numbered objects, in bytes.
    """

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
        """Return the position (the part of a value that has been read) after one more byte.

        Args:
            position: Position before the byte.
            byte: The byte, 0 to 255. If JSON does not allow the byte here, the result is arbitrary; no error is raised.
        """
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
        """Return the number of the value that ends at a position.

        Args:
            position: The part of the value that has been read. An incomplete value gets a number that differs from the
                numbers of all complete values.
        """
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
            # A high surrogate without a low one after it stands for itself.
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
        """Return the position after a part of a container, or after the whole value."""
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
        """Return the number of an entry, which is added if it is new."""
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
        """Return the kind and the normalized contents of a value.

        Args:
            value: Number of the value.

        Returns:
            The pair (kind, contents). The contents depend on the kind:

            - "string": its UTF-8, with escapes decoded.
            - "number": its normalized value, see `numbers.meaning_of`.
            - "word": its text.
            - "array": tuple of the numbers of its items.
            - "object": frozenset of pairs (property name, number of the value).
            - "unfinished" (an incomplete value): its position.
        """
        return self._meanings[value]

    def opened_before(self, container: int) -> int:
        """Return the number of an open container as it was before its last part (item or property) was read.

        Args:
            container: Number of an open array or object with its complete parts. In an object, the last thing read may
                also be a property name without a value.

        Returns:
            The number of the container without its last part or property name. If there is neither: the number of the
            container around it; 0 if none is around it.
        """
        kind, parent, parts, name = self._containers[container]
        if name is None and not parts:
            return parent
        before = parts if name is not None else self._parts[parts].before
        return self._number(self._containers, _Container(kind, parent, before, None))

    def may_lead_to(self, container: int, value: ValueId) -> bool:
        """Return whether a partly read array or object may become equal to `value`.

        Args:
            container: Number of its innermost open array or object, with the complete parts.
            value: Number of a complete value.
        """
        return self._wanted_of(container, value) is not None

    # -- looking ahead ---------------------------------------------------------------------------------------------

    def may_become(self, position: Position, value: ValueId) -> bool:
        """Return whether a partly read value may become equal to `value`.

        False is always correct. True may be wrong for numbers, but only for finitely many beginnings of a number.

        Args:
            position: The part of the value that has been read.
            value: Number of a complete value.
        """
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
        """Return the next bytes inside a string after which the value in progress may become equal to one of `values`.

        Args:
            position: The part of the value that has been read. It ends inside a string or property name.
            values: Numbers of complete values.

        Returns:
            The set of bytes, which may be empty. None: any byte may lead to one of `values`.
        """
        kind, text, pending, container = position
        wholes = [whole for value in values for whole in self._texts(position, value) if whole.startswith(text)]
        if not pending:
            found = {whole[len(text)] if len(whole) > len(text) else ord('"') for whole in wholes}
            return frozenset({*found, ord("\\")} if found else ())
        # An escape encodes one character, with which many values may continue.
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
        """Return the possible contents of the string or name in progress, if the whole value is to become `value`."""
        kind, _, _, container = position
        if kind == NAME and container:
            target = self._wanted_of(container, value)
            return [] if target is None else list(self._members[target])
        target = self._part_wanted(container, value)
        meaning, content = ("", b"") if target is None else self._meanings[target]
        return [content] if meaning == "string" else []

    def _part_wanted(self, container: int, value: ValueId) -> ValueId | None:
        """Return the value that the part in progress must have for the whole to become `value`, or None."""
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
        """Return the value that an open container must have for the outermost value to become `value`, or None."""
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
        """Return whether the parts of an open container agree with the parts of a value."""
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
    """Return the UTF-8 of a Unicode escape, also for lone surrogates; b"" for no escape."""
    return chr(_code(escape)).encode("utf-8", "surrogatepass") if escape else b""


def first_character(text: bytes, behind: int) -> bytes:
    """Return the beginning of a text up to the end of one of its characters. Example: b"ab" for b"abc" and offset 1.

    Args:
        text: UTF-8.
        behind: Offset of the first byte of the character, in bytes.
    """
    first = text[behind : behind + 1]
    width = 1 if first < b"\x80" else 2 if first < b"\xe0" else 3 if first < b"\xf0" else 4
    return text[: behind + width]


def _spells(text: bytes, pending: bytes, whole: bytes) -> bool:
    """Return whether a string of which `text` and a `pending` escape have been read may become `whole`."""
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
