"""The explorer: a page that steps through a generation and shows what the mask did, served as its files are."""

from __future__ import annotations

from pathlib import Path

from starlette.staticfiles import StaticFiles

PAGE = Path(__file__).parent / "page"


def explorer() -> StaticFiles:
    """The page and its files, to be mounted; it speaks to the public API only and needs nothing from elsewhere."""
    return StaticFiles(directory=PAGE, html=True)
