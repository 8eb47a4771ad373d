"""Who compiles: one lock per grammar key, as wide as the store reaches. All are advisory: without one, work is done
twice and the answers stay right.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import math
import os
import secrets
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from cachetools import TTLCache

from grammar_workers.artifacts.store.redis_client import RedisClient, RedisUnavailableError

LEASE_S = 5.0
"""How long a Redis lock outlives its holder; a living holder renews it three times in that time."""
_LOOKS = 5
"""So often in that time a waiter looks whether somebody renews the lock."""
_MOST_WATCHED = 16_384

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
            # A link would make the file that it names.
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            descriptor = os.open(path, flags, 0o600)
        except OSError as error:
            raise LockUnavailableError from error
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError("not a file")
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


@dataclasses.dataclass
class _Watched:
    """Somebody else's lock: who holds it, when its lease ends, and since when nobody has renewed that."""

    holder: object
    ends: float
    since: float
    looked: float


class RedisLock:
    """Excludes the whole cluster: `SET NX PX` with a random token, deleted only by its holder. One thread renews all
    that this process holds: a long queue holds thousands. What nobody renews, or is not there at all, holds nobody up.
    """

    def __init__(self, client: RedisClient) -> None:
        self._client = client
        self._token = secrets.token_hex(16)
        self._held: set[str] = set()
        self._watched: TTLCache[str, _Watched] = TTLCache(_MOST_WATCHED, 4 * LEASE_S)
        self._renewing = False
        self._mutex = threading.Lock()

    def try_acquire(self, key: str) -> Release | None:
        name = _PREFIX + key
        with self._mutex:
            if name in self._held:
                return None
        try:
            if not self._set(name) and not self._is_free_after_all(name):
                return None
        except RedisUnavailableError as error:
            raise LockUnavailableError from error
        with self._mutex:
            if name in self._held:  # another thread of this process has been quicker
                return None
            self._held.add(name)
            self._watched.pop(name, None)
            if not self._renewing:
                self._renewing = True
                threading.Thread(target=self._renew, name="renew-locks", daemon=True).start()

        def release() -> None:
            with self._mutex:
                self._held.discard(name)
            self._run_script(_COMPARE_AND_DELETE, name, self._token)

        return release

    def _set(self, name: str) -> bool:
        lease = int(LEASE_S * 1000)
        return bool(self._client.call(lambda redis: redis.set(name, self._token, nx=True, px=lease)))

    def _is_free_after_all(self, name: str) -> bool:
        """Looks now and then who has the lock, if not this process by an answer that was lost.

        Raises `LockUnavailableError` where it is nobody who lives.
        """
        now = time.monotonic()
        with self._mutex:
            before = self._watched.get(name)
            if before is not None and now < before.looked + LEASE_S / _LOOKS:
                return False
        holder = self._client.call(lambda redis: redis.get(name))
        if holder is None:  # it has just ended, or the server does not tell the truth
            if self._set(name):
                return True
            holder = self._client.call(lambda redis: redis.get(name))
        if holder is None:
            raise LockUnavailableError
        if holder == self._token.encode():
            return True
        left = self._client.call(lambda redis: redis.pttl(name))
        ends = now + left / 1000 if isinstance(left, int) and left >= 0 else math.inf
        with self._mutex:
            # Two looks at one lease differ by as long as the answers were under way.
            if before is None or before.holder != holder or before.ends + LEASE_S / _LOOKS < ends < math.inf:
                self._watched[name] = _Watched(holder, ends, since=now, looked=now)
                return False
            self._watched[name] = dataclasses.replace(before, looked=now)
        if now < before.since + LEASE_S:
            return False
        raise LockUnavailableError

    def _renew(self) -> None:
        while True:
            time.sleep(LEASE_S / 3)
            with self._mutex:
                held = list(self._held)
                self._renewing = bool(held)
            if not held:
                return
            for name in held:
                self._run_script(_COMPARE_AND_RENEW, name, self._token, int(LEASE_S * 1000))

    def _run_script(self, script: str, name: str, *arguments: str | int) -> None:
        with contextlib.suppress(RedisUnavailableError):  # the lease runs out by itself
            self._client.call(lambda redis: redis.eval(script, 1, name, *arguments))
