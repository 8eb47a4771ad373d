"""A client of several addresses."""

from __future__ import annotations

import httpx

from tests.integration.server import Server


class AnyPort(httpx.AsyncBaseTransport):
    """What a load balancer does: a connection that one address refuses goes to the next."""

    def __init__(self, ports: list[int]) -> None:
        self._ports = ports
        self._transport = httpx.AsyncHTTPTransport(limits=httpx.Limits(max_connections=None))

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        for port in self._ports[:-1]:
            request.url = request.url.copy_with(port=port)
            try:
                return await self._transport.handle_async_request(request)
            except httpx.ConnectError:
                continue
        request.url = request.url.copy_with(port=self._ports[-1])
        return await self._transport.handle_async_request(request)

    async def aclose(self) -> None:
        await self._transport.aclose()


def client_of(server: Server) -> httpx.AsyncClient:
    """A client with connections of its own."""
    return httpx.AsyncClient(base_url=server.url, timeout=600, transport=AnyPort(server.ports))
