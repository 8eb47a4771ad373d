"""Strict validation of Ray Serve config files (YAML). All applications in the file must be Turnstile's.

Ray Serve ignores unknown keys, so a misspelled key would have no effect. This module reports each unknown key with its
location in the file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from ray.serve.schema import ServeDeploySchema

from deployments.arguments import AppArguments
from deployments.validation_messages import problem_lines

IMPORT_PATH = "deployments.app:build_app"
DEPLOYMENTS = ("Router", "GrammarCompiler", "ModelReplica")


class ConfigError(Exception):
    """A config file is missing or invalid. The message has one line per problem, with the location in the file."""


def load_config(path: Path, *, model: str | None = None, engine: str | None = None) -> ServeDeploySchema:
    """Read and validate a Ray Serve config file. Optionally replace its model and its engine.

    Args:
        path: The YAML file.
        model: Hugging Face ID or folder. In every application of the file, it replaces `model`, and `served_model_name`
            is removed. None: keep the models of the file.
        engine: `native` (Turnstile's own) or `vllm`. If an application has the other engine, this engine replaces it,
            with default settings. None: keep the engines of the file.

    Returns:
        The validated config, after the replacements.

    Raises:
        ConfigError: The file is missing, is not YAML, has an unknown key or an invalid value, or has an application
            that is not Turnstile's.
    """
    try:
        data = yaml.safe_load(path.read_text())
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: no such file") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not YAML: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: not a mapping")
    config, problems = checked_config(data, model, engine)
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


def checked_config(
    data: dict[str, Any], model: str | None = None, engine: str | None = None
) -> tuple[ServeDeploySchema | None, list[str]]:
    """Validate a Ray Serve config, and describe its problems. Optionally replace its model and its engine.

    Args:
        data: Content of the config file, parsed from YAML. It is not changed.
        model: Model that replaces the model of the config. None: keep the model.
        engine: Kind of engine that replaces the engine of the config. None: keep the engine.

    Returns:
        The config, or None if it does not match Serve's schema; and one line for each problem, with its location, such
        as "unknown key `applications.0.args.modle`".
    """
    try:
        config = ServeDeploySchema.model_validate(data, extra="forbid")
    except ValidationError as error:
        return None, problem_lines(error, ServeDeploySchema)
    problems = [] if config.applications else [f"`applications` is empty: add one with `import_path: {IMPORT_PATH}`"]
    if not 0 <= config.http_options.port <= 65535:
        problems.append(f"`http_options.port` is {config.http_options.port}, not a number from 0 to 65535")
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
