"""examples/kubernetes on the cluster: keys, a limit of one tenant, monitoring, an Ingress; then sections 6, 8 and 9.

The tests depend on each other, in this order.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
import sys
from typing import Any

import pytest
import yaml

from tests.cluster.conftest import NAMESPACE, Shell, block, eventually, of_section
from tests.k8s.test_monitoring import rules

pytestmark = pytest.mark.timeout(1500)

FORWARD = f"kubectl port-forward --namespace {NAMESPACE} service/turnstile-serve-svc 8000 >/dev/null & sleep 4"
OPERATOR = ("podmonitors", "PodMonitor"), ("prometheusrules", "PrometheusRule")


def install_kinds_of_the_prometheus_operator(shell: Shell) -> None:
    """Where the operator is not installed: its kinds, without anything that reads them."""
    for plural, kind in OPERATOR:
        name = f"{plural}.monitoring.coreos.com"
        version = {
            "name": "v1",
            "served": True,
            "storage": True,
            "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
        }
        names = {"plural": plural, "singular": kind.lower(), "kind": kind}
        definition = {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": name, "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"}},
            "spec": {"group": "monitoring.coreos.com", "scope": "Namespaced", "names": names, "versions": [version]},
        }
        shell.run(f"kubectl get crd {name} || echo '{json.dumps(definition)}' | kubectl create -f -")


def ask(shell: Shell, *, key: str | None, many: int = 1) -> list[tuple[int, str]]:
    """Status and body of requests that are sent one after the other."""
    header = f"-H 'Authorization: Bearer {key}'" if key else ""
    url = "http://localhost:8000/v1/completions"
    one = f"curl --silent --max-time 60 -w ' %{{http_code}}\\n' {url} {header} -H 'Content-Type: application/json'"
    body = json.dumps({"prompt": "x", "max_tokens": 1})
    lines = shell.run(f"{FORWARD}; for i in $(seq {many}); do {one} -d '{body}'; done").splitlines()
    return [(int(line.rpartition(" ")[2]), line) for line in lines if line.rpartition(" ")[2].isdigit()]


def served_model(shell: Shell, key: str) -> dict[str, Any]:
    """Return the entry of the model in `/v1/models`."""
    curl = f"curl --silent --max-time 60 -H 'Authorization: Bearer {key}' http://localhost:8000/v1/models"
    return json.loads(shell.run(f"{FORWARD}; {curl}"))["data"][0]


def tag(shell: Shell) -> str:
    """The tag that the overlay names."""
    return (shell.overlay / "kustomization.yaml").read_text().partition("newTag: ")[2].split()[0]


def name_tag(shell: Shell, name: str) -> None:
    shell.run(f"sed -i 's/newTag: .*/newTag: {name}/' {shell.overlay}/kustomization.yaml")


def active_cluster(shell: Shell) -> str:
    path = "{.status.activeServiceStatus.rayClusterName}"
    return shell.run(f"kubectl get rayservice turnstile --namespace {NAMESPACE} --output jsonpath='{path}'")


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    """The keys of the tenants, once a test has made them."""
    return {}


def test_keys_and_the_limit_of_one_tenant(shell: Shell, made: dict[str, str]) -> None:
    eventually(lambda: not shell.run(f"kubectl get namespace {NAMESPACE} --ignore-not-found"))
    install_kinds_of_the_prometheus_operator(shell)
    image = tag(shell)
    shutil.rmtree(shell.overlay)
    shell.run(of_section("2. The image", -1))
    # A limit that a few requests meet.
    keys = shell.overlay / "keys.yaml"
    keys.write_text(keys.read_text().replace("requests_per_minute: 120, burst: 20", "requests_per_minute: 1, burst: 2"))
    name_tag(shell, image)
    made |= re.findall(r"^(\w+): (\w+)$", shell.run(of_section("3. Secrets", -1)), re.MULTILINE)
    shell.run(of_section("3. Secrets"))
    assert "serves what was applied" in shell.run(of_section("4. Deploy"))
    for kind in ("podmonitor", "prometheusrule", "ingress"):
        assert shell.run(f"kubectl get {kind} turnstile --namespace {NAMESPACE} --output name")
    assert [status for status, _ in ask(shell, key=None)] == [401]
    limited = ask(shell, key=made["search"], many=4)
    assert [status for status, _ in limited] == [200, 200, 429, 429]
    assert "its burst of 2 requests is used up, and it may send 1 per minute" in limited[-1][1]
    assert {status for status, _ in ask(shell, key=made["operations"], many=4)} == {200}


def test_the_rules_for_a_prometheus_without_its_operator(shell: Shell) -> None:
    shell.run(block("8. Monitor", "turnstile-rules.yml").replace("python3", sys.executable))
    written = yaml.safe_load((shell.clone / "turnstile-rules.yml").read_text())
    assert [rule for group in written["groups"] for rule in group["rules"]] == rules()


def test_the_bounds_of_pods_change_in_the_running_cluster(shell: Shell) -> None:
    before = active_cluster(shell)
    shell.run(block("6. Change", "maxReplicas"))
    found = shell.json(f"kubectl get raycluster {before} --namespace {NAMESPACE}")
    assert found["spec"]["workerGroupSpecs"][1]["maxReplicas"] == 12
    assert active_cluster(shell) == before


def test_a_changed_option_is_applied_in_place(shell: Shell, made: dict[str, str]) -> None:
    before = active_cluster(shell)
    path = shell.overlay / "serve.yaml"
    path.write_text(path.read_text().replace("max_model_len: 2048", "max_model_len: 1024"))
    assert "serves what was applied" in shell.run(of_section("4. Deploy"))
    assert served_model(shell, made["operations"])["max_model_len"] == 1024
    assert active_cluster(shell) == before


@pytest.mark.long
def test_a_key_is_replaced_without_an_interruption_and_revoked(shell: Shell, made: dict[str, str]) -> None:
    path = shell.overlay / "keys.yaml"
    old = next(entry for entry in yaml.safe_load(path.read_text())["keys"] if entry["tenant"] == "operations")
    key = secrets.token_hex(24)
    new = {**old, "sha256": hashlib.sha256(key.encode()).hexdigest()}

    def with_entries(*, without: dict[str, Any], also: list[dict[str, Any]]) -> None:
        keys = yaml.safe_load(path.read_text())
        keys["keys"] = [entry for entry in keys["keys"] if entry != without] + also
        path.write_text(yaml.safe_dump(keys))
        shell.run(f"kubectl apply -k {shell.overlay}")

    with_entries(without={}, also=[new])
    eventually(lambda: ask(shell, key=key)[0][0] == 200)
    assert ask(shell, key=made["operations"])[0][0] == 200
    with_entries(without=old, also=[])
    eventually(lambda: ask(shell, key=made["operations"])[0][0] == 401)
    assert ask(shell, key=key)[0][0] == 200
    made["operations"] = key


@pytest.mark.long
def test_password_and_signing_key_are_rotated(shell: Shell, made: dict[str, str]) -> None:
    before = active_cluster(shell)
    assert "serves what was applied" in shell.run(block("3. Secrets", "rotated"))
    assert active_cluster(shell) != before
    assert ask(shell, key=made["operations"])[0][0] == 200


@pytest.mark.long
def test_a_new_release_and_back_from_one_that_does_not_exist(shell: Shell, made: dict[str, str]) -> None:
    release = os.environ.get("TURNSTILE_NEXT_IMAGE", "turnstile:0.2.1").rpartition(":")[2]
    before = active_cluster(shell)
    upgrade = block("6. Change", "newTag: 0.3.0").replace("newTag: 0.3.0", f"newTag: {release}")
    # `kubectl diff` ends with 1 where it shows a difference.
    assert "serves what was applied" in shell.run(upgrade, fails=True)
    assert tag(shell) == release and active_cluster(shell) != before
    name_tag(shell, "0.0.0-missing")
    shell.run(f"kubectl apply -k {shell.overlay}")
    eventually(lambda: "ImagePull" in shell.run("k8s/status.sh", fails=True))
    assert ask(shell, key=made["operations"])[0][0] == 200
    shell.run(block("6. Change", "pendingServiceStatus").replace("newTag: 0.2.0", f"newTag: {release}"))
    assert "serves what was applied" in shell.run("k8s/status.sh 900")


def test_it_is_removed(shell: Shell) -> None:
    shell.run(of_section("9. Remove"))
    eventually(lambda: not shell.run(f"kubectl get namespace {NAMESPACE} --ignore-not-found"))
