"""Search for the known name that a mistyped name probably stands for.

Two names are near if deleting at most one character from each makes them equal. For example, one character is missing,
added or replaced, or two adjacent characters are swapped. The index works like SymSpell with distance 1: it contains
each known name, and each known name without one of its characters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

_SHORTEST = 4


class NearNames:
    """Index of known names, for suggestions when a name is mistyped. Case is ignored.

    Args:
        names: The known names.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._known: dict[str, str] = {}
        self._longest = 0
        for name in names:
            self._longest = max(self._longest, len(name))
            for part in _parts(name):
                self._known.setdefault(part, name)

    def find(self, name: str) -> str | None:
        """Return a known name that equals a mistyped name, or is near to it. Case is ignored.

        Two names are near if deleting at most one character from each makes them equal: `maxlenght` is near
        `maxLength`.

        Args:
            name: The mistyped name.

        Returns:
            The known name as it was given to the constructor. None if no known name is near, or if `name` has fewer
            than four characters, because too many names are near a short name.
        """
        if not _SHORTEST <= len(name) <= self._longest + 1:
            return None
        return next((self._known[part] for part in _parts(name) if part in self._known), None)


def _parts(name: str) -> Iterator[str]:
    name = name.casefold()
    yield name
    yield from (name[:place] + name[place + 1 :] for place in range(len(name)))
