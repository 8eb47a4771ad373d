"""An asyncio event loop on its own thread, which vLLM's other threads and event loops use."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

Result = TypeVar("Result")


class LoopThread:
    """An asyncio event loop on a daemon thread, which runs until `close`.

    Args:
        name: Name of the thread.
    """

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name=name, daemon=True).start()

    def submit(self, coroutine: Coroutine[Any, Any, Result]) -> Future[Result]:
        """Start a coroutine on the event loop of the thread, without waiting for it. Can be called from any thread.

        Args:
            coroutine: The coroutine.

        Returns:
            Future of the value that the coroutine returns, or of its exception.
        """
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def close(self) -> None:
        """Stop the event loop, without waiting for it. Coroutines that have not finished never finish."""
        self._loop.call_soon_threadsafe(self._loop.stop)
