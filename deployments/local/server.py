"""A local Ray with one application on it, from the checked config to the last process gone."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import ray
from ray import serve
from ray.serve._private.api import serve_start
from ray.serve.schema import ApplicationStatus, ApplicationStatusOverview, ServeDeploySchema

from deployments.arguments import AppArguments
from deployments.cli.arguments import UsageFailure
from deployments.config_file import ConfigError, load_config
from deployments.http.examples import AS_PERSON, PROMPT
from deployments.kernel_progress import compile_visibly
from deployments.local import preflight
from deployments.local.stop import StopSignals, finish_requests, remove_sessions, stop_all

POLL_S = 0.25
REPEAT_S = 5.0

EXAMPLE = {
    "messages": [{"role": "user", "content": PROMPT}],
    "temperature": 0,
    "response_format": AS_PERSON,
}


class StartError(Exception):
    """The server did not start; the message says why."""


class Progress:
    """One line for each thing that happens, with the seconds since the start."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._last = ""
        self._told = self._start

    def __call__(self, message: str) -> None:
        if message != self._last:
            self._tell(message)
        self._last = message

    def _tell(self, line: str) -> None:
        self._told = time.monotonic()
        print(f"{self._told - self._start:6.1f} s  {line}", flush=True)

    @contextlib.contextmanager
    def repeating(self) -> Iterator[None]:
        """Meanwhile what takes long is told again."""
        over = threading.Event()

        def repeat() -> None:
            while not over.wait(1):
                if time.monotonic() - self._told >= REPEAT_S:
                    self._tell(f"still {self._last}")

        thread = threading.Thread(target=repeat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def serve_locally(
    path: Path,
    *,
    port: int | None,
    metrics_port: int | None,
    deadline_s: float,
    model: str | None = None,
    engine: str | None = None,
) -> int:
    """Serve a config until SIGINT or SIGTERM; returns the exit code (see `launcher.main`).

    `port` None means that of the config. `model` and `engine`, a kind, take the place of the config's. The start may
    take `deadline_s`. `metrics_port` is where Ray offers its Prometheus metrics; None: `preflight.METRICS_PORT`, or a
    free one where that is taken. A second signal ends the requests that a first one lets finish.
    """
    signals = StopSignals()
    signals.install()
    progress = Progress()
    try:
        progress(f"checking {path}")
        config = load_config(path, model=model, engine=engine)
        health_port, metrics_port = preflight.check_config(path, config, port, metrics_port, progress)
    except (ConfigError, UsageFailure) as error:
        for line in str(error).splitlines():
            print(f"error: {line}", file=sys.stderr)
        return 2

    # Each tier would compile them by itself, at the same time and without a word.
    compile_visibly(sys.stdout, signals.stop.is_set)
    if signals.stop.is_set():
        print("stopped cleanly", flush=True)
        return 0
    failure: StartError | None = None
    try:
        with progress.repeating():
            _start(config, progress, signals, deadline_s=deadline_s, metrics_port=metrics_port)
        if not signals.stop.is_set():
            print(_greeting(config, health_port, metrics_port, _log_folder()), flush=True)
        signals.stop.wait()
    except StartError as error:
        failure = error
    cut = finish_requests(progress, signals.hurry, drain_s=_arguments(config).router.drain_s)
    killed = stop_all(progress, signals.hurry, gracefully=not cut)
    if failure is not None:
        print(f"error: {failure}", file=sys.stderr)
        return 1
    if not killed:
        remove_sessions()
    troubles = [f"{cut} open requests were cut"] * bool(cut) + [f"{killed} processes had to be killed"] * bool(killed)
    print(f"stopped; {', '.join(troubles)}" if troubles else "stopped cleanly", flush=True)
    return 1 if troubles else 0


def _start(
    config: ServeDeploySchema,
    progress: Progress,
    signals: StopSignals,
    *,
    deadline_s: float,
    metrics_port: int,
) -> None:
    """Start a local Ray, then `deploy`."""
    started = time.monotonic()
    others = " beside another Ray of this machine, which takes longer" if preflight.other_rays() else ""
    progress(f"starting a local Ray{others}")
    ray_start = _RayStart(metrics_port, progress, signals.stop)
    ray_start.start()
    while not ray_start.over.wait(POLL_S) and not signals.stop.is_set():
        signals.install()
        if time.monotonic() > started + deadline_s:
            signals.stop.set()  # it does not try again
            raise _ray_failure(f"within {deadline_s:.0f} s")
    if signals.stop.is_set():
        return
    if ray_start.failure is not None:
        raise ray_start.failure
    # Ray's core puts a handler of SIGTERM into the place of ours, which prints a stack and aborts.
    signals.install()
    deploy(config, progress, signals.stop, deadline_s=deadline_s - (time.monotonic() - started))


def deploy(config: ServeDeploySchema, progress: Progress, stop: threading.Event, *, deadline_s: float) -> None:
    """Bring Serve to what `config` says, on the Ray that this process is connected to.

    Returns when the first request will be answered at full speed, or when asked to stop. Raises `StartError`.
    """
    deadline = time.monotonic() + deadline_s
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    deployment = _Deployment(config, progress)
    deployment.start()
    while not stop.wait(POLL_S):
        if not deployment.is_alive():
            if deployment.failure is not None:
                raise deployment.failure
            progress("ready")
            return
        if time.monotonic() > deadline:
            # Serve may still be trying, and has said what went wrong so far.
            reasons = "\n".join(map(_reasons, deployment.applications.values()))
            raise StartError(f"turnstile failed to start within {deadline_s:.0f} s\n{reasons}\nlogs: {_log_folder()}")


def start_ray(metrics_port: int | None = None) -> None:
    """A fresh Ray of this process; `metrics_port` None takes a free one."""
    ray.init(
        address="local",
        namespace="serve",
        num_cpus=preflight.CPUS,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        object_store_memory=512 << 20,
        _metrics_export_port=metrics_port,
    )


class _RayStart(threading.Thread):
    """Starts a local Ray; `over` when it is there, or there is a `failure`.

    A thread of its own: Ray waits for its processes, and neither the deadline nor a signal may wait for that. It lives
    as long as the process: the kernel ends what Ray has started with the thread that started it.
    """

    def __init__(self, metrics_port: int, progress: Progress, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self.failure: StartError | None = None
        self.over = threading.Event()
        self._metrics_port = metrics_port
        self._progress = progress
        self._stop_asked = stop

    def run(self) -> None:
        # Of two that start at once on a small machine, each takes the time that Ray gives the other.
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError, RuntimeError):  # no home, or one that knows no locks
                turn = os.open(Path.home(), os.O_RDONLY)
                stack.callback(os.close, turn)
                fcntl.flock(turn, fcntl.LOCK_EX)
            self._start_ray()
        self.over.set()
        threading.Event().wait()

    def _start_ray(self) -> None:
        try:
            start_ray(self._metrics_port)
        except Exception as error:
            if self._stop_asked.is_set():
                return
            # Ray gives its own node 30 s, which is not always enough on a busy machine.
            self._progress(f"starting a local Ray again: {error}")
            ray.shutdown()
            try:
                start_ray(self._metrics_port)
            except Exception as again:
                self.failure = _ray_failure(f"({again})")
                self.failure.__cause__ = again


def _ray_failure(reason: str) -> StartError:
    others = ", ".join(map(str, preflight.other_rays()))
    todo = f"another Ray runs here (process {others}): stop its server first" if others else "this machine is busy"
    return StartError(f"Ray did not start {reason}; {todo}, or start again when less is running")


class _Deployment(threading.Thread):
    """Deploys a config and ends when it answers, or with `failure`.

    A thread of its own: every call to Serve's controller waits for the answer without a limit, and neither the
    deadline nor Ctrl-C may wait for it.
    """

    def __init__(self, config: ServeDeploySchema, progress: Progress) -> None:
        super().__init__(daemon=True)
        self.failure: StartError | None = None
        self.applications: dict[str, ApplicationStatusOverview] = {}
        self._config = config
        self._progress = progress

    def run(self) -> None:
        try:
            self._progress(f"starting Serve on port {self._config.http_options.port}")
            # The two calls that `serve run` makes.
            client = serve_start(
                http_options=self._config.http_options.model_dump(),
                proxy_location=self._config.proxy_location,
                controller_options=self._config.controller_options,
            )
            client.deploy_apps(self._config, _blocking=False)
            health = f"{_url(self._config)}/health"
            while not _answers(health):
                self._check_applications()
                time.sleep(POLL_S)
        except StartError as failure:
            self.failure = failure
        except Exception as error:
            self.failure = StartError(f"Serve did not start: {error}")

    def _check_applications(self) -> None:
        """Report how far the replicas are; raise `StartError` when Serve has given up on them."""
        self.applications = serve.status().applications
        for application in self._config.applications:
            overview = self.applications.get(application.name)
            if overview is None:
                continue
            if overview.status in (ApplicationStatus.DEPLOY_FAILED, ApplicationStatus.UNHEALTHY):
                raise StartError(f"{application.name} failed to start\n{_reasons(overview)}\nlogs: {_log_folder()}")
            parts = [
                f"{name} {'ready' if part.status == 'HEALTHY' else 'starting'}"
                for name, part in sorted(overview.deployments.items())
            ]
            self._progress(", ".join(parts) or f"building {application.name}")


def _reasons(application: ApplicationStatusOverview) -> str:
    """What Serve says about an application and its deployments."""
    messages = [application.message, *(part.message for part in application.deployments.values())]
    return "\n".join(dict.fromkeys(message for message in messages if message))


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def _greeting(config: ServeDeploySchema, health_port: int | None, metrics_port: int, logs: str) -> str:
    url = _url(config)
    probes = "" if health_port is None else f"; for probes: {_url(config, health_port)}/health"
    metrics = f"http://127.0.0.1:{metrics_port}/metrics"
    arguments = _arguments(config)
    model = arguments.model_name
    key = "" if arguments.router.api_keys is None else "-H 'Authorization: Bearer YOUR_API_KEY' "
    body = json.dumps({"model": model, **EXAMPLE})
    open_to_all = ""
    if not key and config.http_options.host not in ("127.0.0.1", "localhost", "::1"):
        todo = "set `router.api_keys`, or `http_options.host: 127.0.0.1`"
        open_to_all = f"It answers everybody who reaches {config.http_options.host}, without a key: {todo}.\n"
    return (
        f"\nServing {model} at {url} (documentation: {url}/docs{probes}). Ctrl-C stops.\n"
        f"{open_to_all}What it is doing: {url}/, metrics for Prometheus: {metrics}, logs: {logs}. Try:\n\n"
        f"curl {url}/v1/chat/completions {key}-H 'Content-Type: application/json' -d '{body}'\n"
    )


def _arguments(config: ServeDeploySchema) -> AppArguments:
    return AppArguments.model_validate(config.applications[0].args)


def _url(config: ServeDeploySchema, port: int | None = None) -> str:
    host = config.http_options.host
    return f"http://{'127.0.0.1' if host in ('0.0.0.0', '::') else host}:{port or config.http_options.port}"


def _log_folder() -> str:
    return f"{ray._private.worker.global_worker.node.get_session_dir_path()}/logs"  # type: ignore[union-attr]
