"""All generated pages, by their path below `docs`."""

from __future__ import annotations

from docs.generator.command_line import command_line
from docs.generator.config import config
from docs.generator.engines import engines
from docs.generator.errors import errors
from docs.generator.grammar_features import reference as features
from docs.generator.http import http
from docs.generator.metrics import metrics
from docs.generator.modules import modules


def documents() -> dict[str, str]:
    """Return the text of each page by its path below `docs`."""
    return {
        "features.md": features(),
        "reference/http.md": http(),
        "reference/config.md": config(),
        "reference/command-line.md": command_line(),
        "reference/metrics.md": metrics(),
        "reference/engines.md": engines(),
        "reference/errors.md": errors(),
        "reference/modules.md": modules(),
    }
