"""Who compiles: one lock per grammar key, as wide as the store reaches. All are advisory: without one, work is done
twice and the answers stay right.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from grammar_workers.artifacts.store.redis_client import RedisClient, RedisUnavailableError

LEASE_S = 5.0
"""How long a Redis lock outlives its holder; a living holder renews it three times in that time."""

_PREFIX = "turnstile:compiling:"
_COMPARE_AND_DELETE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0"
_COMPARE_AND_RENEW = (
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2]) end return 0"
)

Release = Callable[[], None]


class LockUnavailableError(Exception):
    """This kind of lock cannot be had at all now (server gone, folder not writable)."""


class Lock(Protocol):
    """A lock of many keys."""

    def try_acquire(self, key: str) -> Release | None:
        """What releases the lock, None where somebody else holds it, or `LockUnavailableError`. Does not wait."""


class ProcessLock:
    """Excludes the threads of this process."""

    def __init__(self) -> None:
        self._held: set[str] = set()
        self._mutex = threading.Lock()

    def try_acquire(self, key: str) -> Release | None:
        with self._mutex:
            if key in self._held:
                return None
            self._held.add(key)
        return lambda: self._held.discard(key)


class FileLock:
    """Excludes the processes and threads of this node by `flock`, which the kernel drops when a holder dies."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def try_acquire(self, key: str) -> Release | None:
        path = self._folder / f"{key}.lock"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise LockUnavailableError from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # A holder removes its file, so the lock may be on a file that is no longer the one with this name.
            if os.fstat(descriptor).st_ino != path.stat().st_ino:
                raise BlockingIOError
        except (BlockingIOError, FileNotFoundError):
            os.close(descriptor)
            return None
        except OSError as error:
            os.close(descriptor)
            raise LockUnavailableError from error

        def release() -> None:
            with contextlib.suppress(OSError):  # closing is what releases the lock; the empty file may stay
                path.unlink(missing_ok=True)
            os.close(descriptor)

        return release


class RedisLock:
    """Excludes the whole cluster: `SET NX PX` with a random token, deleted only by its holder. One thread renews all
    that this process holds: a long queue holds thousands.
    """

    def __init__(self, client: RedisClient) -> None:
        self._client = client
        self._held: dict[str, str] = {}
        self._renewing = False
        self._mutex = threading.Lock()

    def try_acquire(self, key: str) -> Release | None:
        name, token = _PREFIX + key, secrets.token_hex(16)
        try:
            acquired = self._client.call(lambda redis: redis.set(name, token, nx=True, px=int(LEASE_S * 1000)))
        except RedisUnavailableError as error:
            raise LockUnavailableError from error
        if acquired is None:
            return None
        with self._mutex:
            self._held[name] = token
            if not self._renewing:
                self._renewing = True
                threading.Thread(target=self._renew, name="renew-locks", daemon=True).start()

        def release() -> None:
            with self._mutex:
                if self._held.get(name) == token:
                    del self._held[name]
            self._run_script(_COMPARE_AND_DELETE, name, token)

        return release

    def _renew(self) -> None:
        while True:
            time.sleep(LEASE_S / 3)
            with self._mutex:
                held = dict(self._held)
                self._renewing = bool(held)
            if not held:
                return
            for name, token in held.items():
                self._run_script(_COMPARE_AND_RENEW, name, token, int(LEASE_S * 1000))

    def _run_script(self, script: str, name: str, *arguments: str | int) -> None:
        with contextlib.suppress(RedisUnavailableError):  # the lease runs out by itself
            self._client.call(lambda redis: redis.eval(script, 1, name, *arguments))
