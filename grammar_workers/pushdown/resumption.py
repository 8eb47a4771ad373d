"""Objects that go on from what others hold: what most compilations would begin with is made once."""

from __future__ import annotations

from array import array
from typing import Any, TypeVar

_Object = TypeVar("_Object")


def resumed(original: _Object, **parts: Any) -> _Object:
    """A copy that shares no container with the original, which stays as it is; `parts` take the place of its own.

    What containers hold is shared: it must not change any more.
    """
    resumption = object.__new__(type(original))
    # Not by `__dict__`, which makes every later access to an attribute of the object slower (CPython 3.11).
    for name, value in vars(original).items():
        setattr(resumption, name, parts[name] if name in parts else separate(value))
    return resumption


def separate(value: Any) -> Any:
    """A copy of a container, and anything else as it is."""
    kind = type(value)
    if kind is dict:
        return value.copy()
    return value[:] if kind is list or kind is array else value
