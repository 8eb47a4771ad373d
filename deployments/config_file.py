"""Reading a Serve config file strictly: Serve itself ignores keys it does not know, here they fail by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from ray.serve.schema import ServeDeploySchema

from deployments.arguments import AppArguments
from deployments.validation_messages import message_of, unknown_place
from grammar_workers.strict_json import Place
from grammar_workers.validation import place_of

IMPORT_PATH = "deployments.app:build_app"
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
    config, problems = _checked(data, model, engine)
    if config is None or problems:
        raise ConfigError("\n".join(f"{path}: {problem}" for problem in problems))
    return config


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
    return _checked(data)[1]


def _checked(
    data: dict[str, Any], model: str | None = None, engine: str | None = None
) -> tuple[ServeDeploySchema | None, list[str]]:
    """The config, where it is one, and its problems."""
    try:
        config = ServeDeploySchema.model_validate(data, extra="forbid")
    except ValidationError as error:
        return None, problem_lines(error, ServeDeploySchema)
    problems = []
    for i, application in enumerate(config.applications):
        place = f"applications.{i}."
        if application.import_path != IMPORT_PATH:
            problems.append(f"`{place}import_path` is {application.import_path!r}, not {IMPORT_PATH!r}")
        _change(application.args, model, engine)
        try:
            AppArguments.model_validate(application.args)
        except ValidationError as error:
            problems += problem_lines(error, AppArguments, f"{place}args.")
        problems += [
            f"`{place}deployments` names {deployment.name!r}; there are only {', '.join(DEPLOYMENTS)}"
            for deployment in application.deployments
            if deployment.name not in DEPLOYMENTS
        ]
    return config, problems


def problem_lines(error: ValidationError, model: type[BaseModel], before: str = "") -> list[str]:
    """One line for each problem that pydantic has found in a `model`, without the values that it has found.

    `before`: what leads to the model.
    """
    lines = []
    for problem in error.errors():
        if (unknown := unknown_place(problem, model.__pydantic_core_schema__)) is not None:
            place, near, _ = unknown
            lines.append(f"unknown key `{_written(before, place)}`" + (f"; is `{near}` meant?" if near else ""))
        else:
            place, _ = place_of(model.__pydantic_core_schema__, problem["loc"])
            where, message = _written(before, place), message_of(problem)
            lines.append(f"`{where}`: {message}" if where else message)
    return lines


def _written(before: str, place: Place) -> str:
    return before + ".".join(map(str, place))
