"""`python -m deployments.local.launcher CONFIG --port N`: start a server on this machine.

`make serve` and `turnstile serve` run this module. Like Ray's `serve run CONFIG`, it deploys a Serve config file.
Unlike `serve run`, it also works unattended:

- It validates the config strictly before the start.
- It always starts a new local Ray.
- If a start fails or hangs, it prints the reason and ends.
- After a stop, no process and no file remains.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import socket
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import NoReturn

from deployments.cli.arguments import UsageFailure, port, positive
from deployments.cli.main import main
from deployments.haproxy import settings
from deployments.local.model_source import model_at_hand
from deployments.local.terminal import own_foreground
from deployments.shipped import ROOT

_PORTS = 200


# Environment variables of a local server whose values do not depend on the machine.
_CONSTANT = {
    # The whole Ray is on this machine: its node and its metrics have the address 127.0.0.1, as on a Mac.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # HAProxy in front of the routers and gRPC between replicas carry several times the requests.
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    # By default, up to 1000 request log lines wait in memory, and are lost when the process ends.
    "RAY_SERVE_REQUEST_PATH_LOG_BUFFER_SIZE": "1",
    # The default of 5 s kills the proxy again and again on a machine that is slow to start it.
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
    # While the only proxy is dead, nothing answers. Serve replaces it after three failed checks.
    "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "1",
    # Short drain periods are enough on one machine: no load balancer has to notice the shutdown first.
    "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "1",
    "RAY_SERVE_PROXY_MIN_DRAINING_PERIOD_S": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}


def environment(folder: Path) -> dict[str, str]:
    """Return the environment variables of a local server. The caller must set them before it imports `ray`.

    The variables configure Ray, Ray Serve and HAProxy, in this process and in all processes that it starts. They
    contain ports that are free now, so that several servers can run on one machine.

    Args:
        folder: Existing folder for the configuration, sockets and state file of HAProxy.

    Returns:
        Name -> value of each variable.
    """
    ports = _free_ports()
    return {
        **_CONSTANT,
        # Serve's configuration of HAProxy lacks deadlines and limits. This program adds them.
        "RAY_SERVE_HAPROXY_BINARY_PATH": f"{sysconfig.get_path('scripts')}/turnstile-haproxy",
        # HAProxy's own ports and files are fixed by default, and a second server on the machine fails on them.
        "RAY_SERVE_HAPROXY_STATS_PORT": str(ports),
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(ports + 1),
        # HAProxy sends requests without a router here. With the fixed default, another server may receive them.
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(ports + 2),
        "RAY_SERVE_FALLBACK_PROXY_GRPC_PORT": str(ports + 3),
        settings.HEALTH_PORT: str(ports + 4),
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": f"{folder}/haproxy.cfg",
        "RAY_SERVE_HAPROXY_SOCKET_PATH": f"{folder}/admin.sock",
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": f"{folder}/metrics.sock",
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(folder),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": f"{folder}/server-state",
        # Replicas take their ports from a fixed range, too. HAProxy may use a port before its replica has found that a
        # replica of another server listens there, and would send requests to the other server.
        "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT": str(ports + 10),
        "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT": str(ports + 99),
        "RAY_SERVE_DIRECT_INGRESS_MIN_GRPC_PORT": str(ports + 100),
        "RAY_SERVE_DIRECT_INGRESS_MAX_GRPC_PORT": str(ports + 199),
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `turnstile serve` to a parser: config, model, engine, ports and deadline.

    Args:
        parser: Parser of the command; changed in place.
    """
    parser.add_argument(
        "config",
        nargs="?",
        default="local",
        help="a Serve config file, or NAME for the packaged configs/NAME.yaml (default: local, the embedded model)",
    )
    parser.add_argument("--model", help="model that replaces the model of the config: a folder, or a Hugging Face ID")
    parser.add_argument(
        "--engine",
        choices=("native", "vllm"),
        help="engine, with its default settings, that replaces the engine of the config",
    )
    parser.add_argument("--port", type=port, help="HTTP port (default: `http_options.port` of the config)")
    parser.add_argument(
        "--health-port", type=port, help="port for health checks, which responds under any load (default: a free port)"
    )
    parser.add_argument(
        "--metrics-port",
        type=port,
        help="port of Ray's Prometheus metrics (default: 8081, or a free port if 8081 is taken)",
    )
    parser.add_argument(
        "--deadline",
        type=positive,
        default=300,
        help="maximum number of seconds until the server is ready (default 300)",
    )


def run(options: argparse.Namespace) -> NoReturn:
    """Start the server, wait until it has stopped, and end this process.

    The exit code is 0 after a clean stop, 1 after a failed start or an unclean stop, and 2 if the config cannot be
    used. Before the start, `UsageFailure` is raised if the config file or the model `options.model` does not exist.

    Args:
        options: Parsed arguments of `add_arguments`. If `options.model` is a folder, it is replaced by its absolute
            path.
    """
    config = _config(options.config)
    if options.model is not None:
        options.model = model_at_hand(options.model)
    with tempfile.TemporaryDirectory(prefix="turnstile-") as folder:
        for name, value in environment(Path(folder)).items():
            os.environ.setdefault(name, value)
        if options.health_port is not None:
            os.environ[settings.HEALTH_PORT] = str(options.health_port)

        print("loading Ray and the engine (up to half a minute the first time)", flush=True)
        from deployments.local.server import serve_locally

        with own_foreground():
            code = serve_locally(config, options)
    sys.stdout.flush()
    sys.stderr.flush()
    # Ray's exit handlers would wait for processes that are gone.
    os._exit(code)


def _config(name: str) -> Path:
    """Return the path of a config file: one of the user, or else one that is distributed with Turnstile."""
    for path in (Path(name), ROOT / name, ROOT / "configs" / name, ROOT / "configs" / f"{name}.yaml"):
        if path.is_file():
            return path
    ours = ", ".join(sorted(path.stem for path in (ROOT / "configs").glob("*.yaml")))
    raise UsageFailure(f"{name}: no such file; the configs that Turnstile comes with are {ours}")


def _free_ports() -> int:
    """Return the first of 200 consecutive ports that are free now.

    The ports are below the range from which the kernel assigns ports to outgoing connections. A port of that range
    could be assigned before Serve listens on it.
    """
    while True:
        first = random.randrange(10_000, 30_000, _PORTS)
        with contextlib.suppress(OSError):
            for port in range(first, first + _PORTS):
                with socket.socket() as probe:
                    probe.bind(("", port))
            return first


if __name__ == "__main__":
    sys.exit(main(["serve", *sys.argv[1:]]))
