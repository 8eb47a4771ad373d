"""The version of what is installed, and how more of it is."""

from __future__ import annotations

import importlib.metadata
import json
from urllib.parse import urlsplit
from urllib.request import url2pathname

DISTRIBUTION = "turnstile-llm"
"""PyPI's `turnstile` is somebody else's."""


def version() -> str:
    """As pyproject.toml says it."""
    return importlib.metadata.version(DISTRIBUTION)


def installation(extra: str) -> str:
    """The command that adds an extra to this installation, from where it came: a wheel, a checkout, an index."""
    try:
        noted = importlib.metadata.distribution(DISTRIBUTION).read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:  # a checkout that is run as it lies there
        return f"pip install --editable '.[{extra}]'"
    if noted is None:
        return f"pip install '{DISTRIBUTION}[{extra}]'"
    origin = json.loads(noted)
    if origin.get("dir_info", {}).get("editable"):
        return f"pip install --editable '{url2pathname(urlsplit(origin['url']).path)}[{extra}]'"
    return f"pip install '{DISTRIBUTION}[{extra}] @ {origin['url']}'"
