"""Calls of deployments that are made again where their replica was lost."""

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

REPLICA_LOST = (RayActorError, ReplicaUnavailableError)
"""The replica of a call has died, is unreachable, or has left the routing table."""

MAX_TRIES = 8
"""Calls made for one answer before the failure is ours; tokens received meanwhile start the count again."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 2.0
"""Pause before the second try, doubled each time: Serve needs a moment to notice a death and route around it."""

T = TypeVar("T")


class Pauses:
    """Counts the failures of one call and waits between them; re-raises the last when there were too many."""

    def __init__(self, deployment: str, retries: Counter) -> None:
        self._deployment = deployment
        self._retries = retries
        self.reset()

    def reset(self) -> None:
        self._failures = 0

    async def wait(self, error: BaseException) -> None:
        self._failures += 1
        if self._failures >= MAX_TRIES:
            raise error
        self._retries.inc(tags={"deployment": self._deployment})
        logger.warning("lost a %s (%s), try %d", self._deployment, type(error).__name__, self._failures + 1)
        await asyncio.sleep(min(FIRST_PAUSE_S * 2 ** (self._failures - 1), LONGEST_PAUSE_S))


class Retries:
    """Of one process, with their metric."""

    def __init__(self) -> None:
        self._counter = Counter(
            "turnstile_retries_total", "Calls repeated because their replica was lost.", ("deployment",)
        )
        begin_at_zero(
            self._counter, *({"deployment": deployment} for deployment in ("GrammarCompiler", "ModelReplica"))
        )

    def pauses(self, deployment: str) -> Pauses:
        return Pauses(deployment, self._counter)

    async def answer(self, deployment: str, call: Callable[[], Awaitable[T]]) -> T:
        """Of an idempotent call, over as many replicas as it takes."""
        pauses = self.pauses(deployment)
        while True:
            try:
                return await call()
            except REPLICA_LOST as error:
                await pauses.wait(error)
