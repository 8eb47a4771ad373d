"""What Python and ECMA-262 say of regular expressions: `re`, and V8 with the flag `u`."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import re
import unicodedata
import warnings
from collections.abc import Iterator
from typing import Any
from unittest import mock

import jsonschema._keywords
import jsonschema._legacy_keywords
import jsonschema._utils
import regex
from py_mini_racer import MiniRacer

from tests.grammar_workers.fuzz.exclusions import EXCLUDED_PATTERNS

_MODULES = (jsonschema._keywords, jsonschema._legacy_keywords, jsonschema._utils)
_CALL = """
(source, flags, texts) => {
  try {
    const pattern = new RegExp(source, flags);
    return JSON.stringify(texts.map(text => pattern.test(text)));
  } catch (error) { return JSON.stringify(String(error)); }
}
"""


class UnreadableError(ValueError):
    """The dialect does not know the pattern."""


class PythonPatterns:
    """Stands in for the module `re` where `jsonschema` searches, and knows Unicode properties."""

    name = "Python"

    @staticmethod
    @functools.lru_cache(maxsize=100_000)
    def search(pattern: str, text: str) -> bool:
        return _python(pattern).search(text) is not None

    @staticmethod
    @functools.lru_cache(maxsize=100_000)
    def fullmatch(pattern: str, text: str) -> bool:
        return _python(pattern).fullmatch(text) is not None


class EcmaPatterns:
    """The same by V8."""

    name = "ECMA-262"

    @staticmethod
    @functools.lru_cache(maxsize=100_000)
    def search(pattern: str, text: str) -> bool:
        return _ecma(pattern, text)

    @staticmethod
    @functools.lru_cache(maxsize=100_000)
    def fullmatch(pattern: str, text: str) -> bool:
        flags, rest = _leading_flags(pattern)
        return _ecma(f"{flags}^(?:{rest})$", text)


Patterns = type[PythonPatterns] | type[EcmaPatterns]
DIALECTS: tuple[Patterns, ...] = (PythonPatterns, EcmaPatterns)


@contextlib.contextmanager
def read_by(patterns: Patterns) -> Iterator[None]:
    """`jsonschema` searches as the dialect does.

    It joins the patterns of `patternProperties` by `|` to find additional properties: a flag of the first would be one
    of all, and the pattern `` none. Here each is searched by itself.
    """

    def additional(instance: dict[str, Any], schema: dict[str, Any]) -> Iterator[str]:
        for name in instance:
            found = any(patterns.search(pattern, name) for pattern in schema.get("patternProperties", {}))
            if name not in schema.get("properties", {}) and not found:
                yield name

    with contextlib.ExitStack() as stack:
        for module in _MODULES:
            stack.enter_context(mock.patch.object(module, "re", patterns))
        stack.enter_context(mock.patch.object(jsonschema._keywords, "find_additional_properties", additional))
        yield


def is_settled(text: str) -> bool:
    """Whether every character is one that all versions of Unicode since 14 treat alike: those of the judges differ."""
    return not any((unicodedata.category(c) == "Cn" and not _is_noncharacter(c)) or c == "\u0295" for c in text)


def _is_noncharacter(character: str) -> bool:
    return "\ufdd0" <= character <= "\ufdef" or ord(character) & 0xFFFE == 0xFFFE


def is_doubtful(pattern: str, text: str) -> bool:
    """Whether the dialects may read parts of the pattern in other ways although they agree about the whole text.

    Until Python 3.14 `\\B` is found nowhere in an empty text; in ECMA-262 it is.
    """
    if not text and "\\B" in pattern:
        return True
    has_classes = re.search(r"\\[wWdDsSbB]|\(\?[ims]|\.|\$", pattern) is not None
    return has_classes and re.search(r"[^\x00-\x7f]|[\x1c-\x1f\r\n]", text) is not None


def disagree(pattern: str, text: str) -> bool:
    """Whether the dialects find the pattern in one and the same text."""
    return PythonPatterns.search(pattern, text) != EcmaPatterns.search(pattern, text)


@functools.lru_cache(maxsize=20_000)
def _python(pattern: str) -> re.Pattern[str]:
    written = _PROPERTY.sub(lambda found: found[1] + _class(found[2]), pattern.replace("(?<", "(?P<"))
    written = written.replace("(?P<=", "(?<=").replace("(?P<!", "(?<!")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return re.compile(written)
        except re.error as error:
            raise UnreadableError(f"{pattern!r}: {error}") from error


_PROPERTY = re.compile(r"(?<!\\)((?:\\\\)*)(\\[pP]\{[^}]+\})")
_EVERY_CHARACTER = "".join(chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000)


@functools.cache
def _class(name: str) -> str:
    """A property as the characters that have it, for `re` knows none: those of `regex`, whose `\\w` is another."""
    runs = regex.findall(f"{name}+", _EVERY_CHARACTER)
    return "[" + "".join(f"\\U{ord(run[0]):08x}-\\U{ord(run[-1]):08x}" for run in runs) + "]"


@functools.cache
def _engine() -> MiniRacer:
    engine = MiniRacer()
    # Left to the interpreter's own end, its thread sometimes hangs there.
    atexit.register(engine.close)
    return engine


def _leading_flags(pattern: str) -> tuple[str, str]:
    found = re.match(r"\(\?([ims]+)\)", pattern)
    return (found[0], pattern[found.end() :]) if found else ("", pattern)


def _ecma(pattern: str, text: str) -> bool:
    if (reason := next((reason for reason, part in EXCLUDED_PATTERNS if part.search(pattern)), None)) is not None:
        raise UnreadableError(reason)
    flags, rest = _leading_flags(pattern)
    source = json.dumps(rest.replace("(?P<", "(?<"))
    answer = _engine().eval(f"({_CALL})({source}, {json.dumps('u' + flags[2:-1])}, [{json.dumps(text)}])")
    found = json.loads(str(answer))
    if isinstance(found, str):
        raise UnreadableError(f"{pattern!r}: {found}")
    return bool(found[0])
