"""Version of the installed package `turnstile-llm`, and pip commands that install its optional dependencies."""

from __future__ import annotations

import importlib.metadata
import json
from urllib.parse import urlsplit
from urllib.request import url2pathname

# Name of the package on PyPI. The name `turnstile` belongs to another project.
DISTRIBUTION = "turnstile-llm"


def version() -> str:
    """Return the version of the installed package, such as `1.2.0`.

    `importlib.metadata.PackageNotFoundError` is raised if the package is not installed.
    """
    return importlib.metadata.version(DISTRIBUTION)


def installation(extra: str) -> str:
    """Return the pip command that adds an extra (set of optional dependencies) to the installed package.

    Args:
        extra: Name of the extra in pyproject.toml, such as `serve`.

    Returns:
        A `pip install` command, such as `pip install 'turnstile-llm[serve]'`. It installs from the source from which
        the package was installed: a wheel, a URL, an editable checkout or the package index. If the package is not
        installed, the command installs the current folder.
    """
    try:
        noted = importlib.metadata.distribution(DISTRIBUTION).read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:  # a checkout that runs without being installed
        return f"pip install --editable '.[{extra}]'"
    if noted is None:
        return f"pip install '{DISTRIBUTION}[{extra}]'"
    origin = json.loads(noted)
    if origin.get("dir_info", {}).get("editable"):
        return f"pip install --editable '{url2pathname(urlsplit(origin['url']).path)}[{extra}]'"
    return f"pip install '{DISTRIBUTION}[{extra}] @ {origin['url']}'"
