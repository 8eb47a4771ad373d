"""The OpenAPI document, which browsers expand and clients are made from. `make browser` opens the page itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from deployments.http.documentation import UNIONS
from docs.generator.http import openapi

MOST_NODES = 20_000
"""Nodes of an operation with every reference followed, as Swagger UI follows them before it shows the operation."""


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return openapi()


def operations(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield f"{method} {path}", operation


def expanded(node: Any, schemas: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[None]:
    """One item for each node under `node`; a reference is followed unless `path` leads through its target already."""
    yield None
    if isinstance(node, dict):
        if "$ref" in node:
            name = node["$ref"].rpartition("/")[2]
            if name not in path:
                yield from expanded(schemas[name], schemas, (*path, name))
        for value in node.values():
            yield from expanded(value, schemas, path)
    elif isinstance(node, list):
        for value in node:
            yield from expanded(value, schemas, path)


def test_each_operation_is_small_when_every_reference_is_followed(document: dict[str, Any]) -> None:
    """Unions that contain each other through 23 types had more paths than a browser could follow in minutes."""
    for name, operation in operations(document):
        nodes = expanded(operation, document["components"]["schemas"])
        assert sum(1 for _, _ in zip(range(MOST_NODES + 1), nodes, strict=False)) <= MOST_NODES, name


def test_shared_unions_are_named_once(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    for name in UNIONS.values():
        assert schemas[name]["discriminator"]["propertyName"] == "type"
        assert all(one in schemas for one in (ref["$ref"].rpartition("/")[2] for ref in schemas[name]["oneOf"]))


def test_every_body_has_examples_that_the_document_allows(document: dict[str, Any]) -> None:
    for name, operation in operations(document):
        if (body := operation.get("requestBody")) is None:
            continue
        content = body["content"]["application/json"]
        schema = {**content["schema"], "components": document["components"]}
        assert content["examples"], name
        for summary, example in content["examples"].items():
            if summary == "who asks":  # fields that are accepted and ignored, which the document leaves out
                continue
            jsonschema.Draft202012Validator(schema).validate(example["value"])
