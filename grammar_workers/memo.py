"""Decorator for methods whose return values are cached in the object, and copies of objects with such caches."""

from __future__ import annotations

import copy
import functools
from array import array
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

_CONTAINERS = (dict, list, array)

_Self = TypeVar("_Self")
_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def memoized(
    method: Callable[Concatenate[_Self, _Arguments], _Result],
) -> Callable[Concatenate[_Self, _Arguments], _Result]:
    """Decorate a method so that a second call with equal arguments returns the cached value of the first call.

    Use it for a method that returns the same value for equal arguments, or that assigns a number to each new argument.
    The cache is an attribute of the object, has no size limit, and is freed with the object.

    Args:
        method: Method to decorate. Its arguments must be hashable, and are passed by position.

    Returns:
        The caching method.
    """
    attribute = f"_results_of_{method.__name__}"

    @functools.wraps(method)
    def recalled(self: Any, *arguments: Any) -> Any:
        # Not by `self.__dict__`, which makes every later access to an attribute of the object slower (CPython 3.11).
        results = getattr(self, attribute, None)
        if results is None:
            results = {}
            setattr(self, attribute, results)
        # `results` stands for a missing result, so that a hit hashes the arguments, which may be large, only once.
        result = results.get(arguments, results)
        if result is results:
            result = results[arguments] = method(self, *arguments)  # type: ignore[call-arg]
        return result

    return recalled  # type: ignore[return-value]


def fork(original: _Self, **replaced: Any) -> _Self:
    """Return a copy of an object with its own dicts, lists, arrays and caches. What they contain is not copied.

    Args:
        original: The object. Its containers must have immutable contents.
        replaced: Attributes of the copy that differ.
    """
    copied = object.__new__(type(original))
    for name, value in vars(original).items():
        if name in replaced:
            value = replaced[name]
        elif type(value) in _CONTAINERS:
            value = copy.copy(value)
        setattr(copied, name, value)
    return copied
