"""`/docs`: the API documentation, whose script and style this server serves itself: it works without internet."""

from __future__ import annotations

from importlib.resources import files

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


def add_documentation(app: FastAPI) -> None:
    """Swagger UI over the application's OpenAPI document."""
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
