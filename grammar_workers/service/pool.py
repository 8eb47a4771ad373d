"""Pool of compile processes. Compilations run in processes because a process can be killed, unlike a thread."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, Literal

from grammar_workers.errors import GrammarError, LimitExceededError
from grammar_workers.logs import get_logger
from grammar_workers.service.fair_queue import QueueFullError
from grammar_workers.service.lanes import Lanes, Run
from grammar_workers.service.worker_handle import ForkServer, WorkerDiedError, WorkerProcess, WorkerStartError

logger = get_logger(__name__)

LOAD_COMPILER = "grammar_workers.service.worker:load_compiler"
# Maximum number of runs of a job whose process dies.
MAX_RUNS = 2
# Time slice: seconds of CPU, and of elapsed time, in which a compilation may delay others. A few ordinary schemas in a
# thousand need more CPU. On a busy machine, any schema may need more elapsed time.
SLICE_S, LONGEST_SLICE_S = 0.25, 1.0
# Seconds between two checks of a compilation that has used up its time slice.
_LOOK_S = 0.05
_RESTART_PAUSE_S = 1.0
_IDLE_CHECK_S = 1.0


class ResourceLimitError(LimitExceededError):
    """A compilation was stopped, because it exceeded a limit on time or memory or its process died repeatedly.

    The compilation may succeed at another attempt.
    """


class CompileFailedError(RuntimeError):
    """A compilation has failed for a reason other than its specification, or the pool is closed."""


class AbandonedError(Exception):
    """A compilation was not started, or was stopped, because no caller waits for it any more."""


@dataclasses.dataclass(eq=False, slots=True)
class _Job:
    key: str
    specification: dict[str, Any]
    tenant: str
    is_wanted: Callable[[], bool]
    result: Future[bytes] = dataclasses.field(default_factory=Future)
    deaths: int = 0

    def wanted(self) -> bool:
        return not self.result.cancelled() and self.is_wanted()

    def begin(self) -> bool:
        """Return whether the job is to run. A job without callers ends here."""
        if not self.is_wanted():
            self.abandon()
            return False
        return self.result.running() or self.result.set_running_or_notify_cancel()

    def stop(self, why: str) -> Literal[False]:
        """Reject the job for a resource limit. Its process must be replaced."""
        self.result.set_exception(ResourceLimitError(f"compilation {why}"))
        return False

    def abandon(self) -> None:
        if self.result.running() or self.result.set_running_or_notify_cancel():
            self.result.set_exception(AbandonedError("nobody waits for this compilation"))


class CompilePool:
    """Pool of compile processes, which run jobs (compilations). Thread-safe.

    A fork server loads the compiler once, and forks the processes. If a job exceeds a limit, it fails and its process
    is replaced. If the process of a job dies, the job is run again. If its process dies a second time, the job fails.
    Slow jobs never use all processes (see `Lanes`). Tenants are served in rotation.

    Args:
        target: "module:function" that loads the compiler, such as LOAD_COMPILER (see `worker.load_compiler`).
        arguments: Keyword arguments of this function, as data that JSON can represent.
        processes: Maximum number of running jobs of each queue (fast and slow). The pool has `processes + 1` processes.
        timeout_s: Maximum duration of a job, in seconds.
        cpu_s: Maximum CPU time of a job, in seconds.
        memory_limit_mb: Memory limit of each process, in MiB.
        queue_size: Maximum number of jobs that wait in each queue (fast and slow).
        tenant_queue_size: Maximum number of jobs of one tenant that wait in each queue.
        start_timeout_s: Maximum time until a process is ready, in seconds.
        idle: True: the processes run at SCHED_IDLE (they use only CPU time that other processes leave), each in a
            session of its own. False: nice value 3.

    Attributes:
        timeout_s: The argument `timeout_s`.
        queue_size: The argument `queue_size`.
    """

    def __init__(
        self,
        target: str,
        arguments: dict[str, Any],
        *,
        processes: int = 1,
        timeout_s: float = 30.0,
        cpu_s: float = 2.0,
        memory_limit_mb: int = 4096,
        queue_size: int = 4096,
        tenant_queue_size: int = 1024,
        start_timeout_s: float = 300.0,
        idle: bool = True,
    ) -> None:
        self._server_arguments = (target, arguments, memory_limit_mb, idle)
        self.timeout_s = timeout_s
        self._cpu_s = cpu_s
        self._memory_limit_mb = memory_limit_mb
        self._start_timeout_s = start_timeout_s
        self.queue_size = queue_size
        self._lanes: Lanes[_Job] = Lanes(processes, queue_size, tenant_queue_size)
        self._server: ForkServer | None = None
        self._is_server_ready = False
        self._workers: dict[int, WorkerProcess] = {}
        self._ready: set[int] = set()
        self._fingerprint = ""
        self._start_error: WorkerStartError | None = None
        self._closed = False
        self._changed = threading.Condition()
        minders = [
            threading.Thread(target=self._mind, args=(number,), name=f"compile-minder-{number}", daemon=True)
            for number in range(processes + 1)
        ]
        self._threads = [threading.Thread(target=self._keep_server, name="fork-server-minder", daemon=True), *minders]
        self._places = len(minders)
        for thread in self._threads:
            thread.start()

    def wait_ready(self) -> str:
        """Block until all processes are ready.

        If a process cannot be started, the pool is closed, and WorkerStartError is raised.

        Returns:
            The fingerprint of the vocabulary.
        """
        with self._changed:
            self._changed.wait_for(lambda: len(self._ready) == self._places or self._start_error is not None)
            error = self._start_error
        if error is not None:
            self.close()
            raise error
        return self._fingerprint

    def submit(
        self,
        key: str,
        specification: dict[str, Any],
        tenant: str = "",
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> Future[bytes]:
        """Add a job to the queue without waiting for it. `QueueFullError` is raised if too many jobs wait.

        Args:
            key: Grammar key.
            specification: Specification, or a `job` (specification with options).
            tenant: Tenant of the request.
            is_wanted: Returns whether a caller waits for the job. If not, the job may end early. The function may be
                called in any thread.

        Returns:
            A future of the artifact (compiled grammar). It can be canceled until the job runs. It may fail with:

            - GrammarError: the specification is rejected. The subclass ResourceLimitError: the job exceeded its time or
              memory, or its process died repeatedly.
            - QueueFullError: the job was too slow for the fast queue, and the slow queue was full.
            - AbandonedError: no caller waits for the job.
            - CompileFailedError: the compiler has failed or cannot be started, or the pool was closed.

        Raises:
            CompileFailedError: The pool is closed.
        """
        job = _Job(key, specification, tenant, is_wanted)
        with self._changed:
            if self._closed:
                raise CompileFailedError("the compile pool is closed")
            try:
                self._lanes.put(job)
            except QueueFullError:
                self._drop_unwanted()  # they use capacity until they are removed
                self._lanes.put(job)
            self._changed.notify_all()
        return job.result

    @property
    def queued(self) -> int:
        """Number of jobs that wait for a process."""
        return self._lanes.waiting

    @property
    def running(self) -> int:
        """Number of jobs that have a process."""
        return self._lanes.running

    @property
    def backlog(self) -> int:
        """Number of jobs that wait or run. Waiting jobs for which no caller waits any more are removed first."""
        with self._changed:
            self._drop_unwanted()
            return self._lanes.waiting + self._lanes.running

    def check_health(self) -> None:
        """Raise `WorkerStartError` if the last attempt to start a process has failed."""
        if self._start_error is not None:
            raise self._start_error

    def close(self) -> None:
        """Kill all processes, and wait for the threads. The futures of unfinished jobs fail (`CompileFailedError`)."""
        with self._changed:
            self._closed = True
            for worker in self._workers.values():
                worker.kill()
            if self._server is not None:
                self._server.kill()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        self._fail_queue("the compile pool is closed")

    # -- the thread that keeps the fork server -----------------------------------------------------------------------

    def _keep_server(self) -> None:
        while not self._closed:
            try:
                with self._serving() as server:
                    fingerprint = server.wait_ready(self._start_timeout_s)
                    with self._changed:
                        self._fingerprint = fingerprint
                        self._start_error = None
                        self._is_server_ready = True
                        self._changed.notify_all()
                    server.wait()
                    if not self._closed:
                        logger.warning("fork server of the compile processes has ended, starting another")
            except (WorkerStartError, OSError) as error:
                self._cannot_start(error, fails_queue=True)

    @contextlib.contextmanager
    def _serving(self) -> Iterator[ForkServer]:
        server = ForkServer(*self._server_arguments)
        with self._changed:
            self._server = server
            if self._closed:
                server.kill()
        try:
            yield server
        finally:
            with self._changed:
                self._server, self._is_server_ready = None, False
            server.close()

    # -- a minder's thread -------------------------------------------------------------------------------------------

    def _mind(self, number: int) -> None:
        while not self._closed:
            try:
                if (worker := self._fork(number)) is None:
                    continue
                while (run := self._next_run(worker)) is not None:
                    try:
                        goes_on = self._run(run, worker)
                    finally:
                        with self._changed:
                            self._lanes.end(run)
                            self._changed.notify_all()
                    if not goes_on:
                        break
            except (WorkerStartError, OSError) as error:
                self._cannot_start(error, fails_queue=False)
            finally:
                self._stop(number)

    def _fork(self, number: int) -> WorkerProcess | None:
        """Return a new process, or None if the pool is closed or the server must be replaced first."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._is_server_ready)
            server = self._server
            if self._closed or server is None:
                return None
        try:
            worker = server.fork()
        except WorkerDiedError:
            server.kill()
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._server is not server)
            return None
        with self._changed:
            self._workers[number] = worker
            if self._closed:
                worker.kill()
        worker.wait_ready(self._start_timeout_s)
        with self._changed:
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

    def _next_run(self, worker: WorkerProcess) -> Run[_Job] | None:
        """Wait for a job that has a caller. Return None if the pool is closed or the idle process has died."""
        with self._changed:
            while not self._closed and worker.alive:
                if (run := self._lanes.take()) is None:
                    self._changed.wait(_IDLE_CHECK_S)
                elif run.job.begin():
                    return run
                else:
                    self._lanes.end(run)
        return None

    def _run(self, run: Run[_Job], worker: WorkerProcess) -> bool:
        """Run a job, or queue it again if its process has died. Return whether the process can be used again."""
        job = run.job
        try:
            worker.ask(job.key, job.specification, job.tenant)
            if not self._wait(run, worker):
                return False
            header, artifact = worker.answer()
        except WorkerDiedError:
            self._run_again(job, to_blame=worker.has_begun)
            return False
        match header["status"]:
            case "compiled":
                job.result.set_result(artifact)
            case "refused":
                job.result.set_exception(GrammarError.from_dict(header["error"]))
            case "out_of_memory":  # the state after a failed allocation is unknown
                return job.stop(f"needed more memory than the limit of {self._memory_limit_mb} MiB")
            case _:
                job.result.set_exception(CompileFailedError(header["message"]))
        return True

    def _wait(self, run: Run[_Job], worker: WorkerProcess) -> bool:
        """Return whether there is a response. If not, the job has ended or waits again, and the process must end."""
        began, cpu_began = time.monotonic(), worker.cpu_seconds
        patience = min(SLICE_S, self.timeout_s)
        while not worker.has_answered(patience):
            took = time.monotonic() - began
            if took >= self.timeout_s:
                return run.job.stop(f"took longer than the limit of {self.timeout_s:g} s")
            used = worker.cpu_seconds - cpu_began
            if used >= self._cpu_s:
                return run.job.stop(f"took more CPU than the limit of {self._cpu_s:g} s (compile_cpu_s)")
            outlasts = took >= LONGEST_SLICE_S or used >= SLICE_S
            if outlasts and not self._may_go_on(run):
                return False
            patience = min(_LOOK_S, self.timeout_s - took)
        return True

    def _may_go_on(self, run: Run[_Job]) -> bool:
        with self._changed:
            try:
                if self._lanes.waiting and not run.job.wanted():
                    run.job.abandon()
                    return False
                goes_on = self._lanes.outlasts_slice(run)
            except QueueFullError as error:
                run.job.result.set_exception(error)
                return False
            self._changed.notify_all()  # the lane may have room now
            return goes_on

    def _run_again(self, job: _Job, *, to_blame: bool) -> None:
        job.deaths += to_blame
        if job.deaths >= MAX_RUNS:
            job.stop(f"ended its process {MAX_RUNS} times")
            return
        with self._changed:
            self._lanes.put_back(job)

    # -- both --------------------------------------------------------------------------------------------------------

    def _cannot_start(self, error: WorkerStartError | OSError, *, fails_queue: bool) -> None:
        with self._changed:
            if self._closed:
                return
            logger.error("%s", error)
            self._start_error = error if isinstance(error, WorkerStartError) else WorkerStartError(str(error))
            self._changed.notify_all()
            if fails_queue and not self._ready:
                self._fail_queue(str(error))
            self._changed.wait_for(lambda: self._closed, _RESTART_PAUSE_S)

    def _drop_unwanted(self) -> None:
        for job in self._lanes.keep(_Job.wanted):
            job.abandon()

    def _fail_queue(self, message: str) -> None:
        with self._changed:
            jobs = self._lanes.keep(lambda job: False)
        for job in jobs:
            if job.begin():
                job.result.set_exception(CompileFailedError(message))
