"""Waiting for one's turn to compile a key, or for the result of whoever has it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from grammar_workers.artifacts.store.locks import Lock, LockUnavailableError, Release

POLL_S = 0.05


class Flight:
    """One attempt to be the only one who compiles a key.

    `settled()` takes one step without waiting; call it every `POLL_S` seconds until it is true. Then the caller either
    `leads` and must compile, store and `release()`; or the artifact is there; or the wait was given up and the caller
    goes on uncoordinated. When a leader vanishes its lock does too, and one of the waiters leads.
    """

    def __init__(self, key: str, locks: Sequence[Lock], is_stored: Callable[[], bool], timeout_s: float) -> None:
        self._key = key
        self._locks = locks
        self._is_stored = is_stored
        self._deadline = time.monotonic() + timeout_s
        self._release: Release | None = None

    @property
    def leads(self) -> bool:
        return self._release is not None

    def settled(self) -> bool:
        self._release = self._try_acquire()
        stored = self._is_stored()
        if stored:
            self.release()
        return stored or self.leads or time.monotonic() >= self._deadline

    def release(self) -> None:
        """Give up the lead, if there is one."""
        release, self._release = self._release, None
        if release is not None:
            release()

    def _try_acquire(self) -> Release | None:
        """The lock of the widest reach that works now."""
        for lock in self._locks:
            try:
                return lock.try_acquire(self._key)
            except LockUnavailableError:
                continue
        return None
