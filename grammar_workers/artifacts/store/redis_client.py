"""Redis as an accelerator: every call is short, and a server that misbehaves is left alone for a while."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import redis
from redis.backoff import NoBackoff
from redis.maint_notifications import MaintNotificationsConfig
from redis.retry import Retry

from grammar_workers.artifacts.store.bounded_socket import Allowance, bounded
from grammar_workers.artifacts.store.circuit_breaker import CircuitBreaker
from grammar_workers.artifacts.store.counters import Counters
from grammar_workers.logs import get_logger

logger = get_logger(__name__)

SOCKET_TIMEOUT_S = 0.25
CONNECT_TIMEOUT_S = 0.1
DEADLINE_S = 1.0
"""Of a whole call: connecting, logging in, sending and every byte of the reply."""
MOST_REPLY_BYTES = 1 << 16
"""Default for calls that name no limit."""
SLOW_S = 0.1
"""An answer that takes longer counts against the server: a compilation makes five calls; most take less. That is before
anybody has measured here what an answer saves (`GrammarStore.found_elsewhere`)."""
PASSWORD_VARIABLE = "TURNSTILE_REDIS_PASSWORD"

Result = TypeVar("Result")


class RedisUnavailableError(Exception):
    """Redis could not be asked or did not answer properly; carry on without it."""


class RedisClient:
    """One connection pool behind a circuit breaker, which a server opens that is slow, too. redis-py's own defaults
    would retry for seconds.

    The password is the URL's, or else the environment variable TURNSTILE_REDIS_PASSWORD, which is how a Kubernetes
    Secret arrives.
    """

    def __init__(self, url: str) -> None:
        self.patience_s = SLOW_S
        self.breaker = CircuitBreaker()
        self.counters = Counters()
        self._allowance = Allowance()
        self._under_way: dict[int, float] = {}  # thread -> since when
        self._redis = redis.Redis.from_url(
            url,
            password=os.environ.get(PASSWORD_VARIABLE) or None,  # the URL's wins over it
            socket_timeout=SOCKET_TIMEOUT_S,
            socket_connect_timeout=CONNECT_TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),
            maint_notifications_config=MaintNotificationsConfig(enabled=False),
        )
        pool = self._redis.connection_pool
        pool.connection_class = bounded(pool.connection_class, self._allowance)

    def trouble(self) -> str | None:
        """Return why the server does not answer now, or None if it does. Nothing is counted."""
        self._allowance.begin(DEADLINE_S, MOST_REPLY_BYTES)
        try:
            self._redis.ping()
        except redis.AuthenticationError as error:
            return f"Redis refuses the password ({error}): check {PASSWORD_VARIABLE}, or the password in the URL"
        except Exception as error:
            return f"Redis does not answer ({error}): start it, or correct the URL"
        return None

    def call(self, command: Callable[[redis.Redis], Result], *, most_bytes: int = MOST_REPLY_BYTES) -> Result:
        """The result of `command`, or `RedisUnavailableError` within the deadline, whatever the server does."""
        self._count_the_missing()
        if not self.breaker.allows():
            raise RedisUnavailableError("circuit breaker is open")
        started = time.monotonic()
        thread = threading.get_ident()
        self._under_way[thread] = started
        self._allowance.begin(DEADLINE_S, most_bytes)
        try:
            result = command(self._redis)
        except redis.ResponseError as error:
            # The server is there but refuses: full, read-only, forbidden. Asking again costs little.
            self._answered_after(time.monotonic() - started)
            self._count("refused", error)
            if isinstance(error, redis.ReadOnlyError):
                # A primary that is one no longer keeps its connections; new ones lead to its successor.
                self._redis.connection_pool.disconnect(inuse_connections=False)
            raise RedisUnavailableError("refused") from error
        except redis.AuthenticationError as error:
            self.breaker.failed()
            self._count("unauthorized", f"{error}. Check {PASSWORD_VARIABLE}, or the password in the store's URL")
            raise RedisUnavailableError("wrong password") from error
        except Exception as error:
            # Not only RedisError: what a server that speaks another protocol makes of the parser is anybody's guess.
            self.breaker.failed()
            self._count("errors", error)
            raise RedisUnavailableError("no answer") from error
        finally:
            self._under_way.pop(thread, None)
        self._answered_after(time.monotonic() - started)
        return result

    def _answered_after(self, seconds: float) -> None:
        if seconds > self.patience_s:
            self.breaker.failed()
            self._count("slow", f"{seconds:.3f} s")
        else:
            self.breaker.succeeded()

    def _count_the_missing(self) -> None:
        """A thread that is still away after twice its deadline, with a name that nobody resolves, is a failure, too."""
        before = time.monotonic() - 2 * DEADLINE_S
        for thread, started in list(self._under_way.items()):
            if started < before and self._under_way.pop(thread, None) is not None:
                self.breaker.failed()
                self._count("errors", "a call does not come back")

    def _count(self, event: str, reason: object) -> None:
        if self.counters.add(event) == 1:
            logger.warning("Redis %s (grammar store goes on without it): %s", event, reason)
