"""Compilation in processes that can be killed: threads and compiled loops that hold no lock cannot be."""

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
"""What compile processes load."""
MAX_RUNS = 2
"""How often a job is run whose process dies."""
SLICE_S, LONGEST_SLICE_S = 0.25, 1.0
"""Of its CPU, and altogether: so long a compilation holds others up. Of a thousand ordinary schemas a few need more;
on a busy machine any may take longer, through no fault of its own."""
_LOOK_S = 0.05
"""How often somebody asks whether a compilation that takes longer may go on."""
_RESTART_PAUSE_S = 1.0
_IDLE_CHECK_S = 1.0


class ResourceLimitError(LimitExceededError):
    """A compilation was stopped from outside, for time or memory; another time or machine might let it finish."""


class CompileFailedError(RuntimeError):
    """The compiler broke: a fault of ours, not of the specification."""


class AbandonedError(Exception):
    """A compilation was not begun, or ended early, because nobody wanted it any more."""


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
        """Whether the job shall run; where nobody wants it, it ends here."""
        if not self.is_wanted():
            self.abandon()
            return False
        return self.result.running() or self.result.set_running_or_notify_cancel()

    def stop(self, why: str) -> Literal[False]:
        """Refuse the job for a limit on resources; its process cannot go on."""
        self.result.set_exception(ResourceLimitError(f"compilation {why}"))
        return False

    def abandon(self) -> None:
        if self.result.running() or self.result.set_running_or_notify_cancel():
            self.result.set_exception(AbandonedError("nobody waits for this compilation"))


class CompilePool:
    """A few compile processes, each minded by a thread that hands it jobs, kills it at their deadlines and replaces it.

    `target` and `arguments` say what the processes load (see `fork_server.main`); they are forked by a process that has
    loaded it, which another thread keeps alive. A process that exceeds `timeout_s`, `cpu_s` of its CPU or its memory is
    replaced and its job refused; when one dies its job is run once more, then refused; the other jobs go on.

    There is one process more than the `processes` jobs that run at a time: jobs that outlast their slice of time may
    have all but one of them (`Lanes`). Tenants take turns; at most `tenant_queue_size` jobs of one and `queue_size`
    altogether wait for each lane.

    `idle`: the processes get what CPU all others leave (class SCHED_IDLE, each in a session of its own), so that
    streams of processes that are nice themselves notice nothing. Else they have nice 3 in the caller's session: Linux
    may share the CPU out by session first, and what waits in a loop and yields gives way in its own session only.
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
        self._timeout_s = timeout_s
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
        """Block until every process is warm; the fingerprint of their vocabulary. Raises `WorkerStartError`."""
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
        """Queue a job of `tenant`; raises `QueueFullError`.

        The future yields the artifact, or fails with GrammarError (refused; `ResourceLimitError` where time, memory or
        crashes ended it), `CompileFailedError`, or `QueueFullError` where too many others take long, too. Cancelling it
        works until the job runs. Once `is_wanted`, called from any thread, says no, the job need not begin, and ends
        where it takes long and others wait: `AbandonedError`.
        """
        job = _Job(key, specification, tenant, is_wanted)
        with self._changed:
            if self._closed:
                raise CompileFailedError("the compile pool is closed")
            try:
                self._lanes.put(job)
            except QueueFullError:
                self._drop_unwanted()  # they take up room until somebody looks
                self._lanes.put(job)
            self._changed.notify_all()
        return job.result

    @property
    def queued(self) -> int:
        """Jobs that wait for a process."""
        return self._lanes.waiting

    @property
    def running(self) -> int:
        """Jobs that have a process."""
        return self._lanes.running

    @property
    def backlog(self) -> int:
        """Jobs that wait or run, and that somebody still wants; looks at each."""
        with self._changed:
            self._drop_unwanted()
            return self._lanes.waiting + self._lanes.running

    @property
    def pids(self) -> list[int]:
        """Process ids of the compile processes."""
        return [worker.pid for worker in list(self._workers.values())]

    @property
    def server_pid(self) -> int | None:
        """Process id of the fork server; None while there is none."""
        server = self._server
        return None if server is None else server.pid

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
                        logger.warning("the fork server of the compile processes has ended")
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
        """The life of one minder: keep a compile process and give it jobs until it has to be replaced."""
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
        """A new process; None when the pool is closed or the server has to be replaced first."""
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
        """Wait for a job that somebody wants; None when the pool is closed or the idle process has died."""
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
        """Settle the job or, if its process died or it made room, queue it again; whether the process can go on."""
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
            case "out_of_memory":  # what a failed allocation left half done is not worth finding out
                return job.stop(f"needed more memory than the limit of {self._memory_limit_mb} MiB")
            case _:
                job.result.set_exception(CompileFailedError(header["message"]))
        return True

    def _wait(self, run: Run[_Job], worker: WorkerProcess) -> bool:
        """Whether there is an answer. If not, the job has been settled or waits, and the process has to end."""
        began, cpu_began = time.monotonic(), worker.cpu_seconds
        patience = min(SLICE_S, self._timeout_s)
        while not worker.has_answered(patience):
            took = time.monotonic() - began
            if took >= self._timeout_s:
                return run.job.stop(f"took longer than the limit of {self._timeout_s:g} s")
            used = worker.cpu_seconds - cpu_began
            if used >= self._cpu_s:
                return run.job.stop(f"took more CPU than the limit of {self._cpu_s:g} s (compile_cpu_s)")
            outlasts = took >= LONGEST_SLICE_S or used >= SLICE_S
            if outlasts and not self._may_go_on(run):
                return False
            patience = min(_LOOK_S, self._timeout_s - took)
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
        """Its process has died, maybe before it began with this job."""
        job.deaths += to_blame
        if job.deaths >= MAX_RUNS:
            job.stop(f"ended its process {MAX_RUNS} times")
            return
        with self._changed:
            self._lanes.put_back(job)

    # -- both --------------------------------------------------------------------------------------------------------

    def _cannot_start(self, error: WorkerStartError | OSError, *, fails_queue: bool) -> None:
        """Say so, leave nobody waiting, and try again a little later."""
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
