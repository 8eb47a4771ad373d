"""Whether a model that a command or a config names can be had, found out before a server is started for it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from deployments.cli.arguments import UsageFailure

if TYPE_CHECKING:
    from deployments.arguments import AppArguments  # imported, it would hold up the first answer by a second

ANSWER_S = 3.0
"""How long Hugging Face may take to say whether it has a model."""
_ID = re.compile(r"(?:[\w.-]+/)?[\w.-]+")
_FILE = "config.json"


def model_at_hand(model: str, place: str = "--model") -> str:
    """The absolute path of a folder (relative: of the working folder), or the Hugging Face id that `model` is.

    Raises `UsageFailure` where neither can be loaded, saying what to do; `place` is where the model was named.
    """
    folder = Path(model).expanduser()
    if folder.is_dir():
        if not (folder / _FILE).is_file():
            raise UsageFailure(f"{place}: {folder} holds no model: it has no {_FILE}")
        return str(folder.resolve())
    if model.startswith(("/", ".", "~")) or not _ID.fullmatch(model):
        raise UsageFailure(f"{place}: there is no folder {model}, and a Hugging Face id is written OWNER/NAME")
    try:
        _check_id(model)
    except UsageFailure as failure:
        raise UsageFailure(f"{place}: {failure}") from failure
    return model


def model_problems(arguments: AppArguments) -> Iterator[str]:
    """Yield one line for each model that the arguments in a config file name and that cannot be loaded."""
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
