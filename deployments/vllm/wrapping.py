"""Functions of vLLM that ours are called in place of."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any


def wraps(owner: Any, name: str) -> Callable[[Callable[..., Any]], None]:
    """Put the decorated function, once, in the place of `owner.name`, which it gets before the other arguments."""
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
