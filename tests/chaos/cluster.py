"""A server on several Ray nodes, which can be lost one by one."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import yaml

from tests.chaos.nodes import LAYOUTS
from tests.integration.server import Server

START_DEADLINE_S = 600


class ClusterServer(Server):
    """`python -m tests.chaos.nodes` on free ports, with the nodes of a `LAYOUTS` entry.

    `proxies`: each node has one; else only the first.
    """

    def __init__(self, arguments: dict[str, Any], layout: str, *, proxies: bool = False) -> None:
        super().__init__(arguments, deadline_s=START_DEADLINE_S)
        self._module, self._options = "tests.chaos.nodes", ("--layout", layout)
        nodes = range(len(LAYOUTS[layout]))
        self.metrics_ports = [self.metrics_ports[0] + number for number in nodes]
        if proxies:
            self.ports = [self.ports[0] + number for number in nodes]
            self._configure(lambda config: config.update(proxy_location="EveryNode"))

    def redeploy(self, changes: dict[str, dict[str, Any]]) -> None:
        """Change fields of the config's sections, so that Serve brings up other replicas; returns at once."""

        def change(config: dict[str, Any]) -> None:
            for section, fields in changes.items():
                config["applications"][0]["args"][section] |= fields

        self._configure(change)
        self.reconcile()

    def reconcile(self) -> None:
        """Make the program start lost nodes again, and deploy; returns at once."""
        self.process.send_signal(signal.SIGHUP)

    def lose_node(self, name: str) -> None:
        """SIGKILL to everything that runs on a node."""
        (raylet,) = self.processes(f"--node-name={name}")
        raylet.suspend()  # it must not replace what dies first
        for process in [*raylet.children(recursive=True), raylet]:
            process.kill()

    def _configure(self, change: Callable[[dict[str, Any]], None]) -> None:
        config = yaml.safe_load(self._config.read_text())
        change(config)
        self._config.write_text(yaml.safe_dump(config))
