"""vLLM's `structured_outputs` -> specification, and the reference that goes on to the engine in its place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import TypeAdapter, ValidationError

from deployments.openai.constraints import StructuredOutputs
from gpu_workers.vllm.reference import Reference
from gpu_workers.vllm.reference import is_reference as names_artifact
from grammar_workers.errors import InvalidSpecificationError, UnsupportedFeatureError
from grammar_workers.specification import GrammarSpecification

_FIELDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
_CONSTRAINT: TypeAdapter[StructuredOutputs] = TypeAdapter(StructuredOutputs)


def is_reference(constraint: Any) -> bool:
    """Whether `StructuredOutputsParams` names a grammar compiled before."""
    return constraint.grammar is not None and names_artifact(constraint.grammar)


def specification_of(constraint: Any) -> GrammarSpecification:
    """What vLLM's `StructuredOutputsParams` ask for. Raises GrammarError with a JSON Pointer into them."""
    given = {name: value for name in _FIELDS if (value := getattr(constraint, name)) is not None}
    for name in ("disable_any_whitespace", "disable_additional_properties", "whitespace_pattern"):
        if getattr(constraint, name):
            raise UnsupportedFeatureError(f"{name}: set TURNSTILE_GRAMMAR_OPTIONS instead", pointer="/" + name)
    try:
        specification = _CONSTRAINT.validate_python(given).specification()
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        pointer = "".join(f"/{part}" for part in first["loc"])
        raise InvalidSpecificationError(first["msg"], pointer=pointer) from None
    assert specification is not None
    return specification


def reference(
    key: str, *, min_tokens: int = 0, emitted_token_ids: Sequence[int] = (), max_tokens: int | None = None
) -> str:
    """The text of the `grammar` that stands for the artifact of `key`; fields as in `gpu_workers.vllm.reference`."""
    return str(Reference(key, min_tokens, tuple(emitted_token_ids), max_tokens))
