"""Page `/docs` with the API documentation.

The server serves the script and the style of the page itself, so it works without internet access.
"""

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

# First type of a recursive union -> name of the union in the OpenAPI document.
#
# Swagger UI follows every path through the types of an operation. If these unions were written out wherever they occur,
# there would be more paths than a browser can follow.
UNIONS = {"AnyTextFormat": "Format", "JsonSchemaSpecification": "GrammarSpecification"}

# Script that selects Swagger UI's dark mode if the browser prefers it. Otherwise only a button of Swagger UI's
# standalone page selects the dark mode.
DARK = """<script>
document.documentElement.classList.toggle("dark-mode", matchMedia("(prefers-color-scheme: dark)").matches)
</script>
"""


def _improve_document(app: FastAPI) -> None:
    """Replace `app.openapi`: name the unions, and remove status 422, because invalid bodies get 400 here."""
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
    """Replace a union of `UNIONS` by a reference, and add the union to `unions`. Return other nodes unchanged."""
    first = node["oneOf"][0].get("$ref", "").rpartition("/")[2] if "discriminator" in node else ""
    if (name := UNIONS.get(first)) is not None:
        union = {key: node.pop(key) for key in ("oneOf", "discriminator")}
        assert unions.setdefault(name, union) == union
        node["$ref"] = f"#/components/schemas/{name}"
    return node


def add_documentation(app: FastAPI) -> None:
    """Add the page `/docs` (Swagger UI) to an application, and simplify its OpenAPI document for this page.

    In the document, large recursive unions get names. The status 422 is removed, because this server does not use it.

    Args:
        app: Application; changed in place.
    """
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
