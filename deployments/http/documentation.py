"""`/docs`: the API documentation, whose script and style this server serves itself: it works without internet."""

from __future__ import annotations

import functools
import json
from importlib.resources import files
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse
from starlette.staticfiles import StaticFiles

PAGE, ASSETS = "/docs", "/docs/assets"
PARAMETERS = {"tryItOutEnabled": True, "docExpansion": "list", "defaultModelsExpandDepth": 0}

UNIONS = {"AnyTextFormat": "Format", "JsonSchemaSpecification": "GrammarSpecification"}
"""First type of a union whose types contain the union again -> the name that the document gives the union.

Swagger UI follows every path through the types of an operation. With these unions written out at each place, there are
more paths than a browser can follow.
"""

DARK = """<script>
document.documentElement.classList.toggle("dark-mode", matchMedia("(prefers-color-scheme: dark)").matches)
</script>
"""
"""Swagger UI has a dark mode, but turns it on by a button of its standalone page only."""


def _improve_document(app: FastAPI) -> None:
    """Give unions a name, and leave 422 out: FastAPI puts it there by itself, and every bad body is a 400 here."""
    made = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is not None:
            return app.openapi_schema
        document = made()
        schemas = document["components"]["schemas"]
        for methods in document["paths"].values():
            for operation in methods.values():
                operation["responses"].pop("422", None)
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        unions: dict[str, Any] = {}
        named = json.loads(json.dumps(schemas), object_hook=functools.partial(_name_union, unions))
        document["components"]["schemas"] = {**named, **unions}
        return document

    app.openapi = openapi  # type: ignore[method-assign]


def _name_union(unions: dict[str, Any], node: dict[str, Any]) -> dict[str, Any]:
    """Return a reference in place of a union of `UNIONS`, which goes into `unions`; any other `node` as it is."""
    first = node["oneOf"][0].get("$ref", "").rpartition("/")[2] if "discriminator" in node else ""
    if (name := UNIONS.get(first)) is not None:
        union = {key: node.pop(key) for key in ("oneOf", "discriminator")}
        assert unions.setdefault(name, union) == union
        node["$ref"] = f"#/components/schemas/{name}"
    return node


def add_documentation(app: FastAPI) -> None:
    """Swagger UI over the application's OpenAPI document."""
    _improve_document(app)
    assets = StaticFiles(directory=str(files("fastapi_swagger") / "resources"))
    app.mount(ASSETS, assets)

    @app.get(PAGE, include_in_schema=False)
    async def documentation() -> HTMLResponse:
        page = get_swagger_ui_html(
            openapi_url=app.openapi_url or "",
            title=f"{app.title}: API",
            swagger_js_url=f"{ASSETS}/swagger-ui-bundle.js",
            swagger_css_url=f"{ASSETS}/swagger-ui.css",
            swagger_favicon_url="data:,",
            swagger_ui_parameters=PARAMETERS,
        )
        return HTMLResponse(bytes(page.body).decode().replace("</head>", f"{DARK}</head>"))
