"""The Serve config of every overlay, held to what the builder makes and to what the Ray groups offer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from deployments.app import build_app
from deployments.arguments import AppArguments, Scale
from deployments.config_file import checked_config
from deployments.haproxy.settings import Settings
from tests.k8s.manifests import K8S, SERVE_CONFIGS, Manifest, ray_groups, ray_service


def application(config: dict[str, Any]) -> dict[str, Any]:
    (only,) = config["applications"]
    return only


def scales(config: dict[str, Any]) -> dict[str, Scale]:
    """Deployment name -> its part of the arguments."""
    arguments = AppArguments.model_validate(application(config)["args"])
    return {"Router": arguments.router, "GrammarCompiler": arguments.compiler, "ModelReplica": arguments.replica}


def demand(scale: Scale) -> dict[str, float]:
    """What one replica asks Ray for."""
    return {"CPU": scale.num_cpus, "GPU": scale.num_gpus, **scale.resources}


def offer(group: Manifest) -> dict[str, float]:
    """What one pod of a group offers to Ray."""
    if "num-cpus" in group["rayStartParams"]:
        return {"CPU": float(group["rayStartParams"]["num-cpus"])}
    return {name: float(quantity) for name, quantity in group["resources"].items()}


def fits(wanted: dict[str, float], offered: dict[str, float]) -> bool:
    return all(amount <= offered.get(name, 0) for name, amount in wanted.items())


def most_replicas(scale: Scale) -> int:
    return scale.autoscaling.max_replicas if scale.autoscaling else scale.replicas


def fewest_replicas(scale: Scale) -> int:
    return scale.autoscaling.min_replicas if scale.autoscaling else scale.replicas


def home_of(scale: Scale, service: Manifest) -> tuple[str, Manifest]:
    """The one group whose pods can hold a replica."""
    wanted = demand(scale)
    (home,) = [(name, group) for name, group in ray_groups(service).items() if fits(wanted, offer(group))]
    return home


@pytest.fixture(params=SERVE_CONFIGS)
def config(request: pytest.FixtureRequest) -> dict[str, Any]:
    return yaml.safe_load((K8S / request.param).read_text())


@pytest.fixture
def service(manifests: list[Manifest]) -> Manifest:
    return ray_service(manifests)


@pytest.fixture
def embedded(service: Manifest) -> dict[str, Any]:
    """The Serve config inside the RayService."""
    return yaml.safe_load(service["spec"]["serveConfigV2"])


def test_every_key_is_known(config: dict[str, Any]) -> None:
    assert checked_config(config)[1] == []


def test_the_builder_makes_the_deployments_that_are_named(config: dict[str, Any]) -> None:
    made = deployment_names(build_app(AppArguments.model_validate(application(config)["args"])))
    assert made == set(scales(config))
    assert {deployment["name"] for deployment in application(config).get("deployments", [])} <= made


def deployment_names(app: Any) -> set[str]:
    bound = app._bound_deployment
    arguments = [*bound.init_args, *bound.init_kwargs.values()]
    children = [deployment_names(child) for child in arguments if hasattr(child, "_bound_deployment")]
    return {bound.name}.union(*children)


def test_the_model_is_in_the_image_or_on_the_hub(config: dict[str, Any]) -> None:
    model = Path(application(config)["args"]["model"])
    assert not model.is_absolute()
    assert model.parts[0] != "models" or "\nCOPY models source/models\n" in (K8S / "Dockerfile").read_text()


def test_the_ray_service_carries_the_serve_config_of_its_overlay(embedded: dict[str, Any]) -> None:
    assert embedded in [yaml.safe_load((K8S / path).read_text()) for path in SERVE_CONFIGS]


def test_every_replica_has_one_group_that_can_hold_it(service: Manifest, embedded: dict[str, Any]) -> None:
    homes = {name: home_of(scale, service)[0] for name, scale in scales(embedded).items()}
    assert homes == {"Router": "grammar", "GrammarCompiler": "grammar", "ModelReplica": "model"}


def test_groups_hold_the_fewest_and_the_most_replicas(service: Manifest, embedded: dict[str, Any]) -> None:
    """Routers and compilers share a group: its pods must hold both kinds at once, one of each per pod."""
    by_name = scales(embedded)
    together = demand(by_name["Router"])
    for name, amount in demand(by_name["GrammarCompiler"]).items():
        together[name] = together.get(name, 0) + amount
    groups = ray_groups(service)
    assert fits(together, offer(groups["grammar"]))
    for scale in by_name.values():
        name, group = home_of(scale, service)
        assert group["minReplicas"] >= fewest_replicas(scale), name
        assert group["maxReplicas"] >= most_replicas(scale), name


def test_pods_have_the_cpus_and_memory_that_replicas_use(service: Manifest, embedded: dict[str, Any]) -> None:
    arguments = AppArguments.model_validate(application(embedded)["args"])
    groups = ray_groups(service)
    assert arguments.compiler.num_cpus >= arguments.compiler.processes
    memory = gibibytes(groups["grammar"])
    assert memory >= (arguments.compiler.processes + 1) * arguments.compiler.memory_limit_mb / 1024 + 3, (
        "routers and Ray need 3"
    )
    gpus = container_resources(groups["model"]).get("nvidia.com/gpu", "0")
    assert float(gpus) == offer(groups["model"]).get("GPU", 0) == arguments.replica.num_gpus
    engine = arguments.replica.engine
    assert (engine.kind == "vllm" or engine.device == "cuda") == (arguments.replica.num_gpus > 0)


def container_resources(group: Manifest) -> dict[str, str]:
    (container,) = group["template"]["spec"]["containers"]
    return container["resources"]["limits"]


def gibibytes(group: Manifest) -> float:
    memory = container_resources(group)["memory"]
    assert memory.endswith("Gi")
    return float(memory.removesuffix("Gi"))


def test_the_store_is_the_redis_service_with_files_on_a_volume(service: Manifest, embedded: dict[str, Any]) -> None:
    store = application(embedded)["args"]["store"]
    assert store.startswith("redis://turnstile-redis:6379/")
    folder = Path(store.partition("?file=")[2])
    for name in ("grammar", "model"):
        (container,) = ray_groups(service)[name]["template"]["spec"]["containers"]
        assert any(folder.is_relative_to(mount["mountPath"]) for mount in container["volumeMounts"])


def test_proxies_listen_where_the_probes_and_the_service_look(service: Manifest, embedded: dict[str, Any]) -> None:
    assert embedded["proxy_location"] == "EveryNode"
    assert embedded["http_options"]["host"] == "0.0.0.0"
    for name, group in ray_groups(service).items():
        (container,) = group["template"]["spec"]["containers"]
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert ports["serve"] == embedded["http_options"]["port"]
        environment = {each["name"]: each["value"] for each in container["env"] if "value" in each}
        if name != "head":
            assert container["readinessProbe"]["httpGet"] == {"path": "/-/healthz", "port": "health"}
            assert ports["health"] == int(environment["TURNSTILE_HEALTH_PORT"])
        assert Settings.from_environment(environment).health_port not in (None, ports["serve"])
