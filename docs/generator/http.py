"""The HTTP API, from the OpenAPI document that the server itself offers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from ray.serve.handle import DeploymentHandle

from deployments.arguments import AppArguments
from deployments.http.app import create_http_app
from deployments.http.tenants import Tenants
from deployments.routing.service import Service
from deployments.routing.tiers import Tiers
from docs.generator.schema_tables import link, name_of, references, sections, table

INTRODUCTION = """\
# HTTP API

Made by `make reference` from the OpenAPI document that a server offers at `/openapi.json`, and for reading at `/docs`.
Fields that a table does not know are refused by name, except those that
[are ignored](../api.md#fields-that-are-ignored); `null` means the default."""


def http() -> str:
    """The document as Markdown."""
    document = openapi()
    schemas = document["components"]["schemas"]
    operations = [
        _operation(method, path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    begin = [
        name
        for methods in document["paths"].values()
        for operation in methods.values()
        for part in ("requestBody", "responses")
        for name in references(operation.get(part))
    ]
    parts = [INTRODUCTION, "## Paths", *operations, "## Bodies", *sections(begin, schemas, level=3)]
    return "\n\n".join(parts) + "\n"


def openapi() -> dict[str, Any]:
    """The OpenAPI document of the application, with nothing behind it."""
    nobody = cast(DeploymentHandle, None)
    args = AppArguments(model="model")
    service = Service(Tiers(nobody, nobody, new_grammars=1), args)
    return create_http_app(service, args.router, Tenants()).openapi()


def _operation(method: str, path: str, operation: Mapping[str, Any]) -> str:
    return "\n\n".join([f"### `{method.upper()} {path}`", operation["description"], *_details(operation)])


def _details(operation: Mapping[str, Any]) -> Iterator[str]:
    if (body := operation.get("requestBody")) is not None:
        yield f"Body: {_content(body)}."
    if parameters := operation.get("parameters"):
        rows = ((f"`{one['name']}`", one["in"], one.get("description", "")) for one in parameters)
        yield table(["parameter", "in", "what it means"], rows)
    responses = sorted(operation["responses"].items())
    yield table(["status", "body", "when"], ((status, _content(one), _when(one)) for status, one in responses))


def _content(holder: Mapping[str, Any]) -> str:
    for content in holder.get("content", {}).values():
        if "$ref" in content["schema"]:
            return link(name_of(content["schema"]))
    return ""


def _when(response: Mapping[str, Any]) -> str:
    return "fine" if response["description"] == "Successful Response" else str(response["description"])
