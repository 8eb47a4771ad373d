"""Arguments and what the builder makes of them."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError
from ray.serve import Application, Deployment
from ray.serve._private.api import call_user_app_builder_with_args_if_necessary

from deployments.app import build_app
from deployments.arguments import AppArguments
from deployments.config_file import DEPLOYMENTS, load_config
from deployments.shipped import REPOSITORY
from grammar_workers.service.autoscaling import COMPILATION_BACKLOG, HELD_BACK

TINY = "models/turnstile-tiny"


def bound(application: Application) -> dict[str, Deployment]:
    """Every deployment of an application by its name."""
    deployment = application._bound_deployment
    found = {deployment.name: deployment}
    for argument in [*deployment.init_args, *deployment.init_kwargs.values()]:
        if isinstance(argument, Application):
            found |= bound(argument)
    return found


def test_serve_can_call_the_builder_with_plain_data() -> None:
    application = call_user_app_builder_with_args_if_necessary(build_app, {"model": TINY})
    assert set(bound(application)) == set(DEPLOYMENTS)
    with pytest.raises(ValueError, match="modle"):
        call_user_app_builder_with_args_if_necessary(build_app, {"model": TINY, "modle": TINY})


def test_options_come_from_the_arguments() -> None:
    arguments = AppArguments.model_validate(
        {
            "model": TINY,
            "router": {"replicas": 3, "max_ongoing_requests": 7},
            "compiler": {"resources": {"grammar": 1}, "num_cpus": 2, "processes": 2},
            "replica": {
                "autoscaling": {"min_replicas": 2, "max_replicas": 5},
                "num_gpus": 1,
                "graceful_shutdown_timeout_s": 60,
            },
        }
    )
    deployments = bound(build_app(arguments))
    router, compiler, replica = (deployments[name] for name in DEPLOYMENTS)
    assert router.num_replicas == 3 and router.max_ongoing_requests == 7
    assert compiler.ray_actor_options is not None
    assert compiler.ray_actor_options["resources"] == {"grammar": 1} and compiler.ray_actor_options["num_cpus"] == 2
    assert compiler.init_kwargs["processes"] == 2
    assert replica.ray_actor_options is not None and replica.ray_actor_options["num_gpus"] == 1
    scaling = replica._deployment_config.autoscaling_config
    assert scaling is not None and (scaling.min_replicas, scaling.max_replicas) == (2, 5)
    assert replica._deployment_config.graceful_shutdown_timeout_s == 60


SMALLEST: dict[str, dict[str, Any]] = {
    "router": {"replicas": 1, "max_prompt_bytes": 1, "max_body_bytes": 1, "max_ongoing_requests": 1},
    "compiler": {"processes": 1, "max_ongoing_requests": 1, "autoscaling": {"min_replicas": 0, "max_replicas": 1}},
    "replica": {"max_ongoing_requests": 1, "max_queued_requests": 1},
}


def test_the_smallest_numbers() -> None:
    arguments = AppArguments.model_validate({"model": TINY, **SMALLEST})
    assert arguments.model_dump(include=arguments.model_fields_set - {"model"}, exclude_unset=True) == SMALLEST
    for tier, settings in SMALLEST.items():
        for name, value in settings.items():
            smaller = {**value, "max_replicas": 0} if isinstance(value, dict) else value - 1
            with pytest.raises(ValidationError, match=rf"{tier}\.{name}"):
                AppArguments.model_validate({"model": TINY, tier: {name: smaller}})


def test_compilers_scale_by_their_backlog() -> None:
    autoscaling = {"min_replicas": 1, "max_replicas": 8, "target_ongoing_requests": 4}
    arguments = AppArguments.model_validate({"model": TINY, "compiler": {"autoscaling": autoscaling}})
    config = bound(build_app(arguments))["GrammarCompiler"]._deployment_config.autoscaling_config
    assert config is not None
    by_backlog = config.policy.get_policy()
    for backlogs, wanted in (({}, 0), ({"a": 0.0}, 0), ({"a": 3.0, "b": 1.0}, 1), ({"a": 30.0, "b": 1.0}, 8)):
        context = SimpleNamespace(aggregated_metrics={COMPILATION_BACKLOG: backlogs}, config=config)
        assert by_backlog(context) == (wanted, {})
    assert by_backlog(SimpleNamespace(aggregated_metrics={}, config=config)) == (0, {})


def test_what_routers_hold_back_counts_once_however_many_compilers_know_of_it() -> None:
    autoscaling = {"min_replicas": 1, "max_replicas": 8, "target_ongoing_requests": 4}
    arguments = AppArguments.model_validate({"model": TINY, "compiler": {"autoscaling": autoscaling}})
    config = bound(build_app(arguments))["GrammarCompiler"]._deployment_config.autoscaling_config
    assert config is not None
    metrics = {COMPILATION_BACKLOG: {"a": 2.0, "b": 1.0}, HELD_BACK: {"a": 17.0, "b": 9.0}}
    context = SimpleNamespace(aggregated_metrics=metrics, config=config)
    assert config.policy.get_policy()(context) == (5, {})


def test_a_full_tier_answers_429_and_the_key_chooses_the_compiler() -> None:
    deployments = bound(build_app(AppArguments(model=TINY)))
    for deployment in deployments.values():
        assert deployment.backpressure_config.status_code == 429
        assert deployment.max_queued_requests > 0
    router_class = deployments["GrammarCompiler"]._deployment_config.request_router_config.request_router_class
    assert "ConsistentHashRouter" in str(router_class)


def test_the_model_is_found_from_any_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert AppArguments(model=TINY).model_source == str(REPOSITORY / TINY)
    with pytest.raises(ValueError, match="no config"):
        AppArguments(model=str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    assert AppArguments(model=str(tmp_path)).model_source == str(tmp_path)
    assert AppArguments(model="Qwen/Qwen3-0.6B").model_source == "Qwen/Qwen3-0.6B"


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"model": TINY}, "turnstile-tiny"),
        ({"model": "Qwen/Qwen3-0.6B"}, "Qwen3-0.6B"),
        ({"model": "some/folder/"}, "folder"),
        ({"model": TINY, "served_model_name": "demo"}, "demo"),
    ],
)
def test_the_name_that_clients_use(arguments: dict[str, Any], name: str) -> None:
    assert AppArguments.model_validate(arguments).model_name == name


def test_the_home_folder_of_a_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    assert AppArguments(model=TINY, store="file://~/grammars").store_url == "file:///home/someone/grammars"
    assert AppArguments(model=TINY, store="redis://host/0").store_url == "redis://host/0"


def models_in(model: type[BaseModel]) -> set[type[BaseModel]]:
    children = [field.annotation for field in model.model_fields.values()]
    nested = [child for child in children if isinstance(child, type) and issubclass(child, BaseModel)]
    return {model}.union(*map(models_in, nested))


def test_every_argument_is_described() -> None:
    for model in models_in(AppArguments):
        for name, field in model.model_fields.items():
            assert field.description, f"{model.__name__}.{name}"


def test_the_local_config_fits_on_two_cores() -> None:
    for name in ("local.yaml", "redis.yaml"):
        (application,) = load_config(REPOSITORY / "configs" / name).applications
        arguments = AppArguments.model_validate(application.args)
        tiers = (arguments.router, arguments.compiler, arguments.replica)
        assert sum(tier.replicas * tier.num_cpus for tier in tiers) <= 2
    assert os.path.isdir(AppArguments(model=TINY).model_source)


VLLM = {"kind": "vllm", "engine_args": {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}}


def test_an_engine_of_vllm_has_a_gpu_for_each_worker() -> None:
    replica = {"num_gpus": 4, "num_cpus": 2, "resources": {"model": 1}, "engine": VLLM}
    made = bound(build_app(AppArguments.model_validate({"model": TINY, "replica": replica})))["ModelReplica"]
    assert made.func_or_class.__name__ == "VllmReplica"  # type: ignore[union-attr]
    assert made.ray_actor_options is not None and made.ray_actor_options["num_gpus"] == 4
    assert made._replica_config.placement_group_bundles is None
    assert made.init_kwargs["engine"]["engine_args"] == VLLM["engine_args"]
    with pytest.raises(ValueError, match="num_gpus: 2, but the engine arguments spread the model over 4"):
        AppArguments.model_validate({"model": TINY, "replica": {**replica, "num_gpus": 2}})


def test_workers_of_vllms_ray_executor_have_bundles_of_their_own() -> None:
    engine = {**VLLM, "engine_args": {**VLLM["engine_args"], "distributed_executor_backend": "ray"}}  # type: ignore[dict-item]
    replica = {"num_gpus": 4, "num_cpus": 2, "resources": {"model": 1}, "engine": engine}
    made = bound(build_app(AppArguments.model_validate({"model": TINY, "replica": replica})))["ModelReplica"]
    assert made.ray_actor_options is not None and made.ray_actor_options["num_gpus"] == 0
    bundles = made._replica_config.placement_group_bundles
    assert bundles == [{"CPU": 2, "GPU": 1, "model": 1}, {"GPU": 1}, {"GPU": 1}, {"GPU": 1}]


def test_what_an_engine_core_cannot_see_or_clients_could_not_tell_apart_is_refused() -> None:
    with pytest.raises(ValueError, match="memory://"):
        AppArguments.model_validate({"model": TINY, "store": "memory://", "replica": {"engine": VLLM}})
    adapters = {"engine_args": {"enable_lora": True}, "lora_adapters": {"turnstile-tiny": "/a", "tuned": "/b"}}
    engine = {"kind": "vllm", **adapters}
    with pytest.raises(ValueError, match="the model's own name"):
        AppArguments.model_validate({"model": TINY, "replica": {"engine": engine}})
    named = AppArguments.model_validate({"model": TINY, "served_model_name": "base", "replica": {"engine": engine}})
    assert named.model_names == ("base", "turnstile-tiny", "tuned")
