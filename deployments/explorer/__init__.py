"""The explorer: a static web page that steps through a generation and shows the tokens that the mask allowed."""

from __future__ import annotations

from pathlib import Path

from starlette.staticfiles import StaticFiles

PAGE = Path(__file__).parent / "page"


def explorer() -> StaticFiles:
    """Return a new ASGI application that serves the explorer page (HTML, scripts and styles).

    The caller mounts it at a path. In the browser, the page calls only the public HTTP API, and loads nothing from
    other hosts.
    """
    return StaticFiles(directory=PAGE, html=True)
