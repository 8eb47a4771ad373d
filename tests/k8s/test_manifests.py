"""Every overlay, against the schemas of Kubernetes and KubeRay and against what the objects say about each other."""

from __future__ import annotations

import re
from typing import Any

import jsonschema
import kubernetes_validate
import pytest

from tests.k8s.manifests import (
    REPOSITORY,
    Manifest,
    closed,
    of_kind,
    pod_templates,
    ray_groups,
    ray_service,
    ray_service_schema,
)

KUBERNETES_VERSION = "1.34"


def containers(template: Manifest) -> list[Manifest]:
    return [*template["spec"].get("initContainers", []), *template["spec"]["containers"]]


def values_of(node: Any, key: str) -> list[Any]:
    """Every value under `key`, at any depth."""
    if isinstance(node, list):
        return [value for child in node for value in values_of(child, key)]
    if isinstance(node, dict):
        nested = [value for child in node.values() for value in values_of(child, key)]
        return [node[key], *nested] if key in node else nested
    return []


def test_core_objects_match_the_schemas_of_kubernetes(manifests: list[Manifest]) -> None:
    core = [manifest for manifest in manifests if manifest["kind"] != "RayService"]
    assert core
    for manifest in core:
        kubernetes_validate.validate(manifest, KUBERNETES_VERSION, strict=True)


def test_ray_service_matches_the_custom_resource_definition(manifests: list[Manifest]) -> None:
    jsonschema.Draft202012Validator(ray_service_schema()).validate(ray_service(manifests))


def test_pod_templates_are_valid_pods(manifests: list[Manifest]) -> None:
    for name, template in pod_templates(manifests).items():
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": template["spec"]}
        kubernetes_validate.validate(pod, KUBERNETES_VERSION, strict=True)


def test_schema_refuses_a_misspelt_key() -> None:
    service: Manifest = {"spec": {"rayClusterConfig": {"headGroupSpec": {"template": {"spec": {"containers": []}}}}}}
    validator = jsonschema.Draft202012Validator(ray_service_schema())
    validator.validate(service)
    service["spec"]["rayClusterConfig"]["headGroupSpec"]["template"]["spec"]["nodeSelectors"] = {}
    with pytest.raises(jsonschema.ValidationError, match="nodeSelectors"):
        validator.validate(service)


def test_closing_a_schema_leaves_free_maps_free() -> None:
    schema = closed({"properties": {"labels": {"type": "object", "additionalProperties": {"type": "string"}}}})
    jsonschema.validate({"labels": {"any": "thing"}}, schema)
    with pytest.raises(jsonschema.ValidationError, match="label"):
        jsonschema.validate({"label": {}}, schema)


def test_everything_is_in_one_namespace(manifests: list[Manifest]) -> None:
    for manifest in manifests:
        if manifest["kind"] != "Namespace":
            assert manifest["metadata"]["namespace"] == "turnstile", manifest["metadata"]["name"]


def test_containers_meet_the_restricted_profile_that_the_namespace_enforces(manifests: list[Manifest]) -> None:
    autoscaler = ray_service(manifests)["spec"]["rayClusterConfig"]["autoscalerOptions"]["securityContext"]
    contexts = [autoscaler]
    for template in pod_templates(manifests).values():
        pod = template["spec"]["securityContext"]
        assert pod["runAsNonRoot"] is True
        assert pod["runAsUser"] > 0
        assert pod["seccompProfile"] == {"type": "RuntimeDefault"}
        contexts += [container["securityContext"] for container in containers(template)]
    for context in contexts:
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}


def test_containers_say_what_they_need(manifests: list[Manifest]) -> None:
    for name, template in pod_templates(manifests).items():
        for container in containers(template):
            requests, limits = container["resources"]["requests"], container["resources"]["limits"]
            assert "cpu" in requests, name
            assert requests["memory"] == limits["memory"], name
            assert "livenessProbe" in container, name
            assert "readinessProbe" in container, name


def test_policies_budgets_and_services_select_existing_pods(manifests: list[Manifest]) -> None:
    labels = {name: template["metadata"]["labels"] for name, template in pod_templates(manifests).items()}

    def selected(selector: Manifest) -> list[str]:
        wanted = selector.get("matchLabels", {})
        expressions = selector.get("matchExpressions", [])
        assert all(expression["operator"] == "In" for expression in expressions)
        return [
            name
            for name, found in labels.items()
            if wanted.items() <= found.items() and all(found.get(e["key"]) in e["values"] for e in expressions)
        ]

    for budget in of_kind(manifests, "PodDisruptionBudget"):
        (pod,) = selected(budget["spec"]["selector"])
        group = ray_groups(ray_service(manifests))[pod.removeprefix("ray-")]
        assert group["minReplicas"] > budget["spec"]["minAvailable"], "this budget would block every drain"
    for service in of_kind(manifests, "Service"):
        assert len(selected({"matchLabels": service["spec"]["selector"]})) == 1
    protected = set()
    for policy in of_kind(manifests, "NetworkPolicy"):
        protected |= set(selected(policy["spec"]["podSelector"]))
        for rule in policy["spec"]["ingress"]:
            peers = [peer for peer in rule.get("from", []) if "namespaceSelector" not in peer]
            assert all(selected(peer["podSelector"]) for peer in peers)
    assert protected == labels.keys()
    for name, template in pod_templates(manifests).items():
        for constraint in template["spec"].get("topologySpreadConstraints", []):
            assert selected(constraint["labelSelector"]) == [name]


