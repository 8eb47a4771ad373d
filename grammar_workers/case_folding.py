"""Which characters are the same when case is ignored, in ECMA-262 and in Python's `re`."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable

from grammar_workers import charset
from grammar_workers.charset import Charset

Orbits = dict[int, frozenset[int]]
"""Code point -> the code points that equal it when case is ignored, itself among them; only where there are others."""


def fold_ecma(characters: Charset) -> Charset:
    """All characters that equal one of `characters` by Unicode's simple case folding (ECMA-262, flags `iu`)."""
    return _closed(characters, _ecma_orbits())


def fold_python(characters: Charset) -> Charset:
    """All characters that Python's `re.IGNORECASE` takes for one of `characters`."""
    return _closed(characters, _python_orbits())


def _closed(characters: Charset, orbits: Orbits) -> Charset:
    added = {other for code in orbits if charset.contains(characters, code) for other in orbits[code]}
    return charset.union(characters, tuple((code, code) for code in added)) if added else characters


@functools.cache
def _cased() -> tuple[int, ...]:
    found = charset.matching(r"[\p{Changes_When_Casemapped}\p{Changes_When_Casefolded}]", properties=True)
    return tuple(code for low, high in found for code in range(low, high + 1))


def _simple_fold(code: int) -> str:
    """Simple folding from Python's full one: where that needs several characters, the simple one is the lower case."""
    character = chr(code)
    for folded in (character.casefold(), character.lower()):
        if len(folded) == 1:
            return folded
    return character


@functools.cache
def _ecma_orbits() -> Orbits:
    return _grouped((_simple_fold(code), code) for code in _cased())


@functools.cache
def _python_orbits() -> Orbits:
    """Found by asking `re` itself about all characters that any mapping of case relates."""
    candidates: dict[int, set[int]] = {}
    for relation in (str.casefold, str.lower, str.upper):
        for code, others in _grouped((relation(chr(code))[0], code) for code in _cased()).items():
            candidates.setdefault(code, set()).update(others)
    orbits = {}
    for code, possible in candidates.items():
        same = re.compile(re.escape(chr(code)), re.IGNORECASE)
        orbits[code] = frozenset(other for other in possible if same.fullmatch(chr(other)))
    return orbits


def _grouped(pairs: Iterable[tuple[str, int]]) -> Orbits:
    groups: dict[str, set[int]] = {}
    for key, code in pairs:
        groups.setdefault(key, {ord(key)}).add(code)
    return {code: frozenset(group) for group in groups.values() if len(group) > 1 for code in group}
