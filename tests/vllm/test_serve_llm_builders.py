"""What our builders hand to Ray Serve LLM: its own arguments, engines with our masks, one compiler for a vocabulary."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import yaml
from ray.serve import Application
from ray.serve._private.build_app import build_app
from ray.serve.llm import LLMConfig
from ray.serve.schema import ServeDeploySchema

from deployments.serve_llm import builders
from deployments.serve_llm.config import GuidedConfig
from tests.vllm.server import ROOT

CONFIGS = sorted((ROOT / "configs" / "serve-llm").glob("*.yaml"))
MODEL = "models/turnstile-tiny"


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's builders ask only for the environment of the driver, and would start a cluster for it."""
    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(runtime_env={}))


def engine(name: str = "tiny", source: Any = MODEL, **fields: Any) -> dict[str, Any]:
    return {
        "model_loading_config": {"model_id": name, "model_source": source},
        "placement_group_config": {"bundles": [{"CPU": 1}]},
        **fields,
    }


def deployed(application: Application) -> dict[str, Any]:
    """The deployments of an application by their names, as Serve would start them."""
    return {one.name: one for one in build_app(application, name="turnstile").deployments}


def engine_of(deployment: Any) -> GuidedConfig:
    return deployment.init_kwargs["llm_config"]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_the_shipped_configs_build(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    (application,) = ServeDeploySchema.model_validate(yaml.safe_load(path.read_text())).applications
    module, _, builder = application.import_path.partition(":")
    assert module == builders.__name__
    names = deployed(getattr(builders, builder)(application.args))
    engines = [engine_of(one) for one in names.values() if "llm_config" in one.init_kwargs]
    assert engines and "GrammarCompiler" in names
    for one in engines:
        assert one.engine_kwargs["structured_outputs_config"] == {"backend": "outlines"}
        assert one.runtime_env["env_vars"]["TURNSTILE_COMPILER_DEPLOYMENT"] == "GrammarCompiler"


def test_an_engine_gets_what_it_needs_and_keeps_the_rest() -> None:
    given = engine(
        runtime_env={"env_vars": {"VLLM_X": "1", "TURNSTILE_STORE": "file:///other"}, "pip": ["x"]},
        engine_kwargs={"max_model_len": 77, "structured_outputs_config": {"disable_fallback": True}},
    )
    store, options = "file:///grammars", {"whitespace": "flexible"}
    names = deployed(
        builders.build_openai_app({"llm_configs": [given], "store": store, "compiler": {"options": options}})
    )
    config, compiler = engine_of(names["LLMServer:tiny"]), names["GrammarCompiler"]
    assert compiler.init_args == (str(ROOT / MODEL), store)
    assert compiler.init_kwargs["options"]["whitespace"] == "flexible"
    assert config.engine_kwargs["max_model_len"] == 77
    assert config.engine_kwargs["structured_outputs_config"] == {"disable_fallback": True, "backend": "outlines"}
    assert config.runtime_env["pip"] == ["x"]
    variables = config.runtime_env["env_vars"]
    assert (variables["VLLM_X"], variables["TURNSTILE_STORE"], variables["TURNSTILE_VLLM"]) == ("1", store, "1")


def test_engines_of_one_vocabulary_share_a_compiler() -> None:
    """An `LLMConfig`, its fields, a file: a second model with the first's tokenizer, a third with its own."""
    other = LLMConfig(
        **engine(
            "other/one", "models/not-there", engine_kwargs={"tokenizer": str(ROOT / MODEL)}, log_engine_metrics=False
        )
    )
    names = deployed(builders.build_openai_app({"llm_configs": [engine(), other, engine("third", "someone/else")]}))
    compilers = {name: one.init_args[0] for name, one in names.items() if name.startswith("GrammarCompiler")}
    assert compilers == {"GrammarCompiler": str(ROOT / MODEL), "GrammarCompiler:third": "someone/else"}
    second = engine_of(names["LLMServer:other--one"])
    assert second.runtime_env["env_vars"]["TURNSTILE_COMPILER_DEPLOYMENT"] == "GrammarCompiler"
    assert second.log_engine_metrics is False
    third = engine_of(names["LLMServer:third"])
    assert third.runtime_env["env_vars"]["TURNSTILE_COMPILER_DEPLOYMENT"] == "GrammarCompiler:third"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"engine_kwargs": {"structured_outputs_config": {"backend": "xgrammar"}}}, "backend is 'xgrammar'"),
        ({"source": "s3://bucket/model"}, "cloud storage"),
        ({"source": {"bucket_uri": "gs://bucket/model"}}, "cloud storage"),
        ({"engine_kwarg": {}}, "engine_kwarg"),
    ],
)
def test_what_cannot_work_is_refused_by_name(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        builders.build_openai_app({"llm_configs": [engine(**fields)]})


@pytest.mark.parametrize("args", [{}, {"llm_configs": []}, {"llm_configs": [engine()], "compilers": {}}])
def test_the_other_arguments_are_rays_to_check(args: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"llm_configs|List of models is empty|compilers"):
        builders.build_openai_app(args)