def test_each_redis_is_reached_by_its_users_only(manifests: list[Manifest]) -> None:
    policies = {policy["metadata"]["name"]: policy for policy in of_kind(manifests, "NetworkPolicy")}
    templates = pod_templates(manifests)
    (rule,) = policies["grammar-cache"]["spec"]["ingress"]
    (peer,) = rule["from"]
    users = {
        n for n, t in templates.items() if peer["podSelector"]["matchLabels"].items() <= t["metadata"]["labels"].items()
    }
    assert users == {
        name for name in templates if name != "turnstile-redis" and "turnstile-store" in str(templates[name])
    }
    assert users == {"ray-grammar", "ray-model"}


def test_a_pod_that_lacks_a_secret_does_not_start(manifests: list[Manifest]) -> None:
    """Each key is named, because `envFrom` starts a pod without a missing key. A gated model's token is optional."""
    templates = pod_templates(manifests)
    for name in ("ray-grammar", "ray-model"):
        (container,) = templates[name]["spec"]["containers"]
        assert "envFrom" not in container
        keys = {each["name"]: each["valueFrom"]["secretKeyRef"] for each in container["env"] if "valueFrom" in each}
        for variable in ("TURNSTILE_REDIS_PASSWORD", "TURNSTILE_STORE_HMAC_KEY"):
            assert keys[variable] == {"name": "turnstile-store", "key": variable}


def test_the_document_creates_every_secret_and_key(manifests: list[Manifest]) -> None:
    document = (REPOSITORY / "docs" / "kubernetes.md").read_text()
    commands = dict(re.findall(r"kubectl create secret generic (\S+)((?:\s+\\\n|\s+--(?:\$\([^)]*\)|\S)+)+)", document))
    references = values_of(manifests, "secretKeyRef")
    assert references
    for reference in references:
        assert f"--from-literal={reference['key']}=" in commands[reference["name"]]
    for reference in values_of(manifests, "secretRef"):
        assert reference["name"] in commands
    assert not of_kind(manifests, "Secret"), "no password belongs into the repository"


def test_ray_versions_agree(manifests: list[Manifest]) -> None:
    (pinned,) = re.findall(r"^ray==(.+)$", (REPOSITORY / "constraints.txt").read_text(), re.MULTILINE)
    assert ray_service(manifests)["spec"]["rayClusterConfig"]["rayVersion"] == pinned


def test_ray_nodes_share_image_and_environment(manifests: list[Manifest]) -> None:
    groups = ray_groups(ray_service(manifests))
    images, environments = set(), []
    for group in groups.values():
        (container,) = group["template"]["spec"]["containers"]
        images.add(container["image"])
        environments.append({e["name"]: e["value"] for e in container["env"] if "value" in e})
    assert len(images) == 1
    assert all(environment == environments[0] for environment in environments)


def test_operator_accepts_the_groups(manifests: list[Manifest]) -> None:
    """Rules of the operator's own validation that no schema states."""
    service = ray_service(manifests)
    groups = ray_groups(service)
    for name, group in groups.items():
        assert not (
            group.get("resources") and {"num-cpus", "num-gpus", "memory", "resources"} & group["rayStartParams"].keys()
        )
        assert group["template"]["spec"]["restartPolicy"] == "Never", "autoscaler v2 allows no other"
        if name != "head":
            assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
    ports = {
        port["name"]: port["containerPort"] for port in groups["head"]["template"]["spec"]["containers"][0]["ports"]
    }
    assert "serve" in ports, "without it the operator creates no Serve service"


def test_ray_state_and_grammar_cache_are_different_redis_servers(manifests: list[Manifest]) -> None:
    policies = {}
    for config in of_kind(manifests, "ConfigMap"):
        settings = dict(line.split(maxsplit=1) for line in config["data"]["redis.conf"].splitlines())
        policies[config["metadata"]["name"]] = settings["maxmemory-policy"]
    assert policies.pop("turnstile-redis") == "allkeys-lru"
    fault_tolerance = ray_service(manifests)["spec"]["rayClusterConfig"].get("gcsFaultToleranceOptions")
    if fault_tolerance is None:
        assert not policies
    else:
        host, _, port = fault_tolerance["redisAddress"].partition(":")
        assert policies == {host: "noeviction"}
        (service,) = [s for s in of_kind(manifests, "Service") if s["metadata"]["name"] == host]
        assert int(port) in {p["port"] for p in service["spec"]["ports"]}
        assert fault_tolerance["redisPassword"]["valueFrom"]["secretKeyRef"]
