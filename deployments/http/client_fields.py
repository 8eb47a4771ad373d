"""Handling of request fields that other servers support and this server does not.

`client_fields.yaml` has two tables. A field of the first table is ignored. A field of the second table is an error, and
the message names the field to send instead.
"""

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
# Kind of object -> ignored field -> reason. These fields cannot change the output, or clients send them by default.
IGNORED: dict[str, dict[str, str]] = _TABLES["ignored"]
# Kind of object -> unsupported field that would change the output -> what to send instead.
RENAMED: dict[str, dict[str, str]] = _TABLES["renamed"]


class ClientModel(StrictModel):
    """Base class of the pydantic models of all objects in request bodies. It rejects most unknown fields.

    An unknown field is dropped if the table `IGNORED` lists it, or if its value is null or an empty list. Every other
    unknown field is an error. If the table `RENAMED` lists the field, the error names the field to send instead. Both
    tables are read from `client_fields.yaml`, and have one section for each kind of object.

    Attributes:
        ignores: Section of `IGNORED` that applies to this class, such as `a tool`. Empty: none.
        renames: Section of `RENAMED` that applies to this class, such as `a function`. Empty: none.
    """

    # Key of this kind of object in `IGNORED`. Empty: no field is listed.
    ignores: ClassVar[str] = ""
    # Key of this kind of object in `RENAMED`. Empty: no field is listed.
    renames: ClassVar[str] = ""

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
    """Return the names of the fields as clients send them."""
    return frozenset(field.alias or name for name, field in model.model_fields.items())


@functools.cache
def _counter() -> Counter:
    from ray.util.metrics import Counter  # vLLM's plugin imports this module, and may run without Ray

    return Counter("turnstile_ignored_fields_total", "Fields of requests that are ignored.", ("field",))
