"""Example requests of the OpenAPI document, loaded from `examples.yaml`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

_CONTENT: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))

PROMPT: str = _CONTENT["prompt"]
# A `response_format` with a JSON Schema.
AS_PERSON: dict[str, Any] = _CONTENT["as_person"]

# Path -> its examples, in the format of OpenAPI's `examples`: summary -> summary and value.
EXAMPLES: dict[str, dict[str, Any]] = {
    path: {summary: {"summary": summary, "value": value} for summary, value in shown.items()}
    for path, shown in _CONTENT.items()
    if path.startswith("/")
}
