"""examples/kubernetes on the cluster: keys, a limit of one tenant, monitoring, an Ingress."""

from __future__ import annotations

import json
import re
import shutil

import pytest

from tests.cluster.conftest import NAMESPACE, Shell, eventually, of_section

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


def test_keys_and_the_limit_of_one_tenant(shell: Shell) -> None:
    eventually(lambda: not shell.run(f"kubectl get namespace {NAMESPACE} --ignore-not-found"))
    install_kinds_of_the_prometheus_operator(shell)
    tag = (shell.overlay / "kustomization.yaml").read_text().partition("newTag: ")[2].split()[0]
    shutil.rmtree(shell.overlay)
    shell.run(of_section("2. The image", -1))
    # A limit that a few requests meet.
    keys = shell.overlay / "keys.yaml"
    keys.write_text(keys.read_text().replace("requests_per_minute: 120, burst: 20", "requests_per_minute: 1, burst: 2"))
    shell.run(f"sed -i 's/newTag: .*/newTag: {tag}/' {shell.overlay}/kustomization.yaml")
    made = dict(re.findall(r"^(\w+): (\w+)$", shell.run(of_section("3. Secrets", -1)), re.MULTILINE))
    shell.run(of_section("3. Secrets"))
    assert "serves what was applied" in shell.run(of_section("4. Deploy"))
    for kind in ("podmonitor", "prometheusrule", "ingress"):
        assert shell.run(f"kubectl get {kind} turnstile --namespace {NAMESPACE} --output name")
    assert [status for status, _ in ask(shell, key=None)] == [401]
    limited = ask(shell, key=made["search"], many=4)
    assert [status for status, _ in limited] == [200, 200, 429, 429]
    assert "its burst of 2 requests is used up, and it may send 1 per minute" in limited[-1][1]
    assert {status for status, _ in ask(shell, key=made["operations"], many=4)} == {200}
    shell.run(of_section("9. Remove"))
