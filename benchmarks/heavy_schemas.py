"""JSON Schemas that take long to compile, as many different ones as needed."""

from __future__ import annotations

from typing import Any

FIELDS = 16
"""Compiling one takes about 0.1 s for the embedded model's vocabulary, 25 times the median of MaskBench's schemas."""


def heavy_schema(number: int, fields: int = FIELDS) -> dict[str, Any]:
    """Patterns and alternatives whose names and bounds depend on `number`: two numbers share no part of any size."""
    texts = {
        f"field_{number}_{i}": {"type": "string", "pattern": rf"^([a-z]{{2,{8 + i}}}-){{1,6}}[0-9]{{3}}(x|y{number})?$"}
        for i in range(fields)
    }
    kinds = [
        {
            "type": "object",
            "properties": {
                "kind": {"const": f"kind {number} {i}"},
                "value": {"type": ["integer", "string"], "minimum": i, "maximum": 1000 + number},
            },
            "required": ["kind", "value"],
            "additionalProperties": False,
        }
        for i in range(fields)
    ]
    return {
        "type": "object",
        "properties": {**texts, "items": {"type": "array", "items": {"anyOf": kinds}, "maxItems": 12}},
        "required": list(texts),
        "additionalProperties": False,
    }
