"""Locks that decide which process compiles a grammar: one lock for each key, in a process, a node or the cluster.

The locks only avoid duplicate work. Without a lock, two processes may compile a grammar, with equal results.
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
from typing import TYPE_CHECKING, Protocol

from grammar_workers.artifacts.store.circuit_breaker import RedisUnavailableError

if TYPE_CHECKING:  # packages of the extra `serve`, which only `RedisLock` needs
    from cachetools import TTLCache

    from grammar_workers.artifacts.store.redis_client import RedisClient

# Seconds after which a Redis lock expires if its holder has died.
#
# A living holder renews it three times in that time.
LEASE_S = 5.0
# Number of times in a lease that a waiting process checks whether the lock is renewed.
_LOOKS = 5
_MOST_WATCHED = 16_384

_PREFIX = "turnstile:compiling:"
_COMPARE_AND_DELETE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0"
_COMPARE_AND_RENEW = (
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2]) end return 0"
)

# Function that releases a lock.
Release = Callable[[], None]


class LockUnavailableError(Exception):
    """This kind of lock cannot be used now: the Redis server has failed, or the folder of the files is not writable."""


class Lock(Protocol):
    """Interface of one kind of lock. An object has a separate lock for each grammar key."""

    def try_acquire(self, key: str) -> Release | None:
        """Acquire the lock of a grammar key without waiting.

        Raises `LockUnavailableError` if this kind of lock cannot be used now.

        Args:
            key: Grammar key.

        Returns:
            Function that releases the lock. None if another holder has the lock.
        """


class ProcessLock:
    """Lock among the threads of this process. It is always available."""

    def __init__(self) -> None:
        self._held: set[str] = set()
        self._mutex = threading.Lock()

    def try_acquire(self, key: str) -> Release | None:
        """Acquire the lock of a grammar key without waiting.

        Args:
            key: Grammar key.

        Returns:
            Function that releases the lock. None if another thread has the lock.
        """
        with self._mutex:
            if key in self._held:
                return None
            self._held.add(key)
        return lambda: self._held.discard(key)


class FileLock:
    """Lock among the processes and threads of this node, by `flock`. The kernel releases the lock if the holder dies.

    `try_acquire` raises LockUnavailableError if the lock file cannot be opened or locked.

    Args:
        folder: Folder for the lock files. It is created if it does not exist.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def try_acquire(self, key: str) -> Release | None:
        """Acquire a grammar key's lock without waiting. Return a function that releases it; None if it is held."""
        path = self._folder / f"{key}.lock"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            # Opening a link would create the file that it names.
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
    """Lock of another process: its holder, the end of its lease, and the times of the last renewal and check."""

    holder: object
    ends: float
    since: float
    looked: float


class RedisLock:
    """Lock among all processes of the cluster: `SET NX PX` with a random token, which only the holder deletes.

    One thread renews all locks that this process holds, because a process can hold thousands. `try_acquire` raises
    LockUnavailableError if the holder of a lock does not renew it, so that no process waits for this lock. It also
    raises this error if Redis reports that a lock is held, but has no entry for it.

    Args:
        client: Client of the Redis server.
    """

    def __init__(self, client: RedisClient) -> None:
        from cachetools import TTLCache

        self._client = client
        self._token = secrets.token_hex(16)
        self._held: set[str] = set()
        self._watched: TTLCache[str, _Watched] = TTLCache(_MOST_WATCHED, 4 * LEASE_S)
        self._renewing = False
        self._mutex = threading.Lock()

    def try_acquire(self, key: str) -> Release | None:
        """Acquire the lock of a grammar key in Redis without waiting for another holder.

        A call to Redis takes at most about a second.

        Args:
            key: Grammar key.

        Returns:
            Function that releases the lock. None if another process or thread has the lock.

        Raises:
            LockUnavailableError: Redis cannot be called, the holder of the lock does not renew it, or Redis reports
                that the lock is held but has no entry for it.
        """
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
        """Return whether this process has the lock: it has just been released, or a response of the server was lost.

        The holder and the end of its lease are read from the server at most `_LOOKS` times in a lease.

        Raises:
            LockUnavailableError: The holder has not renewed the lock for a whole lease, or there is no holder.
        """
        now = time.monotonic()
        with self._mutex:
            before = self._watched.get(name)
            if before is not None and now < before.looked + LEASE_S / _LOOKS:
                return False
        holder = self._client.call(lambda redis: redis.get(name))
        if holder is None:  # it has just been released, or the server reports a lock that does not exist
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
            # Two readings of one lease differ by the duration of the responses.
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
