"""Decorator that replaces a function of vLLM by a wrapper, in place and only once."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any


def wraps(owner: Any, name: str) -> Callable[[Callable[..., Any]], None]:
    """Return a decorator that replaces the function `owner.name` by the decorated function, the wrapper.

    Each call of `owner.name` then calls the wrapper. The first argument of the wrapper is the original function. The
    other arguments are the arguments of the caller. If `owner.name` has been replaced in this way before, nothing is
    changed. The decorator returns None, so the name of the decorated function becomes None. `AttributeError` is raised
    if `owner` has no function `name`.

    Args:
        owner: Class or module whose attribute is replaced in place.
        name: Name of the function in `owner`. It may be a coroutine function.
    """
    original = getattr(owner, name)

    def put(wrapper: Callable[..., Any]) -> None:
        if hasattr(original, "by_turnstile"):
            return

        @functools.wraps(original)
        def call(*arguments: Any, **keywords: Any) -> Any:
            return wrapper(original, *arguments, **keywords)

        if inspect.iscoroutinefunction(original):
            inner = call

            @functools.wraps(original)
            async def call(*arguments: Any, **keywords: Any) -> Any:
                return await inner(*arguments, **keywords)

        call.by_turnstile = True  # type: ignore[attr-defined]
        setattr(owner, name, call)

    return put
