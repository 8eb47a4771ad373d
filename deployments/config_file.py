"""Reading a Serve config file strictly: Serve itself ignores keys it does not know, here they fail by name."""

from __future__ import annotations

import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from ray.serve.schema import ServeDeploySchema

from deployments.arguments import AppArguments
from deployments.validation_messages import message_of
from grammar_workers.near_names import NearNames

IMPORT_PATH = "deployments.app:build_app"
KINDS = ("native", "vllm")
DEPLOYMENTS = ("Router", "GrammarCompiler", "ModelReplica")


class ConfigError(Exception):
    """A config file that cannot be served; the message has one line for each problem, with its place."""


def load_config(path: Path, *, model: str | None = None, engine: str | None = None) -> ServeDeploySchema:
    """The checked content of a config file, with another `model`, or another kind of `engine` at its defaults, in place
    of the file's. Raises `ConfigError`."""
    try:
        data = yaml.safe_load(path.read_text())
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: no such file") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not YAML: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: not a mapping")
    if model is not None or engine is not None:
        _change_applications(data, model, engine)
    if problems := config_problems(data):
        raise ConfigError("\n".join(f"{path}: {problem}" for problem in problems))
    return ServeDeploySchema.model_validate(data)


def _change_applications(data: dict[str, Any], model: str | None, engine: str | None) -> None:
    """Where the file has what it should; anything else is told by `config_problems`."""
    applications = data.get("applications")
    for application in applications if isinstance(applications, list) else ():
        arguments = application.get("args") if isinstance(application, dict) else None
        if isinstance(arguments, dict):
            _change(arguments, model, engine)


def _change(arguments: dict[str, Any], model: str | None, engine: str | None) -> None:
    if model is not None:
        arguments["model"] = model
        arguments.pop("served_model_name", None)
    if engine is not None:
        replica = arguments.setdefault("replica", {})
        if isinstance(replica, dict) and _kind(replica) != engine:
            replica["engine"] = {"kind": engine}


def _kind(replica: dict[str, Any]) -> Any:
    engine = replica.get("engine")
    return engine.get("kind", "native") if isinstance(engine, dict) else "native"


def config_problems(data: dict[str, Any]) -> list[str]:
    """Everything wrong with a config, each with its place; empty when it can be served."""
    unknown = [_unknown(place, near) for place, near in _unknown_keys(ServeDeploySchema, data, "")]
    if unknown:
        return unknown
    try:
        config = ServeDeploySchema.model_validate(data)
    except ValidationError as error:
        return problem_lines(error, "")
    problems = []
    for i, application in enumerate(config.applications):
        place = f"applications.{i}."
        if application.import_path != IMPORT_PATH:
            problems.append(f"`{place}import_path` is {application.import_path!r}, not {IMPORT_PATH!r}")
        try:
            AppArguments.model_validate(application.args)
        except ValidationError as error:
            problems += problem_lines(error, f"{place}args.")
        problems += [
            f"`{place}deployments` names {deployment.name!r}; there are only {', '.join(DEPLOYMENTS)}"
            for deployment in application.deployments
            if deployment.name not in DEPLOYMENTS
        ]
    return problems


def _unknown_keys(model: type[BaseModel], data: Any, place: str) -> list[tuple[str, str | None]]:
    """The places of keys that `model` does not have, each with the key that may be meant."""
    if not isinstance(data, dict):
        return []  # a wrong type is for the schema itself to report
    names = {field.alias or name: field for name, field in model.model_fields.items()}
    near = NearNames(names)
    found = [(f"{place}{key}", near.find(str(key))) for key in data if key not in names]
    for key, value in data.items():
        for inner in _models_in(names[key].annotation) if key in names else ():
            items = enumerate(value) if isinstance(value, list) else ((None, value),)
            for i, item in items:
                found += _unknown_keys(inner, item, f"{place}{key}." if i is None else f"{place}{key}.{i}.")
    return found


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    """The pydantic models that a field of this type may hold."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in typing.get_args(annotation) for model in _models_in(part)]


def problem_lines(error: ValidationError, place: str) -> list[str]:
    """One line for each problem that pydantic has found in what is at `place`, without the values that it has found."""
    lines = []
    for problem in error.errors():
        where = place + ".".join(_written(problem["loc"]))
        if problem["type"] == "extra_forbidden":
            near = NearNames(_keys()).find(str(problem["loc"][-1]))
            lines.append(_unknown(where, near))
            continue
        message = message_of(problem)
        lines.append(f"`{where}`: {message}" if where else message)
    return lines


def _keys() -> set[str]:
    """The keys of an application's arguments, and of all that is in them."""
    models: list[type[BaseModel]] = [AppArguments]
    for model in models:  # grows, but for specifications that hold each other
        held = [inner for field in model.model_fields.values() for inner in _models_in(field.annotation)]
        models += [inner for inner in held if inner not in models]
    return {name for model in models for name in model.model_fields}


def _unknown(place: str, near: str | None) -> str:
    return f"unknown key `{place}`" + (f"; is `{near}` meant?" if near and not place.endswith(near) else "")


def _written(location: Sequence[int | str]) -> list[str]:
    """The keys of a place as the file has them: pydantic adds which kind of engine it has read."""
    return [str(key) for i, key in enumerate(location) if i == 0 or location[i - 1] != "engine" or key not in KINDS]
