"""Which documents the reference has, by their path below `docs`."""

from __future__ import annotations

from deployments.reference.command_line import command_line
from deployments.reference.config import config
from deployments.reference.engines import engines
from deployments.reference.grammar_features import reference as features
from deployments.reference.http import http
from deployments.reference.metrics import metrics


def documents() -> dict[str, str]:
    """Path -> Markdown."""
    return {
        "features.md": features(),
        "reference/http.md": http(),
        "reference/config.md": config(),
        "reference/command-line.md": command_line(),
        "reference/metrics.md": metrics(),
        "reference/engines.md": engines(),
    }
