"""Client for short calls to Redis. A server that fails or is slow is not called for a few seconds."""

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
from grammar_workers.artifacts.store.circuit_breaker import CircuitBreaker, RedisUnavailableError
from grammar_workers.counters import Counters
from grammar_workers.logs import get_logger

logger = get_logger(__name__)

SOCKET_TIMEOUT_S = 0.25
CONNECT_TIMEOUT_S = 0.1
# Seconds for a whole call: connecting, logging in, sending, and every byte of the reply.
DEADLINE_S = 1.0
# Maximum size of a reply in bytes, for calls that set no other limit.
MOST_REPLY_BYTES = 1 << 16
# Initial limit for a slow response, in seconds.
#
# A slow response counts as a failure: a compilation makes five calls, and most compilations take less time than this.
# `GrammarStore.found_elsewhere` replaces this limit by a measured one.
SLOW_S = 0.1
PASSWORD_VARIABLE = "TURNSTILE_REDIS_PASSWORD"

Result = TypeVar("Result")


class RedisClient:
    """Connection pool of redis-py that stops calls for some seconds if the server fails or is slow. Thread-safe.

    A circuit breaker stops the calls. redis-py's own retries, which can take seconds, are off. The password comes from
    the URL, or else from the environment variable TURNSTILE_REDIS_PASSWORD, which a Kubernetes Secret can set.

    Args:
        url: URL of the server, with query parameters of redis-py.

    Attributes:
        patience_s: Seconds after which a response is slow. A slow response is returned, but counts as a failure of the
            server. Callers may set the value.
        breaker: Circuit breaker of the server.
        counters: Numbers of failures by kind: `errors`, `refused`, `slow` and `unauthorized`.
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
        """Ping the server, and return the reason if it does not respond. The call does not change breaker and counters.

        Returns:
            The reason with the action to take, or None if the server responds.
        """
        self._allowance.begin(DEADLINE_S, MOST_REPLY_BYTES)
        try:
            self._redis.ping()
        except redis.AuthenticationError as error:
            return f"Redis refuses the password ({error}): check {PASSWORD_VARIABLE}, or the password in the URL"
        except Exception as error:
            return f"Redis does not answer ({error}): start it, or correct the URL"
        return None

    def call(self, command: Callable[[redis.Redis], Result], *, most_bytes: int = MOST_REPLY_BYTES) -> Result:
        """Return the reply of the server to a command.

        Args:
            command: Function that calls one method of redis-py's client, and returns the reply.
            most_bytes: Maximum size of the reply.

        Raises:
            RedisUnavailableError: The circuit breaker is open, the server has returned an error, or it has not answered
                within `DEADLINE_S` seconds. Failures of the server are counted.
        """
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
            # The server responds but rejects the command: full, read-only, no permission. Another call costs little.
            self._answered_after(time.monotonic() - started)
            self._count("refused", error)
            if isinstance(error, redis.ReadOnlyError):
                # A former primary keeps its connections. New connections reach its successor.
                self._redis.connection_pool.disconnect(inuse_connections=False)
            raise RedisUnavailableError("refused") from error
        except redis.AuthenticationError as error:
            self.breaker.failed()
            self._count("unauthorized", f"{error}. Check {PASSWORD_VARIABLE}, or the password in the store's URL")
            raise RedisUnavailableError("wrong password") from error
        except Exception as error:
            # Not only RedisError: a server with another protocol can cause any exception in the parser.
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
        """Count each call that has not returned after twice its deadline as a failure.

        Name resolution has no deadline.
        """
        before = time.monotonic() - 2 * DEADLINE_S
        for thread, started in list(self._under_way.items()):
            if started < before and self._under_way.pop(thread, None) is not None:
                self.breaker.failed()
                self._count("errors", "a call does not come back")

    def _count(self, event: str, reason: object) -> None:
        if self.counters.add(event) == 1:
            logger.warning("Redis unusable, continuing without it: event=%s error=%s", event, reason)
