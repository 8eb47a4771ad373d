"""Each field of the manifests that matters is changed in turn, and some check of this folder must notice."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from deployments.arguments import AppArguments
from tests.k8s import test_manifests, test_resilience, test_serve_configs
from tests.k8s.manifests import K8S, Manifest, build, ray_groups, ray_service

pytestmark = pytest.mark.usefixtures("kustomize")

REMOVED = object()


def checks() -> list[Callable[..., None]]:
    """The tests of one overlay's objects, in the other modules of this folder."""
    found = []
    for module in (test_manifests, test_resilience, test_serve_configs):
        for name, function in inspect.getmembers(module, inspect.isfunction):
            wanted = set(inspect.signature(function).parameters)
            if name.startswith("test_") and wanted and wanted <= {"manifests", "service", "embedded", "arguments"}:
                found.append(function)
    return found


def noticed(manifests: list[Manifest]) -> bool:
    """Whether some check fails."""
    try:
        service = ray_service(manifests)
        embedded = yaml.safe_load(service["spec"]["serveConfigV2"])
        arguments = AppArguments.model_validate(embedded["applications"][0]["args"])
        known = {"manifests": manifests, "service": service, "embedded": embedded, "arguments": arguments}
        for check in checks():
            check(*(known[name] for name in inspect.signature(check).parameters))
    except Exception:
        return True
    return False


def changed(manifests: list[Manifest], kind: str, path: str, value: Any) -> list[Manifest]:
    """A copy in which a field has another value, or is gone, in every object of the kind."""
    manifests = copy.deepcopy(manifests)
    for manifest in manifests:
        if manifest["kind"] == kind:
            steps = [step.replace("~1", "/") for step in path.split("/")]  # as in a JSON Pointer
            *way, last = [int(step) if step.isdigit() else step for step in steps]
            place: Any = manifest
            for step in way:
                place = place[step]
            if value is REMOVED:
                del place[last]
            else:
                place[last] = value
    return manifests


CLUSTER = "spec/rayClusterConfig"
POD = f"{CLUSTER}/workerGroupSpecs/1/template/spec"
FIELDS: list[tuple[str, str, Any]] = [
    ("RayService", "spec/upgradeStrategy/type", "None"),
    ("RayService", "spec/rayClusterDeletionDelaySeconds", 10),
    ("RayService", "spec/excludeHeadPodFromServeSvc", False),
    ("RayService", f"{CLUSTER}/enableInTreeAutoscaling", False),
    ("RayService", f"{CLUSTER}/autoscalerOptions/version", "v1"),
    ("RayService", f"{CLUSTER}/rayVersion", "2.9.0"),
    ("RayService", f"{CLUSTER}/headGroupSpec/rayStartParams/num-cpus", "4"),
    ("RayService", f"{CLUSTER}/headGroupSpec/template/spec/terminationGracePeriodSeconds", REMOVED),
    *(
        ("RayService", f"{CLUSTER}/workerGroupSpecs/{group}/{field}", value)
        for group in (0, 1)
        for field, value in (("minReplicas", 1), ("maxReplicas", 2), ("replicas", 9), ("scaleStrategy", REMOVED))
    ),
    *(
        ("RayService", f"{POD}/{field}", value)
        for field, value in (
            ("restartPolicy", "Always"),
            ("automountServiceAccountToken", True),
            ("terminationGracePeriodSeconds", 30),
            ("securityContext/fsGroup", 0),
            ("securityContext/runAsNonRoot", False),
            ("topologySpreadConstraints", []),
            ("containers/0/env/0/value", "0"),
            ("containers/0/env/11", REMOVED),
            ("containers/0/lifecycle", REMOVED),
            ("containers/0/livenessProbe", REMOVED),
            ("containers/0/readinessProbe/httpGet/path", "/health"),
            ("containers/0/resources/limits/memory", "1Gi"),
            ("containers/0/securityContext/capabilities", {}),
            ("containers/0/volumeMounts", []),
            ("volumes/0/emptyDir/sizeLimit", REMOVED),
        )
    ),
    ("PodDisruptionBudget", "spec/minAvailable", 2),
    ("NetworkPolicy", "spec/policyTypes", []),
    ("NetworkPolicy", "spec/ingress/0", {}),
    ("Namespace", "metadata/labels/pod-security.kubernetes.io~1enforce", "privileged"),
    ("ConfigMap", "data/redis.conf", "port 6379\nmaxmemory 4096mb\nmaxmemory-policy allkeys-lru\nappendonly no\n"),
    ("Deployment", "spec/template/spec/containers/0/securityContext/readOnlyRootFilesystem", False),
    ("Service", "spec/selector", {"app.kubernetes.io/component": "none"}),
]


@pytest.fixture(scope="module")
def base() -> list[Manifest]:
    return build(K8S / "base")


def test_the_checks_pass_without_a_change(base: list[Manifest]) -> None:
    assert len(checks()) > 25
    assert not noticed(base)


@pytest.mark.parametrize(
    ("kind", "path", "value"), FIELDS, ids=lambda part: "removed" if part is REMOVED else str(part)[-60:]
)
def test_a_changed_field_is_noticed(base: list[Manifest], kind: str, path: str, value: Any) -> None:
    mutated = changed(base, kind, path, value)
    assert mutated != base
    assert noticed(mutated)


def without_autoscaling(section: str, manifests: list[Manifest]) -> list[Manifest]:
    manifests = copy.deepcopy(manifests)
    service = ray_service(manifests)
    config = yaml.safe_load(service["spec"]["serveConfigV2"])
    del config["applications"][0]["args"][section]["autoscaling"]
    service["spec"]["serveConfigV2"] = yaml.safe_dump(config)
    return manifests


def deletions(manifests: list[Manifest]) -> Iterator[list[Manifest]]:
    for section in ("compiler", "replica"):
        yield without_autoscaling(section, manifests)
    for kind in ("PodDisruptionBudget", "NetworkPolicy", "Service", "Namespace"):
        for index, manifest in enumerate(manifests):
            if manifest["kind"] == kind:
                yield [*manifests[:index], *manifests[index + 1 :]]


def test_a_deleted_object_is_noticed(base: list[Manifest]) -> None:
    mutations = list(deletions(base))
    assert len(mutations) >= 8
    for number, mutated in enumerate(mutations):
        assert noticed(mutated), number
    assert ray_groups(ray_service(base)).keys() == {"head", "grammar", "model"}
