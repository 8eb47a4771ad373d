"""Fields that clients send for other servers: those that are ignored, and those that have another name here."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import yaml
from pydantic import model_validator
from pydantic_core import PydanticCustomError

from grammar_workers.validation import StrictModel

if TYPE_CHECKING:
    from ray.util.metrics import Counter

_TABLES = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
IGNORED: dict[str, dict[str, str]] = _TABLES["ignored"]
"""Fields that cannot change the output, or that clients send unasked, by the kind of object: why they are ignored."""
RENAMED: dict[str, dict[str, str]] = _TABLES["renamed"]
"""Fields that would change the output, by the kind of object: what to send instead of them."""


class ClientModel(StrictModel):
    """A part of a body. Null and empty lists in unknown fields are ignored, too: they ask for nothing."""

    ignores: ClassVar[str] = ""
    """The entry of `IGNORED`."""
    renames: ClassVar[str] = ""
    """The entry of `RENAMED`."""

    @model_validator(mode="before")
    @classmethod
    def _without_foreign_fields(cls, value: Any) -> Any:
        foreign = [name for name in value if name not in _known(cls)] if isinstance(value, dict) else []
        if not foreign:
            return value
        ignored, renamed = IGNORED.get(cls.ignores, {}), RENAMED.get(cls.renames, {})
        kept = dict(value)
        for name in foreign:
            if name in ignored or value[name] is None or value[name] == []:
                del kept[name]
            elif name in renamed:
                raise PydanticCustomError("unknown_field", "unknown field", {"param": name, "instead": renamed[name]})
            if name in ignored and value[name] is not None:
                _counter().inc(tags={"field": name})
        return kept


@functools.cache
def _known(model: type[ClientModel]) -> frozenset[str]:
    """Names of the fields as clients write them."""
    return frozenset(field.alias or name for name, field in model.model_fields.items())


@functools.cache
def _counter() -> Counter:
    from ray.util.metrics import Counter  # vLLM's plugin has these models, too, and need not have Ray

    return Counter("turnstile_ignored_fields_total", "Fields of requests that are ignored.", ("field",))
