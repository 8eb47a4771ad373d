"""Two lanes for compilations, so that quick ones never wait behind slow ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from grammar_workers.service.fair_queue import FairQueue


class OfTenant(Protocol):
    """What lanes need to know about a job."""

    @property
    def tenant(self) -> str: ...


Job = TypeVar("Job", bound=OfTenant)


@dataclasses.dataclass(eq=False, slots=True)
class Run(Generic[Job]):
    """A job that runs, and in which lane."""

    job: Job
    slow: bool


class Lanes(Generic[Job]):
    """Who runs next in a pool of `at_once + 1` processes, and who makes room. Not thread-safe.

    Nobody knows beforehand what takes long, so every job begins in the quick lane. When its slice of time is over it
    changes into the slow lane, process and all, or makes room: then it waits in the slow lane's line and is run again
    from its beginning. Of each lane at most `at_once` jobs run, so one process at least is left for the other one.

    In both lines tenants take turns; at most `tenant_capacity` jobs of one and `capacity` altogether wait in each.
    """

    def __init__(self, at_once: int, capacity: int, tenant_capacity: int) -> None:
        self._at_once = at_once
        self._quick: FairQueue[Job] = FairQueue(capacity, tenant_capacity)
        self._slow: FairQueue[Job] = FairQueue(capacity, tenant_capacity)
        self._runs: set[Run[Job]] = set()

    @property
    def waiting(self) -> int:
        return len(self._quick) + len(self._slow)

    @property
    def running(self) -> int:
        return len(self._runs)

    def put(self, job: Job) -> None:
        """Raises QueueFullError."""
        self._quick.put(job.tenant, job)

    def put_back(self, job: Job) -> None:
        """Before everything that waits, whatever the capacity."""
        self._quick.put_back(job.tenant, job)

    def take(self) -> Run[Job] | None:
        """What a free process does next, if anything; `end` it."""
        for slow, line in ((False, self._quick), (True, self._slow)):
            if line and self._has_room(slow):
                run = Run(line.get()[1], slow)
                self._runs.add(run)
                return run
        return None

    def outlasts_slice(self, run: Run[Job]) -> bool:
        """Whether a run whose slice is over goes on, in the slow lane if that has room; else its job waits for that.

        Where nobody waits for the quick lane, nobody has to leave it. Raises QueueFullError: the job waits nowhere.
        """
        if not run.slow and not self._slow and self._has_room(slow=True):
            run.slow = True
        if run.slow or not self._quick:
            return True
        self._slow.put(run.job.tenant, run.job)
        return False

    def end(self, run: Run[Job]) -> None:
        self._runs.remove(run)

    def keep(self, wanted: Callable[[Job], bool]) -> list[Job]:
        """Drop the waiting jobs that are not wanted any more; returns them."""
        return self._quick.keep(wanted) + self._slow.keep(wanted)

    def _has_room(self, slow: bool) -> bool:
        return sum(run.slow == slow for run in self._runs) < self._at_once
