"""One schema in flight from many clients at the same time."""

from __future__ import annotations

import asyncio

import httpx

from tests.chaos.load import slow_to_compile
from tests.integration.traffic import structured


async def distinct_compilations(url: str, salt: str, clients: int = 64) -> int:
    """How many artifacts `clients` get for one schema that nobody has seen, half of them through a generation.

    Artifacts tell how long they took to compile, in microseconds: no two that were compiled apart are equal.
    """
    schema = slow_to_compile(salt, 6)
    compiling = {"specification": {"type": "json_schema", "schema": schema}}
    generating = structured(schema, max_tokens=2)

    async def ask(number: int) -> float | None:
        # A connection of its own: so many go to every router.
        async with httpx.AsyncClient(base_url=url, timeout=120, trust_env=False) as http:
            path, body = (("/v1/grammars", compiling), ("/v1/chat/completions", generating))[number % 2]
            response = await http.post(path, json=body)
            assert response.status_code == 200, response.text
            return response.json().get("compile_seconds")

    seconds = await asyncio.gather(*map(ask, range(clients)))
    return len({one for one in seconds if one is not None})
