"""Two queues for compilations (*lanes*), fast and slow, so that fast compilations never wait for slow ones.

A compilation begins in the fast queue. It moves to the slow queue if it is not finished after its time slice.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from grammar_workers.service.fair_queue import FairQueue


class OfTenant(Protocol):
    """Interface of a job (compilation) that belongs to a tenant."""

    @property
    def tenant(self) -> str:
        """Name of the tenant whose request needs the job."""


Job = TypeVar("Job", bound=OfTenant)


@dataclasses.dataclass(eq=False, slots=True)
class Run(Generic[Job]):
    """Job (compilation) that runs in a compile process now.

    Attributes:
        job: The job.
        slow: True if the job counts toward the limit of the slow queue, because its time slice is over. False: it
            counts toward the limit of the fast queue.
    """

    job: Job
    slow: bool


class Lanes(Generic[Job]):
    """The fast queue and the slow queue of a pool with `at_once + 1` compile processes. Not thread-safe.

    A job is a compilation. The duration of a job is not known beforehand, so every job begins in the fast queue. A job
    that still runs after its time slice continues in two cases: the slow queue has room for it, or no other job waits
    in the fast queue. Otherwise the job waits in the slow queue, and later starts again from its beginning.

    At most `at_once` jobs of each queue run, so at least one process is left for the other queue. Both queues serve
    tenants in rotation.

    Args:
        at_once: Maximum number of running jobs of each queue.
        capacity: Maximum number of waiting jobs in each queue.
        tenant_capacity: Maximum number of waiting jobs of one tenant in each queue.
    """

    def __init__(self, at_once: int, capacity: int, tenant_capacity: int) -> None:
        self._at_once = at_once
        self._quick: FairQueue[Job] = FairQueue(capacity, tenant_capacity)
        self._slow: FairQueue[Job] = FairQueue(capacity, tenant_capacity)
        self._runs: set[Run[Job]] = set()

    @property
    def waiting(self) -> int:
        """Number of jobs that wait in both queues together."""
        return len(self._quick) + len(self._slow)

    @property
    def running(self) -> int:
        """Number of jobs that have a compile process now."""
        return len(self._runs)

    def put(self, job: Job) -> None:
        """Add a job to the fast queue, after the other jobs of its tenant.

        QueueFullError is raised if too many jobs wait in the fast queue, of the tenant or in total.

        Args:
            job: The new job.
        """
        self._quick.put(job.tenant, job)

    def put_back(self, job: Job) -> None:
        """Put a job back at the front of the fast queue, even if the queue is full.

        Args:
            job: Job that `take` has returned and whose process has died.
        """
        self._quick.put_back(job.tenant, job)

    def take(self) -> Run[Job] | None:
        """Remove the next job from its queue, in order to run it in a free process.

        The caller must call `end` when the process no longer runs the job.

        Returns:
            The running job. None if each queue is empty or already has `at_once` running jobs.
        """
        for slow, line in ((False, self._quick), (True, self._slow)):
            if line and self._has_room(slow):
                run = Run(line.get()[1], slow)
                self._runs.add(run)
                return run
        return None

    def outlasts_slice(self, run: Run[Job]) -> bool:
        """Decide whether a job whose time slice is over continues to run. If not, add it to the slow queue.

        First, a job of the fast queue becomes a job of the slow queue if the slow queue is empty and has fewer than
        `at_once` running jobs. Then the job continues if it is a job of the slow queue, or if no job waits in the fast
        queue. QueueFullError is raised if the job cannot continue and too many jobs wait in the slow queue.

        Args:
            run: The running job. `slow` is set to True if it becomes a job of the slow queue.

        Returns:
            True if the job continues. False: it waits in the slow queue, and the caller must end its process.
        """
        if not run.slow and not self._slow and self._has_room(slow=True):
            run.slow = True
        if run.slow or not self._quick:
            return True
        self._slow.put(run.job.tenant, run.job)
        return False

    def end(self, run: Run[Job]) -> None:
        """Record that a running job no longer has a process.

        Args:
            run: Running job that `take` has returned.
        """
        self._runs.remove(run)

    def keep(self, wanted: Callable[[Job], bool]) -> list[Job]:
        """Remove from both queues all waiting jobs for which a function returns False.

        Args:
            wanted: Returns whether a job stays in its queue.

        Returns:
            The removed jobs.
        """
        return self._quick.keep(wanted) + self._slow.keep(wanted)

    def _has_room(self, slow: bool) -> bool:
        return sum(run.slow == slow for run in self._runs) < self._at_once
