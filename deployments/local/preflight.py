"""Checks of everything that a config names, before Ray starts: models, files, devices, the store, ports.

Replicas would find out, too, but only after Serve has started each of them several times.
"""

from __future__ import annotations

import errno
import importlib.util
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
from ray.serve.schema import ServeDeploySchema

from deployments.arguments import AppArguments
from deployments.cli.arguments import UsageFailure
from deployments.haproxy.settings import Settings
from deployments.http.tenants import Tenants
from deployments.local.model_source import model_problems
from deployments.version import installation
from grammar_workers.artifacts.store import open_store

METRICS_PORT = 8081
CPUS = max(4, os.cpu_count() or 1)
"""CPUs of the local Ray. Reservations order the placement on clusters; on one machine they must not prevent a start."""


def check_config(
    path: Path,
    config: ServeDeploySchema,
    port: int | None,
    metrics_port: int | None,
    progress: Callable[[str], None],
) -> tuple[int | None, int]:
    """Check what the config file at `path` and the command line name, and put the address into the config.

    Args:
        path: Where `config` was read.
        config: The config, whose HTTP port and host are changed: without a host, this machine alone is answered.
        port: HTTP port of the command line, None for that of the config.
        metrics_port: Port of the metrics, None for the usual one or a free one.
        progress: Called with what is otherwise than the config says.

    Returns:
        The health port (None without HAProxy) and the metrics port.

    Raises:
        UsageFailure: Something cannot be used. The message has one line for each problem.
    """
    options = config.http_options
    if port is not None and port != options.port and "port" in options.model_fields_set:
        progress(f"port {port} (--port) takes the place of {options.port} (`http_options.port` of the config)")
    options.port = options.port if port is None else port
    if "host" not in options.model_fields_set:
        options.host = "127.0.0.1"
    health = _health_port()
    for each in (options.port, health):
        if each is not None:
            _check_port(options.host, each)
    metrics = free_metrics_port(metrics_port)
    problems = list(_file_problems(config))
    for application in config.applications:
        arguments = AppArguments.model_validate(application.args)
        problems += _problems(arguments, overridden=bool(application.deployments))
        try:
            if (trouble := open_store(arguments.store_url).trouble()) is not None:
                so = "the server runs without it, and every replica compiles each grammar itself"
                progress(f"warning: `store`: {trouble}; {so}")
        except (OSError, ValueError) as error:
            problems.append(f"`store`: {error}")
    if problems:
        raise UsageFailure("\n".join(f"{path}: {problem}" for problem in problems))
    return health, metrics


def _check_port(host: str, port: int, options: str = "`http_options.port`, --port {0}, or PORT={0} of make") -> None:
    """Raises `UsageFailure` where nothing can listen; `options` is how one chooses another port."""
    if not 0 <= port < 1 << 16:
        raise UsageFailure(f"port {port} cannot be used: a port is a number from 0 to 65535")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            other = f"choose another one, such as a free one: {options.format(_free_port())}"
            if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
                other = "`http_options.host` must be an address of this machine, such as 127.0.0.1 or 0.0.0.0"
            at = host or "this machine"
            raise UsageFailure(f"port {port} of {at} cannot be used ({error.strerror}); {other}") from error


def _health_port() -> int | None:
    """None without HAProxy, whose it is. Raises `UsageFailure` for what its other settings do not take, too."""
    try:
        settings = Settings.from_environment(os.environ)
    except ValueError as error:
        raise UsageFailure(str(error)) from error
    return settings.health_port if _has_haproxy() else None


def free_metrics_port(asked: int | None) -> int:
    """Raises `UsageFailure` where a port was asked for that cannot be used."""
    try:
        _check_port("", METRICS_PORT if asked is None else asked, "--metrics-port {0}")
    except UsageFailure:
        if asked is not None:
            raise
        return _free_port()
    return METRICS_PORT if asked is None else asked


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def other_rays() -> list[int]:
    """Process IDs of the Ray nodes on this machine that this process has not started."""
    ours = psutil.Process().children(recursive=True)
    return [each.pid for each in psutil.process_iter(["name"]) if each.info["name"] == "raylet" and each not in ours]


def _has_haproxy() -> bool:
    return os.environ.get("RAY_SERVE_ENABLE_HA_PROXY") == "1"


def _problems(arguments: AppArguments, *, overridden: bool) -> Iterator[str]:
    """Yield a line for each problem. `overridden`: the config has numbers of replicas and CPUs of its own for Serve."""
    scale, engine = arguments.replica, arguments.replica.engine
    yield from model_problems(arguments)
    if engine.kind == "vllm" and importlib.util.find_spec("vllm") is None:
        yield f"`replica.engine.kind`: vLLM is not installed: {installation('vllm')}"
    if scale.num_gpus or (engine.kind == "native" and engine.device.startswith("cuda")):
        import torch  # takes seconds, which a CPU does not need

        wanted, there = max(scale.num_gpus, 1), torch.cuda.device_count()
        if wanted > there:
            todo = "use `device: cpu` without `num_gpus`, or install the driver and torch's build for it"
            yield f"`replica`: {wanted:g} GPUs are asked for (`num_gpus`, `engine.device`), torch finds {there}; {todo}"
    needed = sum(
        each.num_cpus * (each.replicas if each.autoscaling is None else each.autoscaling.min_replicas)
        for each in (arguments.router, arguments.compiler, scale)
    )
    if needed > CPUS and not overridden:
        yield f"`num_cpus` x `replicas` of `router`, `compiler`, `replica`: {needed:g} CPUs, Ray has {CPUS}; lower them"
    try:
        Tenants.from_file(arguments.router.api_keys)
    except ValueError as error:
        yield f"`router.api_keys`: {error}"


def _file_problems(config: ServeDeploySchema) -> Iterator[str]:
    options = config.http_options
    files = {f"http_options.{name}": getattr(options, name) for name in ("ssl_certfile", "ssl_keyfile", "ssl_ca_certs")}
    if options.ssl_certfile is not None and _has_haproxy():
        # Serve would give the certificate to the routers, which HAProxy asks without TLS.
        todo = "remove the `ssl_` options, and put a reverse proxy with TLS before it"
        yield f"`http_options.ssl_certfile`: this server has no TLS of its own; {todo}"
        files.clear()
    for application in config.applications:
        engine = AppArguments.model_validate(application.args).replica.engine
        if engine.kind == "native":
            files["replica.engine.draft_vocabulary"] = engine.draft_vocabulary
    for name, file in files.items():
        if file is not None and not (Path(file).is_file() and os.access(file, os.R_OK)):
            yield f"`{name}`: {file} is no file that this user can read"
