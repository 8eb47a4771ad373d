"""Field types that several request bodies share, and errors of fields."""

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
# Decimal number as the key of a JSON object.
DecimalName = Annotated[str, StringConstraints(pattern="^(0|[1-9][0-9]{0,9})$")]

Metadata = Annotated[dict[str, str], at_most(MAX_METADATA)]


def text_parts(*kinds: str) -> BeforeValidator:
    """Return a pydantic validator for the field `type` of a part of a message's content. Only text is supported.

    Args:
        kinds: Accepted values of `type`, such as `input_text`. Any other value is an error.
    """

    def check(kind: Any) -> Any:
        if kind not in kinds:
            shown = " or ".join(f"'{one}'" for one in kinds)
            raise PydanticCustomError("text_part", "only text parts are supported: must be {shown}", {"shown": shown})
        return kind

    return BeforeValidator(check)


def refusal_as_text(part: Any) -> Any:
    """Convert a part of a message's content from the type `refusal`, which other servers return, to the type `text`.

    Args:
        part: Part as plain data, such as `{"type": "refusal", "refusal": "I cannot help."}`; not changed. It need not
            be valid.

    Returns:
        A new part, such as `{"type": "text", "text": "I cannot help."}`. If `part` is not a refusal: `part` itself.
    """
    if isinstance(part, dict) and part.get("type") == "refusal" and "refusal" in part:
        return {name: part[name] for name in part if name != "refusal"} | {"type": "text", "text": part["refusal"]}
    return part


class Only:
    """Pydantic annotation of a field of an unsupported feature. It accepts only values that turn the feature off.

    Args:
        accepted: Accepted values, in addition to null. Types must be equal, too: 1 is not accepted in place of true.
    """

    def __init__(self, *accepted: Any) -> None:
        self.accepted = (None, *accepted)

    def check(self, value: Any) -> Any:
        """Return `value` unchanged if the field accepts it.

        Raises:
            PydanticCustomError: The field does not accept the value. The message lists the accepted values.
        """
        # In Python, True == 1, so the types are compared, too.
        if not any(type(value) is type(one) and value == one for one in self.accepted):
            shown = " or ".join(json.dumps(accepted) for accepted in self.accepted)
            raise PydanticCustomError("unsupported_value", "only {shown} is supported", {"shown": shown})
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.check)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"enum": list(self.accepted)}


class Refused(Only):
    """Pydantic annotation of an unsupported field of another API. The field accepts only null.

    Args:
        reason: Reason why the field is not supported, or advice on what to send instead. The error message and the
            OpenAPI document contain this text.
    """

    def __init__(self, reason: str) -> None:
        super().__init__()
        self.reason = reason

    def check(self, value: Any) -> Any:
        """Return `value` if it is None (null in JSON).

        Raises:
            PydanticCustomError: The value is not null. The message has the reason.
        """
        if value is not None:
            raise PydanticCustomError("refused_field", "is not supported: {reason}", {"reason": self.reason})
        return value

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"enum": list(self.accepted), "description": f"Not supported: {self.reason}."}


def contradiction(param: str, message: str, place: tuple[str | int, ...] = ()) -> PydanticCustomError:
    """Return pydantic's error for a field whose value is valid alone, but contradicts another field.

    Args:
        param: Name of the field. The message begins with this name.
        message: Rest of the message, such as `needs a constraint`.
        place: Keys and indexes that lead from the validated object to the field. Empty: `param` is a field of the
            object itself.
    """
    context = {"param": param, "place": place or (param,), "message": message}
    return PydanticCustomError("contradiction", "`{param}` {message}", context)


def parsed_json(text: str) -> Any:
    """Parse the JSON text of a field.

    Returns:
        The value: None, bool, int, float, str, list or dict.

    Raises:
        PydanticCustomError: The text is not strict JSON, or an object in it has a key twice.
    """
    try:
        return parse_json(text)
    except JsonTextError as error:
        context = {"error": str(error), "place": error.place}
        raise PydanticCustomError("json_text", "{error}" if error.place else "not JSON: {error}", context) from None
