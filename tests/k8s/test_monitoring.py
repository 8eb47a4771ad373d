"""The dashboard asks for metrics that exist, and Prometheus for a port that the pods have."""

from __future__ import annotations

import json
import re

import yaml

from tests.k8s.manifests import K8S, REPOSITORY

FOLDER = K8S / "components" / "monitoring"
SUFFIXES = ("_bucket", "_sum", "_count", "")


def exported() -> set[str]:
    """Names of metrics in the source of the three packages, as Ray exports them."""
    sources = (
        path.read_text()
        for package in ("deployments", "gpu_workers", "grammar_workers")
        for path in (REPOSITORY / package).rglob("*.py")
    )
    return {f"ray_{name}" for source in sources for name in re.findall(r'"(turnstile_[a-z_]+)"', source)}


def test_every_panel_asks_for_what_is_exported() -> None:
    dashboard = json.loads((FOLDER / "grafana-dashboard.json").read_text())
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"]) > 10
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            for name in re.findall(r"ray_turnstile_[a-z_]+", target["expr"]):
                assert any(name.removesuffix(suffix) in exported() for suffix in SUFFIXES), name


def test_the_monitor_scrapes_a_port_of_every_ray_pod() -> None:
    monitor = yaml.safe_load((FOLDER / "pod-monitor.yaml").read_text())
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    (service,) = yaml.safe_load_all((K8S / "base" / "rayservice.yaml").read_text())
    cluster = service["spec"]["rayClusterConfig"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        for container in group["template"]["spec"]["containers"]:
            assert endpoint["port"] in [port["name"] for port in container["ports"]]
