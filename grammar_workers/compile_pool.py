"""Compilation in processes that can be killed: threads and compiled loops that hold no lock cannot be."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import threading
from concurrent.futures import Future
from typing import Any

from grammar_workers.errors import GrammarError, LimitExceededError
from grammar_workers.fair_queue import FairQueue, QueueFullError
from grammar_workers.worker_process import WorkerDiedError, WorkerProcess, WorkerStartError, WorkerTimeoutError

logger = logging.getLogger(__name__)

MAX_RUNS = 2
"""How often a job is run whose process dies."""
_RESTART_PAUSE_S = 1.0
_IDLE_CHECK_S = 1.0


class ResourceLimitError(LimitExceededError):
    """A compilation was stopped from outside, for time or memory; another time or machine might let it finish."""


class CompileFailedError(RuntimeError):
    """The compiler broke: a fault of ours, not of the specification."""


@dataclasses.dataclass(slots=True)
class _Job:
    key: str
    specification: dict[str, Any]
    tenant: str
    result: Future[bytes] = dataclasses.field(default_factory=Future)
    runs: int = 0

    def begin(self) -> bool:
        """Whether the job shall run; False where it was cancelled meanwhile."""
        return self.result.running() or self.result.set_running_or_notify_cancel()


def _is_wanted(job: _Job) -> bool:
    return not job.result.cancelled()


class CompilePool:
    """A few worker processes, each minded by a thread that starts it, hands it jobs and kills it at a job's deadline.

    `target` and `arguments` say what the processes load (see `compile_process.main`). A process that exceeds
    `timeout_s` or its memory is replaced and its job refused; when one dies its job is run once more, then refused; the
    other jobs go on. Tenants take turns; at most `tenant_queue_size` jobs of one and `queue_size` altogether wait.
    """

    def __init__(
        self,
        target: str,
        arguments: dict[str, Any],
        *,
        processes: int = 1,
        timeout_s: float = 30.0,
        memory_limit_mb: int = 4096,
        queue_size: int = 4096,
        tenant_queue_size: int = 1024,
        start_timeout_s: float = 300.0,
    ) -> None:
        self._worker_arguments = (target, arguments, memory_limit_mb)
        self._timeout_s = timeout_s
        self._memory_limit_mb = memory_limit_mb
        self._start_timeout_s = start_timeout_s
        self._queue: FairQueue[_Job] = FairQueue(queue_size, tenant_queue_size)
        self._workers: dict[int, WorkerProcess] = {}
        self._ready: set[int] = set()
        self._fingerprint = ""
        self._start_error: WorkerStartError | None = None
        self._running = 0
        self._closed = False
        self._changed = threading.Condition()
        self._minders = [
            threading.Thread(target=self._mind, args=(number,), name=f"compile-minder-{number}", daemon=True)
            for number in range(processes)
        ]
        for minder in self._minders:
            minder.start()

    def wait_ready(self) -> str:
        """Block until every process is warm; the fingerprint of their vocabulary. Raises `WorkerStartError`."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._ready) == len(self._minders) or self._start_error is not None)
            error = self._start_error
        if error is not None:
            self.close()
            raise error
        return self._fingerprint

    async def compile(self, key: str, specification: dict[str, Any]) -> bytes:
        """`submit` for asyncio: the artifact, or its error."""
        return await asyncio.wrap_future(self.submit(key, specification))

    def submit(self, key: str, specification: dict[str, Any], tenant: str = "") -> Future[bytes]:
        """Queue a job of `tenant`; raises `QueueFullError`.

        The future yields the artifact, or fails with GrammarError (refused; `ResourceLimitError` where time, memory or
        crashes ended it) or `CompileFailedError`. Cancelling it works until the job runs.
        """
        job = _Job(key, specification, tenant)
        with self._changed:
            if self._closed:
                raise CompileFailedError("the compile pool is closed")
            try:
                self._queue.put(tenant, job)
            except QueueFullError:
                # Jobs that were cancelled take up room until somebody looks.
                self._queue.keep(_is_wanted)
                self._queue.put(tenant, job)
            self._changed.notify_all()
        return job.result

    @property
    def queue_size(self) -> int:
        """The most jobs that may wait."""
        return self._queue.capacity

    @property
    def queued(self) -> int:
        """Jobs that wait for a process."""
        return len(self._queue)

    @property
    def backlog(self) -> int:
        """Jobs that wait or run, and that somebody still wants; looks at each."""
        with self._changed:
            self._queue.keep(_is_wanted)
            return len(self._queue) + self._running

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers, warm or not."""
        return [worker.pid for worker in list(self._workers.values())]

    def check_health(self) -> None:
        """Raise `WorkerStartError` while a process cannot be started."""
        if self._start_error is not None:
            raise self._start_error

    def close(self) -> None:
        """Kill the processes and fail the jobs that are left."""
        with self._changed:
            self._closed = True
            for worker in self._workers.values():
                worker.kill()
            self._changed.notify_all()
        for minder in self._minders:
            minder.join()
        self._fail_queue("the compile pool is closed")

    def _mind(self, number: int) -> None:
        """The life of one minder: keep a warm process and give it jobs until it has to be replaced."""
        while not self._closed:
            try:
                worker = self._start(number)
                while (job := self._next_job(worker)) is not None:
                    try:
                        if not self._run(job, worker):
                            break
                    finally:
                        with self._changed:
                            self._running -= 1
            except (WorkerStartError, OSError) as error:
                self._cannot_start(error)
            finally:
                self._stop(number)

    def _start(self, number: int) -> WorkerProcess:
        worker = WorkerProcess(*self._worker_arguments)
        with self._changed:
            self._workers[number] = worker
            if self._closed:
                worker.kill()
        fingerprint = worker.wait_ready(self._start_timeout_s)
        with self._changed:
            self._fingerprint = fingerprint
            self._start_error = None
            self._ready.add(number)
            self._changed.notify_all()
        return worker

    def _stop(self, number: int) -> None:
        with self._changed:
            self._ready.discard(number)
            worker = self._workers.pop(number, None)
        if worker is not None:
            worker.close()

    def _cannot_start(self, error: WorkerStartError | OSError) -> None:
        """Say so, leave nobody waiting, and try again a little later."""
        with self._changed:
            if self._closed:
                return
            logger.error("%s", error)
            self._start_error = error if isinstance(error, WorkerStartError) else WorkerStartError(str(error))
            self._changed.notify_all()
            if not self._ready:
                self._fail_queue(str(error))
            self._changed.wait_for(lambda: self._closed, _RESTART_PAUSE_S)

    def _next_job(self, worker: WorkerProcess) -> _Job | None:
        """Wait for a job that nobody cancelled; None when the pool is closed or the idle process has died."""
        with self._changed:
            while not self._closed and worker.alive:
                if not self._queue:
                    self._changed.wait(_IDLE_CHECK_S)
                elif (job := self._queue.get()[1]).begin():
                    self._running += 1
                    return job
        return None

    def _run(self, job: _Job, worker: WorkerProcess) -> bool:
        """Settle the job or, if its process died, queue it again; whether the process can go on."""
        job.runs += 1
        try:
            header, artifact = worker.ask(job.key, job.specification, job.tenant, self._timeout_s)
        except WorkerTimeoutError:
            limit = f"compilation took longer than the limit of {self._timeout_s:g} s"
            job.result.set_exception(ResourceLimitError(limit))
            return False
        except WorkerDiedError:
            if job.runs >= MAX_RUNS:
                job.result.set_exception(ResourceLimitError(f"compilation ended its process {MAX_RUNS} times"))
            else:
                with self._changed:
                    self._queue.put_back(job.tenant, job)
            return False
        match header["status"]:
            case "compiled":
                job.result.set_result(artifact)
            case "refused":
                job.result.set_exception(GrammarError.from_dict(header["error"]))
            case "out_of_memory":
                limit = f"compilation needed more memory than the limit of {self._memory_limit_mb} MiB"
                job.result.set_exception(ResourceLimitError(limit))
                return False  # what a failed allocation left half done is not worth finding out
            case _:
                job.result.set_exception(CompileFailedError(header["message"]))
        return True

    def _fail_queue(self, message: str) -> None:
        with self._changed:
            jobs = [self._queue.get()[1] for _ in range(len(self._queue))]
        for job in jobs:
            if job.begin():
                job.result.set_exception(CompileFailedError(message))
