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

DARK = """<script>
document.documentElement.classList.toggle("dark-mode", matchMedia("(prefers-color-scheme: dark)").matches)
</script>
"""
"""Swagger UI has a dark mode, but turns it on by a button of its standalone page only."""


def _without_framework_statuses(app: FastAPI) -> None:
    """Leave 422 out of the document: FastAPI puts it there by itself, and every bad body is a 400 here."""
    made = app.openapi

    def openapi() -> dict[str, Any]:
        document = made()
        for methods in document["paths"].values():
            for operation in methods.values():
                operation["responses"].pop("422", None)
        for name in ("HTTPValidationError", "ValidationError"):
            document["components"]["schemas"].pop(name, None)
        return document

    app.openapi = openapi  # type: ignore[method-assign]


def add_documentation(app: FastAPI) -> None:
    """Swagger UI over the application's OpenAPI document."""
    _without_framework_statuses(app)
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
