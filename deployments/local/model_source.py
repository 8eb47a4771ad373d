"""Checks that the models of a local server (folders or Hugging Face IDs) exist.

The checks run before the server is started. Without them, the server would start and then fail to load a model.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from deployments.cli.arguments import UsageFailure

if TYPE_CHECKING:
    from deployments.arguments import AppArguments  # an import at run time would take a second

# Seconds that Hugging Face may take to report whether it has a model.
ANSWER_S = 3.0
_ID = re.compile(r"(?:[\w.-]+/)?[\w.-]+")
_FILE = "config.json"


def model_at_hand(model: str, place: str = "--model") -> str:
    """Check that a model exists, and return the absolute path of its folder, or its Hugging Face ID.

    If an ID is not in the local cache of Hugging Face, one HTTP request checks that Hugging Face has the model. Its
    timeout is 3 seconds (`ANSWER_S`). The model is not downloaded.

    Args:
        model: Hugging Face ID, or folder, which may be relative to the working directory.
        place: Option or config key that contains `model`, for the error message.

    Returns:
        The absolute path if `model` is a folder with `config.json`, otherwise `model` unchanged.

    Raises:
        UsageFailure: The folder has no model, the ID does not exist or is not accessible, or Hugging Face cannot be
            reached. The message has the action to take.
    """
    folder = Path(model).expanduser()
    if folder.is_dir():
        if not (folder / _FILE).is_file():
            raise UsageFailure(f"{place}: {folder} holds no model: it has no {_FILE}")
        return str(folder.resolve())
    if model.startswith(".") or not _ID.fullmatch(model):
        raise UsageFailure(f"{place}: there is no folder {model}, and a Hugging Face id is written OWNER/NAME")
    try:
        _check_id(model)
    except UsageFailure as failure:
        raise UsageFailure(f"{place}: {failure}") from failure
    return model


def model_problems(arguments: AppArguments) -> Iterator[str]:
    """Check the models of an application: the served model, and (native engine only) the draft model and EAGLE-3 head.

    Args:
        arguments: Arguments of the application.

    Yields:
        One line for each model that cannot be loaded, with its config key and the action to take.
    """
    engine = arguments.replica.engine
    named: dict[str, str | None] = {"model": arguments.model_source}
    if engine.kind == "native":
        named |= {"replica.engine.draft_model": engine.draft_model, "replica.engine.eagle_head": engine.eagle_head}
    for place, name in named.items():
        if name is not None:
            try:
                model_at_hand(name, f"`{place}`")
            except UsageFailure as failure:
                yield str(failure)


def _check_id(model: str) -> None:
    from huggingface_hub import get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
    from huggingface_hub.errors import EntryNotFoundError, GatedRepoError, RepositoryNotFoundError

    if isinstance(try_to_load_from_cache(model, _FILE), str):
        return
    try:
        get_hf_file_metadata(hf_hub_url(model, _FILE), timeout=ANSWER_S)
    except GatedRepoError as error:
        wanted = "accept its licence on its page, and set HF_TOKEN to a token of that account"
        raise UsageFailure(f"{model} is gated: {wanted}") from error
    except RepositoryNotFoundError as error:
        wanted = "a folder of this machine is named by its path"
        raise UsageFailure(f"Hugging Face has no model {model}, or hides it (HF_TOKEN); {wanted}") from error
    except EntryNotFoundError as error:
        raise UsageFailure(f"{model} has no {_FILE}: it is no model of transformers'") from error
    except Exception as error:  # whatever its HTTP client raises
        wanted = "download it where there is an answer, and name the folder"
        raise UsageFailure(
            f"{model} is no folder, nor in the cache of Hugging Face, which gives no answer ({error}): {wanted}"
        ) from error
