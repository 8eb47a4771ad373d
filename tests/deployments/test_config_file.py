"""Config files are read strictly: what Serve would ignore fails with its name."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from deployments.arguments import AppArguments, CompilerArguments
from deployments.config_file import ConfigError, checked_config, load_config
from deployments.shipped import REPOSITORY
from grammar_workers.keys import parse_specification

CONFIGS = sorted((REPOSITORY / "configs").glob("*.yaml"))


def local() -> dict[str, Any]:
    return yaml.safe_load((REPOSITORY / "configs" / "local.yaml").read_text())


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_the_shipped_configs_are_right(path: Path) -> None:
    (application,) = load_config(path).applications
    assert application.name == "turnstile" and application.route_prefix == "/"


@pytest.mark.parametrize(
    ("place", "value", "named"),
    [
        ("http_option", {}, "http_option"),
        ("http_options.prot", 8000, "http_options.prot"),
        ("applications.0.arguments", {}, "applications.0.arguments"),
        ("applications.0.args.modle", "x", "applications.0.args.modle"),
        ("applications.0.args.compiler.proceses", 1, "applications.0.args.compiler.proceses"),
        ("applications.0.args.compiler.options.white", 1, "applications.0.args.compiler.options.white"),
        ("applications.0.args.replica.engine.slot", 1, "applications.0.args.replica.engine.slot"),
        ("applications.0.args.replica.autoscaling", {"max": 1}, "applications.0.args.replica.autoscaling.max"),
        ("applications.0.deployments", [{"name": "Router", "replicas": 2}], "applications.0.deployments.0.replicas"),
        ("applications.0.deployments", [{"name": "Rooter"}], "Rooter"),
        ("applications.0.args.replica.engine.max_num_seqs", 0, "applications.0.args.replica.engine.max_num_seqs"),
        (
            "applications.0.args.replica.engine",
            {"kind": "vllm", "max_num_seqs": 4},
            "applications.0.args.replica.engine.max_num_seqs",
        ),
        ("applications.0.args.replica.engine", {"kind": "sglang"}, "applications.0.args.replica.engine"),
        (
            "applications.0.args.replica.engine",
            {"kind": "vllm", "engine_args": {"model": "x", "tokenizer": "y"}},
            "model, tokenizer: Turnstile sets this itself",
        ),
        (
            "applications.0.args.replica.engine",
            {"kind": "vllm", "lora_adapters": {"a": "b"}},
            "lora_adapters need `enable_lora: true`",
        ),
        ("applications.0.import_path", "deployments.app:make", "deployments.app:make"),
        ("applications.0.args.model", 7, "applications.0.args.model"),
        ("http_options.port", "eighty", "http_options.port"),
        ("applications", {}, "applications"),
    ],
)
def test_a_mistake_is_named(place: str, value: Any, named: str) -> None:
    config = local()
    assert checked_config(config)[1] == []
    *parents, key = place.split(".")
    node: Any = config
    for parent in parents:
        node = node[int(parent)] if isinstance(node, list) else node.setdefault(parent, {})
    node[key] = value
    untouched = copy.deepcopy(config)
    assert any(named in problem for problem in checked_config(config)[1])
    assert config == untouched


@pytest.mark.parametrize(
    ("text", "reason"), [(None, "no such file"), ("a: [", "not YAML"), ("- a", "not a mapping"), ("a: 1", "key `a`")]
)
def test_files_that_are_no_configs(tmp_path: Path, text: str | None, reason: str) -> None:
    path = tmp_path / "config.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=reason):
        load_config(path)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(b"name: \xff")
    for unreadable in (tmp_path, path):
        with pytest.raises(ConfigError, match="cannot be read"):
            load_config(unreadable)


@pytest.mark.parametrize("applications", ["5", "{a: b}", "[5]", "[{args: 5}]", "[{args: {replica: 5}}]"])
def test_what_is_wrong_is_named_whatever_is_to_take_its_place(tmp_path: Path, applications: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(f"applications: {applications}\n")
    for changes in ({}, {"model": "tiny", "engine": "vllm"}):
        with pytest.raises(ConfigError):
            load_config(path, **changes)


def test_precompiled_grammars_reach_the_tiers_as_they_are() -> None:
    """Replicas read again what the config file was read into."""
    tag = {"type": "tag", "begin": "<a>", "content": {"type": "regex", "pattern": "b+"}, "end": "</a>"}
    specifications = [{"type": "structural_tag", "format": tag}, {"type": "json_schema", "schema": {"type": "string"}}]
    arguments = CompilerArguments.model_validate({"precompile": specifications})
    plain = arguments.plain_precompile()
    assert plain[1]["schema"] == {"type": "string"}
    again = [parse_specification(one) for one in plain]
    assert again == arguments.precompile == [parse_specification(plain) for plain in specifications]


@pytest.mark.parametrize(
    "change", [{"store": "redis://:secret@host:port/0"}, {"replica": {"engine": {"device": "gpu"}}}]
)
def test_no_error_repeats_the_password_of_the_store(change: dict[str, Any]) -> None:
    """Serve writes the error of pydantic to its log."""
    with pytest.raises(ValidationError) as caught:
        AppArguments.model_validate({"model": "m", "store": "redis://:secret@host/0", **change})
    assert "secret" not in str(caught.value)
