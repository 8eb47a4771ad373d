"""Case-insensitive sets of characters, as ECMA-262 and Python's `re` define them."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable

from grammar_workers.dfa import charset
from grammar_workers.dfa.charset import Charset

# Code point -> all code points equal to it if case is ignored, itself included; absent if there are no others.
Orbits = dict[int, frozenset[int]]


def fold_ecma(characters: Charset) -> Charset:
    """Return all characters that ECMA-262 (flags `iu`: simple case folding) treats as equal to one of `characters`."""
    return _closed(characters, _ecma_orbits())


def fold_python(characters: Charset) -> Charset:
    """Return all characters that Python's `re.IGNORECASE` treats as equal to one of `characters`."""
    return _closed(characters, _python_orbits())


def _closed(characters: Charset, orbits: Orbits) -> Charset:
    added = {other for code in orbits if charset.contains(characters, code) for other in orbits[code]}
    return charset.union(characters, tuple((code, code) for code in added)) if added else characters


@functools.cache
def _cased() -> tuple[int, ...]:
    found = charset.matching(r"[\p{Changes_When_Casemapped}\p{Changes_When_Casefolded}]", properties=True)
    return tuple(code for low, high in found for code in range(low, high + 1))


# Simple foldings that Unicode 15.1 added (CaseFolding.txt), of characters whose full foldings were already equal.
_FOLDED_SINCE_15_1 = {"\u1fd3": "\u0390", "\u1fe3": "\u03b0", "\ufb05": "\ufb06"}


def _simple_fold(code: int) -> str:
    """Return the simple case folding: Python's full folding or, if that is several characters, the lower case."""
    character = chr(code)
    if character in _FOLDED_SINCE_15_1:
        return _FOLDED_SINCE_15_1[character]
    for folded in (character.casefold(), character.lower()):
        if len(folded) == 1:
            return folded
    return character


@functools.cache
def _ecma_orbits() -> Orbits:
    groups = _groups((_simple_fold(code), code) for code in _cased())
    return {code: frozenset(group) for group in groups for code in group}


@functools.cache
def _python_orbits() -> Orbits:
    """Return the orbits of Python: `re` itself is applied to all characters that case mappings relate."""
    candidates: dict[int, set[int]] = {}
    for relation in (str.casefold, str.lower, str.upper):
        for group in _groups((relation(chr(code))[0], code) for code in _cased()):
            merged = set(group).union(*(candidates.get(code, ()) for code in group))
            candidates.update(dict.fromkeys(merged, merged))
    orbits = {}
    for code, possible in candidates.items():
        same = re.compile(re.escape(chr(code)), re.IGNORECASE)
        orbits[code] = frozenset(other for other in possible if same.fullmatch(chr(other)))
    return orbits


def _groups(pairs: Iterable[tuple[str, int]]) -> list[set[int]]:
    groups: dict[str, set[int]] = {}
    for key, code in pairs:
        groups.setdefault(key, {ord(key)}).add(code)
    return [group for group in groups.values() if len(group) > 1]
