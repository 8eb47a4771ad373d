"""Single flight: one process compiles a grammar, and the others wait until the store has the compiled grammar."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from grammar_workers.artifacts.store.locks import Lock, LockUnavailableError, Release

# Seconds between two steps of a flight.
POLL_S = 0.05


class Flight:
    """Attempt of one process to be the only process that compiles a grammar key.

    The caller calls `settled()` every 0.05 seconds (`POLL_S`) until it returns True. Then there are three cases:

    - `leads` is True: this process has the lock. The caller must compile, store and `release()`.
    - The artifact (compiled grammar) is stored: the caller reads it.
    - Otherwise the timeout has passed: the caller compiles without coordination.

    If the process that compiles dies, its lock ends, and one of the waiting processes gets the lock.

    Args:
        key: Grammar key.
        locks: Kinds of locks; those shared by the most processes first. The first kind that works is used.
        is_stored: Returns whether the artifact is stored.
        timeout_s: Seconds from now after which `settled()` returns True in any case.
    """

    def __init__(self, key: str, locks: Sequence[Lock], is_stored: Callable[[], bool], timeout_s: float) -> None:
        self._key = key
        self._locks = locks
        self._is_stored = is_stored
        self._deadline = time.monotonic() + timeout_s
        self._release: Release | None = None

    @property
    def leads(self) -> bool:
        """True if this process has the lock and must compile the grammar. Changes only in `settled` and `release`."""
        return self._release is not None

    def settled(self) -> bool:
        """Try once to acquire the lock, look for the artifact (compiled grammar), and return whether the wait is over.

        Returns:
            True if this process has the lock, the artifact is stored, or the timeout has passed. If the artifact is
            stored, the lock is released.
        """
        self._release = self._try_acquire()
        stored = self._is_stored()
        if stored:
            self.release()
        return stored or self.leads or time.monotonic() >= self._deadline

    def release(self) -> None:
        """Release the lock of this attempt. If this process does not have the lock, nothing happens."""
        release, self._release = self._release, None
        if release is not None:
            release()

    def _try_acquire(self) -> Release | None:
        """Acquire the lock with the widest reach among those that work now."""
        for lock in self._locks:
            try:
                return lock.try_acquire(self._key)
            except LockUnavailableError:
                continue
        return None
