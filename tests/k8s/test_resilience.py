"""What keeps the service up and closed: autoscaling, budgets, graceful stops, ports, settings of the Ray nodes."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest
import yaml

from deployments.arguments import AppArguments
from tests.k8s.manifests import Manifest, of_kind, pod_templates, ray_groups, ray_service

RAY_SETTINGS = {
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    "RAY_SERVE_REQUEST_PATH_LOG_BUFFER_SIZE": "1",
    "RAY_SERVE_HAPROXY_BINARY_PATH": "/usr/local/bin/turnstile-haproxy",
    "TURNSTILE_HEALTH_PORT": "8001",
    "RAY_LOG_TO_STDERR": "1",
    "RAY_SERVE_LOG_TO_STDERR": "1",
    "RAY_BACKEND_LOG_LEVEL": "warning",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
TIERS = ("grammar", "model")


@pytest.fixture
def service(manifests: list[Manifest]) -> Manifest:
    return ray_service(manifests)


@pytest.fixture
def arguments(service: Manifest) -> AppArguments:
    (application,) = yaml.safe_load(service["spec"]["serveConfigV2"])["applications"]
    return AppArguments.model_validate(application["args"])


def test_both_tiers_scale_by_themselves_within_the_bounds_of_their_pods(
    service: Manifest, arguments: AppArguments
) -> None:
    cluster = service["spec"]["rayClusterConfig"]
    assert cluster["enableInTreeAutoscaling"] is True and cluster["autoscalerOptions"]["version"] == "v2"
    groups = ray_groups(service)
    for name, scale in (("grammar", arguments.compiler), ("model", arguments.replica)):
        group = groups[name]
        if group["maxReplicas"] == 1:  # cpu-demo
            assert scale.autoscaling is None and scale.replicas == group["replicas"] == 1
            continue
        assert scale.autoscaling is not None, name
        assert scale.autoscaling.max_replicas > scale.autoscaling.min_replicas
        bounds = (scale.autoscaling.min_replicas, scale.autoscaling.max_replicas)
        assert bounds == (group["minReplicas"], group["maxReplicas"]), name


def test_each_tier_of_several_pods_keeps_one_of_them(manifests: list[Manifest]) -> None:
    budgets = {
        budget["spec"]["selector"]["matchLabels"]["app.kubernetes.io/component"]: budget["spec"]["minAvailable"]
        for budget in of_kind(manifests, "PodDisruptionBudget")
    }
    groups = ray_groups(ray_service(manifests))
    assert budgets == {name: 1 for name in TIERS if groups[name]["minReplicas"] > 1}


def test_upgrades_and_stops_leave_streams_the_time_to_end(service: Manifest, arguments: AppArguments) -> None:
    spec = service["spec"]
    assert spec["upgradeStrategy"] == {"type": "NewCluster"} and spec["excludeHeadPodFromServeSvc"] is True
    longest = max(
        arguments.router.graceful_shutdown_timeout_s,
        arguments.compiler.graceful_shutdown_timeout_s,
        arguments.replica.graceful_shutdown_timeout_s,
    )
    assert spec["rayClusterDeletionDelaySeconds"] > longest
    groups = ray_groups(service)
    for name in TIERS:
        pod = groups[name]["template"]["spec"]
        (container,) = pod["containers"]
        program, seconds = container["lifecycle"]["preStop"]["exec"]["command"]
        assert program == "sleep" and int(seconds) >= 30, "endpoints are forgotten meanwhile"
        assert pod["terminationGracePeriodSeconds"] > int(seconds)
    head = groups["head"]["template"]["spec"]
    assert head["terminationGracePeriodSeconds"] <= 5, "its first process ignores SIGTERM"


def test_only_the_worker_groups_hold_replicas_and_only_the_head_has_rights(service: Manifest) -> None:
    groups = ray_groups(service)
    assert groups["head"]["rayStartParams"]["num-cpus"] == "0"
    for name in TIERS:
        assert groups[name]["template"]["spec"]["automountServiceAccountToken"] is False
        assert groups[name]["scaleStrategy"] == {}, "what the operator fills in"


def test_ray_nodes_have_the_settings_that_the_code_counts_on(service: Manifest) -> None:
    for group in ray_groups(service).values():
        (container,) = group["template"]["spec"]["containers"]
        environment = {each["name"]: each["value"] for each in container["env"] if "value" in each}
        assert environment.items() >= RAY_SETTINGS.items()
        assert container["livenessProbe"]["httpGet"] == {"path": "/api/healthz", "port": 52365}


def test_pods_prefer_different_nodes_and_must_be_on_them_with_high_availability(manifests: list[Manifest]) -> None:
    service = ray_service(manifests)
    available = "gcsFaultToleranceOptions" in service["spec"]["rayClusterConfig"]
    groups = ray_groups(service)
    for name in TIERS:
        (constraint,) = groups[name]["template"]["spec"]["topologySpreadConstraints"]
        assert constraint["topologyKey"] == "kubernetes.io/hostname" and constraint["maxSkew"] == 1
        assert constraint["whenUnsatisfiable"] == ("DoNotSchedule" if available else "ScheduleAnyway")
    for group in groups.values():
        (container,) = group["template"]["spec"]["containers"]
        timeouts = [
            each["value"] for each in container["env"] if each["name"] == "RAY_gcs_rpc_server_reconnect_timeout_s"
        ]
        assert timeouts == (["600"] if available else [])


def test_caches_are_bounded_volumes_that_the_pods_may_write(service: Manifest) -> None:
    for name in TIERS:
        pod = ray_groups(service)[name]["template"]["spec"]
        assert pod["securityContext"]["fsGroup"] == pod["securityContext"]["runAsGroup"]
        assert all("sizeLimit" in volume["emptyDir"] for volume in pod["volumes"])


def test_gpu_pods_get_onto_gpu_nodes_and_vllm_has_shared_memory(service: Manifest, arguments: AppArguments) -> None:
    model = ray_groups(service)["model"]
    pod = model["template"]["spec"]
    if arguments.replica.num_gpus:
        assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in pod["tolerations"]
        assert 300 <= model["idleTimeoutSeconds"] <= 900
    if arguments.replica.engine.kind == "vllm":
        mounts = {mount["mountPath"]: mount["name"] for mount in pod["containers"][0]["volumeMounts"]}
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        assert volumes[mounts["/dev/shm"]]["emptyDir"]["medium"] == "Memory"


def test_ports_are_open_to_those_who_need_them_only(manifests: list[Manifest]) -> None:
    """Whoever reaches Ray's dashboard can run code."""
    policies = {policy["metadata"]["name"]: policy["spec"] for policy in of_kind(manifests, "NetworkPolicy")}
    opened = {
        rule["ports"][0]["port"]: [peer["podSelector"].get("matchLabels") for peer in rule.get("from", [])]
        for rule in policies["ray"]["ingress"]
        if "ports" in rule
    }
    assert opened == {
        8265: [
            {"app.kubernetes.io/name": "kuberay-operator"},
            {"app.kubernetes.io/component": "kuberay-operator"},
        ],
        8000: [],
        8080: [{"app.kubernetes.io/name": "prometheus"}],
    }
    (among_ray,) = [rule["from"] for rule in policies["ray"]["ingress"] if "ports" not in rule]
    assert among_ray == [{"podSelector": policies["ray"]["podSelector"]}]
    for name, policy in policies.items():
        assert policy["policyTypes"] == (["Ingress"] if name == "ray" else ["Ingress", "Egress"]), name
        assert all({"from", "ports"} & rule.keys() for rule in policy["ingress"])


