"""Local server: starts Ray on this machine, deploys a Serve config, waits for a signal, and stops all processes."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
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
from deployments.local import preflight
from deployments.local.stop import StopSignals, finish_requests, remove_sessions, stop_all
from grammar_workers.kernel_progress import compile_logged

POLL_S = 0.25
REPEAT_S = 5.0

EXAMPLE = {
    "messages": [{"role": "user", "content": PROMPT}],
    "temperature": 0,
    "response_format": AS_PERSON,
}


class StartError(Exception):
    """A local server did not start. The message has the reason, and the folder of the logs if Ray was started."""


class Progress:
    """Printer of progress messages on stdout. Call the object with a message to print it.

    Each line begins with the seconds since this object was created. A repetition of the last message is not printed.
    """

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._last = ""
        self._told = self._start

    def __call__(self, message: str) -> None:
        """Print `message` with the seconds since this object was created, unless it equals the last message."""
        if message != self._last:
            self._tell(message)
        self._last = message

    def _tell(self, line: str) -> None:
        self._told = time.monotonic()
        print(f"{self._told - self._start:6.1f} s  {line}", flush=True)

    @contextlib.contextmanager
    def repeating(self) -> Iterator[None]:
        """Return a context that repeats the last message about every 5 seconds while its block runs.

        The repetition shows that a long step is still running.
        """
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


def serve_locally(path: Path, options: argparse.Namespace) -> int:
    """Serve a config on this machine until SIGINT or SIGTERM.

    After the first signal, the server rejects new requests, and open requests may finish. A second signal, more than a
    second later, ends open requests at once.

    Args:
        path: Ray Serve config file (YAML).
        options: Options of `turnstile serve`: `port`, `metrics_port`, `model` and `engine`, each of which replaces a
            value of the config unless it is None, and `deadline`: maximum number of seconds until the server is ready.

    Returns:
        Exit code. 0: clean stop. 1: the start failed, open requests were ended, or processes had to be killed. 2: the
        config cannot be used. Errors are printed on stderr.
    """
    signals = StopSignals()
    signals.install()
    progress = Progress()
    try:
        progress(f"checking {path}")
        config = load_config(path, model=options.model, engine=options.engine)
        health_port, metrics_port = preflight.check_config(path, config, options.port, options.metrics_port, progress)
    except (ConfigError, UsageFailure) as error:
        for line in str(error).splitlines():
            print(f"error: {line}", file=sys.stderr)
        return 2

    # Ray and Serve start meanwhile. Deployments wait for the kernels when they need them.
    kernels = _in_thread(lambda: compile_logged(progress, signals.stop.is_set))
    code = _serve(
        config, progress, signals, deadline_s=options.deadline, health_port=health_port, metrics_port=metrics_port
    )
    signals.stop.set()
    wait([kernels])  # its processes have ended
    return code


def _serve(
    config: ServeDeploySchema,
    progress: Progress,
    signals: StopSignals,
    *,
    deadline_s: float,
    health_port: int | None,
    metrics_port: int,
) -> int:
    """Start the server, wait for a signal, stop all processes, and return the exit code of `serve_locally`."""
    failure: StartError | None = None
    try:
        with progress.repeating():
            _start(config, progress, signals, deadline_s=deadline_s, metrics_port=metrics_port)
        if not signals.stop.is_set():
            print(_greeting(config, health_port, metrics_port, _log_folder()), flush=True)
        signals.stop.wait()
    except StartError as error:
        failure = error
    cut = finish_requests(
        progress, signals.hurry, graceful_shutdown_timeout_s=_arguments(config).router.graceful_shutdown_timeout_s
    )
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
    """Start a local Ray, then call `deploy`."""
    started = time.monotonic()
    others = " beside another Ray of this machine, which takes longer" if preflight.other_rays() else ""
    progress(f"starting a local Ray{others}")
    ray_start = _in_thread(lambda: _start_ray_in_turn(metrics_port, progress, signals.stop))
    while not wait([ray_start], POLL_S).done and not signals.stop.is_set():
        signals.install()
        if time.monotonic() > started + deadline_s:
            signals.stop.set()  # the thread does not try again
            raise _ray_failure(f"within {deadline_s:.0f} s")
    if signals.stop.is_set():
        return
    ray_start.result()
    # Ray's core replaces the handler of SIGTERM by one that prints a stack and aborts.
    signals.install()
    deploy(config, progress, signals.stop, deadline_s=deadline_s - (time.monotonic() - started))


def deploy(config: ServeDeploySchema, progress: Progress, stop: threading.Event, *, deadline_s: float) -> None:
    """Deploy a Ray Serve config on the Ray that this process is connected to, and wait until the server is ready.

    The server is ready when `/health` responds with 200.

    Args:
        config: Validated config for Ray Serve.
        progress: Printer of messages, such as the names of the deployments that are ready.
        stop: Event that ends the wait. If it is set, the function returns before the server is ready.
        deadline_s: Maximum number of seconds until the server must be ready.

    Raises:
        StartError: Ray Serve has failed to deploy the config, or `deadline_s` has passed. The message has the reasons
            from Ray Serve.
    """
    deadline = time.monotonic() + deadline_s
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    applications: dict[str, ApplicationStatusOverview] = {}
    deployment = _in_thread(lambda: _deploy(config, progress, applications))
    while not stop.wait(POLL_S):
        if deployment.done():
            deployment.result()
            progress("ready")
            return
        if time.monotonic() > deadline:
            # Serve may still be trying. Its messages have the failures so far.
            reasons = "\n".join(map(_reasons, list(applications.values())))
            raise StartError(f"turnstile failed to start within {deadline_s:.0f} s\n{reasons}\nlogs: {_log_folder()}")


def start_ray(metrics_port: int | None = None) -> None:
    """Start a new Ray on this machine, and connect this process to it. Errors of `ray.init` are raised.

    Args:
        metrics_port: Port of Ray's Prometheus metrics. None: a free port.
    """
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


def _in_thread(step: Callable[[], None]) -> Future[None]:
    """Return the future of a step that runs in a thread, because neither the deadline nor a signal may wait for it.

    Ray waits for its processes, and every call to Serve's controller blocks without a limit. The thread lives as long
    as this process, because the kernel ends the processes of Ray together with the thread that started them.
    """
    result: Future[None] = Future()

    def run() -> None:
        try:
            step()
            result.set_result(None)
        except Exception as error:
            result.set_exception(error)
        threading.Event().wait()

    threading.Thread(target=run, daemon=True).start()
    return result


def _start_ray_in_turn(metrics_port: int, progress: Progress, stop: threading.Event) -> None:
    """Start a local Ray. If that fails, try once more, unless `stop` is set."""
    # Two Rays that start at once on a small machine make each other exceed Ray's time limit, so one waits.
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError, RuntimeError):  # no home directory, or no locks on it
            turn = os.open(Path.home(), os.O_RDONLY)
            stack.callback(os.close, turn)
            fcntl.flock(turn, fcntl.LOCK_EX)
        try:
            start_ray(metrics_port)
        except Exception as error:
            if stop.is_set():
                return
            # Ray gives its own node 30 s, which is not always enough on a busy machine.
            progress(f"starting a local Ray again: {error}")
            ray.shutdown()
            try:
                start_ray(metrics_port)
            except Exception as again:
                raise _ray_failure(f"({again})") from again


def _ray_failure(reason: str) -> StartError:
    others = ", ".join(map(str, preflight.other_rays()))
    todo = f"another Ray runs here (process {others}): stop its server first" if others else "this machine is busy"
    return StartError(f"Ray did not start {reason}; {todo}, or start again when less is running")


def _deploy(config: ServeDeploySchema, progress: Progress, found: dict[str, ApplicationStatusOverview]) -> None:
    """Deploy a config, and wait until the server answers. `found` gets the present state of the applications."""
    try:
        progress(f"starting Serve on port {config.http_options.port}")
        # The two calls that `serve run` makes.
        client = serve_start(
            http_options=config.http_options.model_dump(),
            proxy_location=config.proxy_location,
            controller_options=config.controller_options,
        )
        client.deploy_apps(config, _blocking=False)
        while not _answers(f"{_url(config)}/health"):
            found.update(serve.status().applications)
            for application in config.applications:
                if application.name in found:
                    _check(application.name, found[application.name], progress)
            time.sleep(POLL_S)
    except StartError:
        raise
    except Exception as error:
        raise StartError(f"Serve did not start: {error}") from error


def _check(name: str, application: ApplicationStatusOverview, progress: Progress) -> None:
    """Report the state of the replicas. Raises `StartError` if Serve has given up on the application."""
    if application.status in (ApplicationStatus.DEPLOY_FAILED, ApplicationStatus.UNHEALTHY):
        raise StartError(f"{name} failed to start\n{_reasons(application)}\nlogs: {_log_folder()}")
    parts = [
        f"{part} {'ready' if state.status == 'HEALTHY' else 'starting'}"
        for part, state in sorted(application.deployments.items())
    ]
    progress(", ".join(parts) or f"building {name}")


def _reasons(application: ApplicationStatusOverview) -> str:
    """Return what Serve reports about an application and its deployments."""
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
