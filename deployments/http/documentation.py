"""`/docs`: the API documentation, whose script and style this server serves itself: it works without internet."""

from __future__ import annotations

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
        _name_unions(schemas, unions)
        schemas.update(unions)
        return document

    app.openapi = openapi  # type: ignore[method-assign]


def _name_unions(node: Any, unions: dict[str, Any]) -> None:
    """Move the unions of `UNIONS` under `node` into `unions`, and leave a reference at their places."""
    if isinstance(node, list):
        for one in node:
            _name_unions(one, unions)
    elif isinstance(node, dict):
        first = node["oneOf"][0].get("$ref", "").rpartition("/")[2] if "discriminator" in node else ""
        if (name := UNIONS.get(first)) is not None:
            union = {key: node.pop(key) for key in ("oneOf", "discriminator")}
            assert unions.setdefault(name, union) == union
            node["$ref"] = f"#/components/schemas/{name}"
        for one in node.values():
            _name_unions(one, unions)


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
