"""Repeats calls to Ray Serve deployments with exponential backoff if the called replica has died or is unreachable."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ray.exceptions import RayActorError
from ray.serve.exceptions import ReplicaUnavailableError
from ray.util.metrics import Counter

from grammar_workers.logs import SERVE, get_logger
from grammar_workers.service.metrics import begin_at_zero

logger = get_logger(SERVE)

# Errors of a call whose replica has died, is unreachable, or has left the routing table.
REPLICA_LOST = (RayActorError, ReplicaUnavailableError)

# Maximum number of calls for one response. For a stream, each received token resets the count.
MAX_TRIES = 8

# Seconds to wait before the second try, and the upper limit. The wait doubles with each failure, because Ray Serve
# needs time to detect a dead replica and to route around it.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 2.0

T = TypeVar("T")


class Pauses:
    """Exponential backoff of one call to a Ray Serve deployment: counts failed tries, and waits after each.

    The waits are 0.05, 0.1, 0.2, ... seconds, at most 2 seconds each.

    Args:
        deployment: Name of the called deployment, for the metric and the log.
        retries: Metric that counts repeated calls, with the label `deployment`. `wait` increments it.
    """

    def __init__(self, deployment: str, retries: Counter) -> None:
        self._deployment = deployment
        self._retries = retries
        self.reset()

    def reset(self) -> None:
        """Set the number of failed tries to zero, because the call has made progress."""
        self._failures = 0

    async def wait(self, error: BaseException) -> None:
        """Count a failed try and wait before the next try.

        At the 8th failed try (`MAX_TRIES`) since the last `reset`, the method raises `error` instead of waiting.

        Args:
            error: Error of the failed try.
        """
        self._failures += 1
        if self._failures >= MAX_TRIES:
            raise error
        self._retries.inc(tags={"deployment": self._deployment})
        logger.warning(
            "replica call failed, retrying: deployment=%s error=%s attempt=%d",
            self._deployment,
            type(error).__name__,
            self._failures + 1,
        )
        await asyncio.sleep(min(FIRST_PAUSE_S * 2 ** (self._failures - 1), LONGEST_PAUSE_S))


class Retries:
    """Repeats calls to Ray Serve deployments after lost replicas. `turnstile_retries_total` counts the repeated calls.

    Create one object per process, because the constructor registers this metric.
    """

    def __init__(self) -> None:
        self._counter = Counter(
            "turnstile_retries_total", "Calls that were repeated because their replica failed.", ("deployment",)
        )
        begin_at_zero(
            self._counter, *({"deployment": deployment} for deployment in ("GrammarCompiler", "ModelReplica"))
        )

    def pauses(self, deployment: str) -> Pauses:
        """Return a new backoff for one call: it counts tries and waits between them. The caller repeats the call.

        Args:
            deployment: Name of the called deployment: `GrammarCompiler` or `ModelReplica`.
        """
        return Pauses(deployment, self._counter)

    async def answer(self, deployment: str, call: Callable[[], Awaitable[T]]) -> T:
        """Call a deployment, and repeat the call after a pause if the called replica has died or is unreachable.

        The call is made at most 8 times (`MAX_TRIES`). Then the last error is raised. An error that does not mean a
        lost replica (`REPLICA_LOST`) is raised at once.

        Args:
            deployment: Name of the called deployment: `GrammarCompiler` or `ModelReplica`.
            call: Function that makes one try. It must be idempotent, because a lost replica may have processed the try.

        Returns:
            The response of the first successful try.
        """
        pauses = self.pauses(deployment)
        while True:
            try:
                return await call()
            except REPLICA_LOST as error:
                await pauses.wait(error)
