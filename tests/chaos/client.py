"""How the load's clients connect."""

from __future__ import annotations

import httpx

from tests.integration.server import Server

TIMEOUT_S = 600
"""Of a request: on a busy machine a grammar may take minutes, and that is no failure."""


def client_of(server: Server) -> httpx.AsyncClient:
    """A client with connections of its own, as many as it needs."""
    limits = httpx.Limits(max_connections=None)
    return httpx.AsyncClient(base_url=server.url, timeout=TIMEOUT_S, limits=limits, trust_env=False)
