"""`python -m tests.chaos.nodes CONFIG --port N`: as `deployments.local.launcher`, on several Ray nodes of this machine.

SIGHUP replaces lost nodes and brings Serve to what CONFIG says by then. SIGINT and SIGTERM end everything at once.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any

import psutil

from deployments.local.launcher import add_arguments, environment

START_TRIES = 3

NODES: dict[str, dict[str, Any]] = {
    "front": {"num_cpus": 2, "resources": {"front": 8}, "include_dashboard": False},
    # Just room enough, so that replicas of a kind are on both of its nodes.
    "grammar-a": {"num_cpus": 1, "resources": {"grammar": 2}},
    "grammar-b": {"num_cpus": 1, "resources": {"grammar": 2}},
    "model-a": {"num_cpus": 1, "resources": {"model": 1}},
    "model-b": {"num_cpus": 1, "resources": {"model": 1}},
}
"""By name, the head with the proxy first: what Ray's `Cluster.add_node` takes."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.nodes", description=__doc__)
    add_arguments(parser)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="turnstile-") as folder:
        # A router that is replaced must still take connections until HAProxy has heard of it.
        os.environ.update({**environment(Path(folder)), "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "10"})
        return run(options)


def run(options: argparse.Namespace) -> int:
    import ray
    from ray.cluster_utils import Cluster

    from deployments.config_file import load_config
    from deployments.local.server import Progress, deploy
    from deployments.local.stop import StopSignals

    signals, changed = StopSignals(), threading.Event()
    progress = Progress()
    cluster = Cluster()
    try:
        add_nodes(cluster, options.metrics_port, progress)
        ray.init(address=cluster.address, namespace="serve", log_to_driver=False)
        signals.install()
        signal.signal(signal.SIGHUP, lambda *_: changed.set())
        changed.set()
        while not signals.stop.wait(0.2):
            if changed.is_set():
                changed.clear()
                add_nodes(cluster, options.metrics_port, progress, alive())
                config = load_config(options.config)
                config.http_options.port = options.port
                deploy(config, progress, signals.stop, deadline_s=options.deadline)
                print("Try: it is ready", flush=True)
    finally:
        ray.shutdown()
        cluster.shutdown()
    return 0


def alive() -> set[str]:
    """The nodes that run; Ray itself notices the loss of one half a minute later."""
    names = set()
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            names |= {word.partition("=")[2] for word in process.cmdline() if word.startswith("--node-name=")}
    return names


def add_nodes(
    cluster: Any, metrics_port: int | None, progress: Callable[[str], None], present: Container[str] = ()
) -> None:
    """Start the nodes except those that are `present`."""
    for number, (name, node) in enumerate(NODES.items()):
        if name not in present:
            port = metrics_port and metrics_port + number
            add_node(cluster, {**node, "node_name": name, "metrics_export_port": port}, progress)


def add_node(cluster: Any, settings: dict[str, Any], progress: Callable[[str], None]) -> None:
    """Ray gives a node 30 s to start, which a busy machine may not keep: what did not make it is killed, and started
    again.
    """
    me = psutil.Process()
    for tries in range(START_TRIES):
        before = me.children(recursive=True)
        progress(f"starting node {settings['node_name']}")
        try:
            cluster.add_node(**settings)
            return
        except Exception as error:
            progress(f"too slow: {error}")
            for process in set(me.children(recursive=True)) - set(before):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            if tries == START_TRIES - 1:
                raise


if __name__ == "__main__":
    sys.exit(main())