def test_the_namespace_enforces_the_restricted_profile(manifests: list[Manifest]) -> None:
    (namespace,) = of_kind(manifests, "Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


def test_the_store_is_a_service_of_the_overlay(manifests: list[Manifest], arguments: AppArguments) -> None:
    store = urlsplit(arguments.store)
    services = {each["metadata"]["name"]: each["spec"] for each in of_kind(manifests, "Service")}
    assert store.port in [port["port"] for port in services[str(store.hostname)]["ports"]]


def test_each_redis_has_a_password_and_fits_its_memory(manifests: list[Manifest]) -> None:
    templates = pod_templates(manifests)
    for config in of_kind(manifests, "ConfigMap"):
        settings = dict(line.split(maxsplit=1) for line in config["data"]["redis.conf"].splitlines())
        megabytes = int(settings["maxmemory"].removesuffix("mb"))
        (container,) = templates[config["metadata"]["name"]]["spec"]["containers"]
        assert megabytes * 1.25 <= int(container["resources"]["limits"]["memory"].removesuffix("Gi")) * 1024
        assert "requirepass $REDISCLI_AUTH" in container["args"][0]
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert templates[config["metadata"]["name"]]["spec"]["automountServiceAccountToken"] is False
        durable = settings["maxmemory-policy"] == "noeviction"
        assert settings["appendonly"] == ("yes" if durable else "no")
