"""Dashboard and alerts ask for metrics that exist, and Prometheus for a port that the pods have."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from grammar_workers.service.metrics import STORE_TROUBLES, begin_at_zero
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


def asked_for(expression: str) -> set[str]:
    """Names of our metrics in PromQL that nobody exports."""
    names = re.findall(r"ray_turnstile_[a-z_]+", expression)
    return {name for name in names if all(name.removesuffix(suffix) not in exported() for suffix in SUFFIXES)}


def alerts() -> dict[str, Any]:
    """The PrometheusRule."""
    rule: dict[str, Any] = yaml.safe_load((FOLDER / "alerts.yaml").read_text())
    return rule


def rules() -> list[dict[str, Any]]:
    return [rule for group in alerts()["spec"]["groups"] for rule in group["rules"]]


def test_every_panel_asks_for_what_is_exported() -> None:
    dashboard = json.loads((FOLDER / "grafana-dashboard.json").read_text())
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"]) > 10
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            assert asked_for(target["expr"]) == set()


def test_the_monitor_scrapes_a_port_of_every_ray_pod() -> None:
    monitor = yaml.safe_load((FOLDER / "pod-monitor.yaml").read_text())
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    (service,) = yaml.safe_load_all((K8S / "base" / "rayservice.yaml").read_text())
    cluster = service["spec"]["rayClusterConfig"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        for container in group["template"]["spec"]["containers"]:
            assert endpoint["port"] in [port["name"] for port in container["ports"]]


def test_an_alert_fires_when_nothing_is_scraped() -> None:
    absent = {metric for rule in rules() for metric in re.findall(r"absent\((\w+)\)", rule["expr"])}
    assert absent == {"ray_turnstile_grammar_queue_length", "ray_turnstile_waiting_sequences"}, "one of each tier"


def test_everything_is_in_the_namespace_of_the_pods() -> None:
    """Also without a `namespace` in the overlay that includes the component: the monitor scrapes its own namespace."""
    kustomization = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
    objects = [yaml.safe_load((FOLDER / name).read_text())["metadata"] for name in kustomization["resources"]]
    for each in (*objects, *kustomization["configMapGenerator"]):
        assert each["namespace"] == "turnstile"


def test_counters_that_alerts_watch_begin_at_zero() -> None:
    """`increase` misses the event with which a counter first appears."""
    events = set(re.findall(r'store_events_total\{event="(\w+)"', str(rules())))
    assert events == {event for _, event in STORE_TROUBLES}
    counter = Recorded()
    begin_at_zero(counter, {"deployment": "a"}, {"deployment": "b"})
    assert counter.recorded == [(0, {"deployment": "a"}), (0, {"deployment": "b"})]


class Recorded:
    """Stands in for a counter of Ray."""

    def __init__(self) -> None:
        self.recorded: list[tuple[int, dict[str, str]]] = []

    def _record(self, value: int, tags: dict[str, str]) -> None:
        self.recorded.append((value, tags))


def test_alerts_have_the_shape_that_the_operator_takes() -> None:
    assert (alerts()["apiVersion"], alerts()["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")
    assert set(alerts()) == {"apiVersion", "kind", "metadata", "spec"} and set(alerts()["spec"]) == {"groups"}
    assert "alerts.yaml" in yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["resources"]
    for rule in rules():
        assert set(rule) - {"for"} == {"alert", "expr", "labels", "annotations"}
        assert re.fullmatch(r"\d+[mh]", rule.get("for", "0m"))
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert set(rule["annotations"]) == {"summary", "description"}
        assert "ray_turnstile_" in rule["expr"] and asked_for(rule["expr"]) == set()


def test_each_alert_is_in_the_documentation_with_its_metric() -> None:
    text = (REPOSITORY / "docs" / "monitoring.md").read_text()
    documented = dict(re.findall(r"^\| `(Turnstile\w+)` \| `(ray_turnstile_[a-z_]+)", text, re.MULTILINE))
    assert documented.keys() == {rule["alert"] for rule in rules()}
    for rule in rules():
        assert documented[rule["alert"]] in rule["expr"]


def test_the_unit_tests_of_the_alerts_name_each_of_them() -> None:
    tests = (Path(__file__).parent / "data" / "alerts.yaml").read_text()
    assert set(re.findall(r'alertname="(\w+)"', tests)) == {rule["alert"] for rule in rules()}


def test_alerts_fire_when_they_should(tmp_path: Path) -> None:
    """By Prometheus itself, where it is installed; else the tests above have looked at shape and names only."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("needs promtool on PATH (Debian: the package prometheus)")
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(alerts()["spec"]))
    shutil.copy(Path(__file__).parent / "data" / "alerts.yaml", tmp_path)
    for command in (["check", "rules", "rules.yaml"], ["test", "rules", "alerts.yaml"]):
        done = subprocess.run([promtool, *command], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
