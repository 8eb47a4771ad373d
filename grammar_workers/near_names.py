"""Names that somebody who mistyped one may have meant.

Two names are near where they share what one letter less leaves of them: then they differ by a letter that is missing,
too many or another one, or by two that have changed places (the index of SymSpell, at distance one).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

_SHORTEST = 4


class NearNames:
    """Known names, found by what is nearly one of them, in upper or lower case."""

    def __init__(self, names: Iterable[str]) -> None:
        self._known: dict[str, str] = {}
        self._longest = 0
        for name in names:
            self._longest = max(self._longest, len(name))
            for part in _parts(name):
                self._known.setdefault(part, name)

    def find(self, name: str) -> str | None:
        """A known name that is near; None for none, and for names of three letters, which are near to many."""
        if not _SHORTEST <= len(name) <= self._longest + 1:
            return None
        return next((self._known[part] for part in _parts(name) if part in self._known), None)


def _parts(name: str) -> Iterator[str]:
    name = name.casefold()
    yield name
    yield from (name[:place] + name[place + 1 :] for place in range(len(name)))
