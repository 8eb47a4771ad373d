"""Methods that remember their results, for as long as their object lives."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

_Self = TypeVar("_Self")
_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def memoized(
    method: Callable[Concatenate[_Self, _Arguments], _Result],
) -> Callable[Concatenate[_Self, _Arguments], _Result]:
    """A method of which each object remembers the results, by the arguments: hashable ones, given by position.

    For methods of which nothing but the arguments and what never changes decides the result, and for those that give
    each thing its number: a thing that comes again has the number that it got. The results lie in the object itself, so
    they are freed with it by reference counts: a compilation leaves no cycles behind.
    """
    attribute = f"_results_of_{method.__name__}"

    @functools.wraps(method)
    def recalled(self: Any, *arguments: Any) -> Any:
        # Not by `self.__dict__`, which makes every later access to an attribute of the object slower (CPython 3.11).
        results = getattr(self, attribute, None)
        if results is None:
            results = {}
            setattr(self, attribute, results)
        # Stands for no result: arguments may be large, and are hashed once.
        result = results.get(arguments, results)
        if result is results:
            result = results[arguments] = method(self, *arguments)  # type: ignore[call-arg]
        return result

    return recalled  # type: ignore[return-value]
