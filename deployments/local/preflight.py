"""Checks of a Serve config before Ray starts: models, files, devices, the grammar store and ports must be usable.

Replicas would report these problems too, but only after Serve has started each replica several times.
"""

from __future__ import annotations

import errno
import importlib.util
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
from ray.serve.schema import HTTPOptionsSchema, ServeDeploySchema

from deployments.arguments import AppArguments
from deployments.cli.arguments import UsageFailure
from deployments.haproxy.settings import Settings
from deployments.http.tenants import Tenants
from deployments.local.model_source import model_problems
from deployments.version import installation
from grammar_workers.artifacts.store import open_store

# Default port of Ray's Prometheus metrics.
METRICS_PORT = 8081
# Number of CPUs of the local Ray, which is at least 4: CPU reservations must not prevent a start on one machine.
CPUS = max(4, os.cpu_count() or 1)


def check_config(
    path: Path,
    config: ServeDeploySchema,
    port: int | None,
    metrics_port: int | None,
    progress: Callable[[str], None],
) -> tuple[int | None, int]:
    """Check that the models, files, devices, stores and ports of a config are usable, and set its HTTP port and host.

    A *store* keeps compiled grammars (constraints).

    Args:
        path: File from which `config` was read, for error messages.
        config: Validated Ray Serve config; changed in place. `http_options.port` is set to the port that is used. If
            the config has no `http_options.host`, the host is set to 127.0.0.1.
        port: HTTP port of the command line. None: the port of the config.
        metrics_port: Port of the Prometheus metrics. None: 8081 (`METRICS_PORT`), or a free port if 8081 is taken.
        progress: Function that is called with a message if `port` overrides the config, or if a store cannot be
            reached.

    Returns:
        (health port, metrics port). The health port is None without HAProxy, or if no health port is configured.

    Raises:
        UsageFailure: A port, model, file, device or store cannot be used. Ports are checked first, and the message
            names the first bad port. Otherwise the message has one line for each problem.
    """
    _set_address(config.http_options, port, progress)
    health = _health_port()
    for each in (config.http_options.port, health):
        if each is not None:
            _check_port(config.http_options.host, each)
    metrics = free_metrics_port(metrics_port)
    problems = list(_file_problems(config))
    for index, application in enumerate(config.applications):
        arguments = AppArguments.model_validate(application.args)
        overridden = bool(application.deployments)
        found = (*_problems(arguments, overridden=overridden), *_store_problems(arguments.store_url, progress))
        problems += [f"`applications.{index}.args`: {problem}" for problem in found]
    if problems:
        raise UsageFailure("\n".join(f"{path}: {problem}" for problem in problems))
    return health, metrics


def _set_address(options: HTTPOptionsSchema, port: int | None, progress: Callable[[str], None]) -> None:
    """Set the HTTP port of the command line, and the host 127.0.0.1 if the config has no host."""
    if port is not None:
        if port != options.port and "port" in options.model_fields_set:
            progress(f"port {port} (--port) takes the place of {options.port} (`http_options.port` of the config)")
        options.port = port
    if "host" not in options.model_fields_set:
        options.host = "127.0.0.1"


def _check_port(host: str, port: int, options: str = "`http_options.port`, --port {0}, or PORT={0} of make") -> None:
    """Raise `UsageFailure` if the port cannot be used. `options` names the options that select another port."""
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
    """Return the health port, None without HAProxy. Raises `UsageFailure` if a variable for HAProxy is invalid."""
    try:
        settings = Settings.from_environment(os.environ)
    except ValueError as error:
        raise UsageFailure(str(error)) from error
    return settings.health_port if _has_haproxy() else None


def free_metrics_port(asked: int | None) -> int:
    """Return a port for Prometheus metrics that is free now.

    Args:
        asked: Port that the user has selected. None: 8081 (`METRICS_PORT`), or another free port if 8081 is taken.

    Raises:
        UsageFailure: The port `asked` cannot be used.
    """
    port = METRICS_PORT if asked is None else asked
    try:
        _check_port("", port, "--metrics-port {0}")
    except UsageFailure:
        if asked is not None:
            raise
        return _free_port()
    return port


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def other_rays() -> list[int]:
    """Return the process IDs of all raylets (Ray node processes) on this machine that other processes have started."""
    ours = psutil.Process().children(recursive=True)
    return [each.pid for each in psutil.process_iter(["name"]) if each.info["name"] == "raylet" and each not in ours]


def _has_haproxy() -> bool:
    return os.environ.get("RAY_SERVE_ENABLE_HA_PROXY") == "1"


def _problems(arguments: AppArguments, *, overridden: bool) -> Iterator[str]:
    """Yield one line for each problem. `overridden`: Serve's part of the config sets numbers of replicas and CPUs."""
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


def _store_problems(url: str, progress: Callable[[str], None]) -> Iterator[str]:
    """Yield one line if the store cannot be used. If it only cannot be reached now, call `progress` with a warning."""
    try:
        if (trouble := open_store(url).trouble()) is not None:
            so = "the server runs without it, and every replica compiles each grammar itself"
            progress(f"warning: `store`: {trouble}; {so}")
    except OSError as error:
        yield f"`store`: {error}"


def _file_problems(config: ServeDeploySchema) -> Iterator[str]:
    options = config.http_options
    files = {f"http_options.{name}": getattr(options, name) for name in ("ssl_certfile", "ssl_keyfile", "ssl_ca_certs")}
    if options.ssl_certfile is not None and _has_haproxy():
        # Serve would give the certificate to the routers, to which HAProxy connects without TLS.
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
