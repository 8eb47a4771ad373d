"""The version of what is installed."""

from __future__ import annotations

import importlib.metadata

DISTRIBUTION = "turnstile-llm"
"""PyPI's `turnstile` is somebody else's."""


def version() -> str:
    """As pyproject.toml says it."""
    return importlib.metadata.version(DISTRIBUTION)
