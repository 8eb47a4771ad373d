"""A server on several Ray nodes, which can be lost one by one."""

from __future__ import annotations

import signal
from typing import Any

import yaml

from tests.chaos.nodes import NODES
from tests.integration.server import Server

START_DEADLINE_S = 600


class ClusterServer(Server):
    """`python -m tests.chaos.nodes` on free ports."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        super().__init__(arguments, deadline_s=START_DEADLINE_S)
        self._module = "tests.chaos.nodes"
        self.metrics_ports = [self.metrics_ports[0] + number for number in range(len(NODES))]
        config = self._read_config()
        # HAProxy asks routers at the address of their node; if they listen elsewhere, Serve's own proxy does its work.
        config["http_options"]["host"] = "0.0.0.0"
        self._config.write_text(yaml.safe_dump(config))

    def redeploy(self, changes: dict[str, dict[str, Any]]) -> None:
        """Change fields of the config's sections, so that Serve brings up other replicas; returns at once."""
        config = self._read_config()
        for section, fields in changes.items():
            config["applications"][0]["args"][section] |= fields
        self._config.write_text(yaml.safe_dump(config))
        self.reconcile()

    def _read_config(self) -> Any:
        return yaml.safe_load(self._config.read_text())

    def reconcile(self) -> None:
        """Make the program start lost nodes again, and deploy; returns at once."""
        self.process.send_signal(signal.SIGHUP)

    def lose_node(self, name: str) -> None:
        """SIGKILL to everything that runs on a node."""
        (raylet,) = self.processes(f"--node-name={name}")
        raylet.suspend()  # it must not replace what dies first
        for process in [*raylet.children(recursive=True), raylet]:
            process.kill()
