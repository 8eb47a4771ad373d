"""Types of fields that several bodies have, and the errors of fields."""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, GetCoreSchemaHandler, GetJsonSchemaHandler, StrictInt, StringConstraints
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from grammar_workers.strict_json import JsonTextError, parse_json
from grammar_workers.validation import at_most

MAX_METADATA = 64

Positive = Annotated[StrictInt, Field(ge=1, lt=1 << 63)]
Natural = Annotated[StrictInt, Field(ge=0, lt=1 << 63)]
TokenId = Annotated[StrictInt, Field(ge=0, lt=1 << 31)]
DecimalName = Annotated[str, StringConstraints(pattern="^(0|[1-9][0-9]{0,9})$")]
"""A number as the key of an object."""

Metadata = Annotated[dict[str, str], at_most(MAX_METADATA)]


def text_parts(*kinds: str) -> BeforeValidator:
    """Annotation of the `type` of a part of some content, of which there are these `kinds`."""

    def check(kind: Any) -> Any:
        if kind not in kinds:
            shown = " or ".join(f"'{one}'" for one in kinds)
            raise PydanticCustomError("text_part", "only text parts are supported: must be {shown}", {"shown": shown})
        return kind

    return BeforeValidator(check)


def refusal_as_text(part: Any) -> Any:
    """A part of the type `refusal`, which earlier answers of other servers have, as one of text."""
    if isinstance(part, dict) and part.get("type") == "refusal" and "refusal" in part:
        return {name: part[name] for name in part if name != "refusal"} | {"type": "text", "text": part["refusal"]}
    return part


class Only:
    """Annotation of a field that accepts null and the given values (the ones that mean "off") and refuses any other."""

    def __init__(self, *accepted: Any) -> None:
        self.accepted = (None, *accepted)

    def check(self, value: Any) -> Any:
        # For Python, true is 1.
        if not any(type(value) is type(one) and value == one for one in self.accepted):
            shown = " or ".join(json.dumps(accepted) for accepted in self.accepted)
            raise PydanticCustomError("unsupported_value", "only {shown} is supported", {"shown": shown})
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.check)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"enum": list(self.accepted)}


class Refused(Only):
    """Annotation of a field of OpenAI's API that accepts null alone. `reason`: why, and what to send instead."""

    def __init__(self, reason: str) -> None:
        super().__init__()
        self.reason = reason

    def check(self, value: Any) -> Any:
        if value is not None:
            raise PydanticCustomError("refused_field", "is not supported: {reason}", {"reason": self.reason})
        return value

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"enum": list(self.accepted), "description": f"Not supported: {self.reason}."}


def contradiction(param: str, message: str, place: tuple[str | int, ...] = ()) -> PydanticCustomError:
    """The error of a field that is fine alone, but not beside the others.

    `param` is its name, and `place` what leads to it from the object that is checked, where it is not in that itself.
    """
    context = {"param": param, "place": place or (param,), "message": message}
    return PydanticCustomError("contradiction", "`{param}` {message}", context)


def parsed_json(text: str) -> Any:
    """The value of a JSON text in a field. Raises pydantic's error."""
    try:
        return parse_json(text)
    except JsonTextError as error:
        context = {"error": str(error), "place": error.place}
        raise PydanticCustomError("json_text", "{error}" if error.place else "not JSON: {error}", context) from None
