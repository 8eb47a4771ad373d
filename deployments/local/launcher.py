"""`python -m deployments.local.launcher CONFIG --port N`: what `make serve` runs.

Like `serve run CONFIG`, with what an unattended start needs: the config is checked strictly first, the local Ray is
always a fresh one, a start that fails or hangs ends with its reason, and a stop leaves nothing behind.
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

from deployments.cli.arguments import Parser, UsageFailure, port, positive
from deployments.haproxy import settings
from deployments.local.model_source import model_at_hand
from deployments.local.terminal import own_foreground
from deployments.shipped import ROOT

_PORTS = 200


def environment(folder: Path) -> dict[str, str]:
    """What Ray reads when it is imported, here and in every process it starts; `folder` is for HAProxy's files."""
    ports = _free_ports()
    return {
        # All of this Ray is on this machine: its node has the address 127.0.0.1, as on a Mac, and so have its metrics.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        # HAProxy in front of the routers and gRPC between replicas carry several times the requests.
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
        # Else a thousand lines about requests wait in memory, and are gone with their process.
        "RAY_SERVE_REQUEST_PATH_LOG_BUFFER_SIZE": "1",
        # Serve's configuration of HAProxy lacks deadlines and bounds: this program gives them to it.
        "RAY_SERVE_HAPROXY_BINARY_PATH": f"{sysconfig.get_path('scripts')}/turnstile-haproxy",
        # HAProxy's own ports and files are fixed by default, and a second server on the machine fails on them.
        "RAY_SERVE_HAPROXY_STATS_PORT": str(ports),
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(ports + 1),
        # Where HAProxy sends what it finds no router for: to another server's proxy, if that has the fixed port.
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(ports + 2),
        "RAY_SERVE_FALLBACK_PROXY_GRPC_PORT": str(ports + 3),
        settings.HEALTH_PORT: str(ports + 4),
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": f"{folder}/haproxy.cfg",
        "RAY_SERVE_HAPROXY_SOCKET_PATH": f"{folder}/admin.sock",
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": f"{folder}/metrics.sock",
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(folder),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": f"{folder}/server-state",
        # Replicas take their ports from a fixed range, too, and HAProxy may know a port before its replica has found
        # out that one of another server listens there: that one would be asked.
        "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT": str(ports + 10),
        "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT": str(ports + 99),
        "RAY_SERVE_DIRECT_INGRESS_MIN_GRPC_PORT": str(ports + 100),
        "RAY_SERVE_DIRECT_INGRESS_MAX_GRPC_PORT": str(ports + 199),
        # The default of 5 s kills the proxy again and again on a machine that is slow to start it.
        "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
        # Nothing else answers while the only proxy is dead, which takes three checks to be believed.
        "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "1",
        # The drain periods of one machine, where no load balancer has to notice first.
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "1",
        "RAY_SERVE_PROXY_MIN_DRAINING_PERIOD_S": "1",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `run` needs to know."""
    parser.add_argument(
        "config",
        nargs="?",
        default="local",
        help="a Serve config file, or the name of one in Turnstile's configs/ (default: local, the embedded model)",
    )
    parser.add_argument("--model", help="serve this model in place of the config's: a folder, or a Hugging Face id")
    parser.add_argument(
        "--engine", choices=("native", "vllm"), help="run it in this engine, at its defaults, in place of the config's"
    )
    parser.add_argument("--port", type=port, help="HTTP port (default: `http_options.port` of the config)")
    parser.add_argument(
        "--health-port", type=port, help="port on which probes reach /health under any load (default: any free one)"
    )
    parser.add_argument(
        "--metrics-port",
        type=port,
        help="port of Ray's Prometheus metrics (default 8081, or any free one where that is taken)",
    )
    parser.add_argument("--deadline", type=positive, default=300, help="seconds a start may take (default 300)")


def run(options: argparse.Namespace) -> NoReturn:
    """Ends the process. Exit codes: 0 after a clean stop, 1 for a failed start or an unclean stop, 2 for usage.

    Raises `UsageFailure` for a config or model that is not there, before anything that takes long is imported.
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
            code = serve_locally(
                config,
                port=options.port,
                metrics_port=options.metrics_port,
                deadline_s=options.deadline,
                model=options.model,
                engine=options.engine,
            )
    sys.stdout.flush()
    sys.stderr.flush()
    # Ray's exit handlers would wait for processes that are gone.
    os._exit(code)


def main() -> NoReturn:
    """Parses the command line; `run` does the rest."""
    parser = Parser(prog="python -m deployments.local.launcher", description="Serve a config locally.")
    add_arguments(parser)
    options = parser.parse_args()
    try:
        run(options)
    except UsageFailure as failure:
        print(f"error: {failure}", file=sys.stderr)
        sys.exit(2)


def _config(name: str) -> Path:
    """A config file: one of the user's, else one that Turnstile comes with."""
    for path in (Path(name), ROOT / name, ROOT / "configs" / name, ROOT / "configs" / f"{name}.yaml"):
        if path.is_file():
            return path
    ours = ", ".join(sorted(path.stem for path in (ROOT / "configs").glob("*.yaml")))
    raise UsageFailure(f"{name}: no such file; the configs that Turnstile comes with are {ours}")


def _free_ports() -> int:
    """The first of 200 ports that nobody uses now.

    They lie below those that the kernel gives to outgoing connections, which may take any port that is free for the
    moment before Serve listens there.
    """
    while True:
        first = random.randrange(10_000, 30_000, _PORTS)
        with contextlib.suppress(OSError):
            for port in range(first, first + _PORTS):
                with socket.socket() as probe:
                    probe.bind(("", port))
            return first


if __name__ == "__main__":
    main()
