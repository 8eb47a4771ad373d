"""Page of the HTTP API, generated from the OpenAPI document of the server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from ray.serve.handle import DeploymentHandle

from deployments.arguments import AppArguments
from deployments.http.tenants import Tenants
from deployments.routes import create_http_app
from deployments.routing.service import Service
from deployments.routing.tiers import Tiers
from docs.generator.schema_tables import link, name_of, references, sections, table

INTRODUCTION = """\
# HTTP API reference

This page lists all paths of the server, with their request and response bodies. A running server has this reference as
an OpenAPI document at `/openapi.json`, and as a page at `/docs`. The server rejects a request with a field that is not
in the table of its body, and the error names the field. [Ignored fields](../api.md#ignored-fields) are the exception.
The value `null` means the default. `make reference` generates this page from the code."""


def http() -> str:
    """Return the page as Markdown."""
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
    """Return the OpenAPI document of an application without deployments."""
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
        yield table(["parameter", "in", "meaning"], rows)
    responses = sorted(operation["responses"].items())
    yield table(["status", "body", "when"], ((status, _content(one), _when(one)) for status, one in responses))


def _content(holder: Mapping[str, Any]) -> str:
    for content in holder.get("content", {}).values():
        if "$ref" in content["schema"]:
            return link(name_of(content["schema"]))
    return ""


def _when(response: Mapping[str, Any]) -> str:
    return "success" if response["description"] == "Successful Response" else str(response["description"])
