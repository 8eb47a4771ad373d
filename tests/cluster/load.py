"""Load on a cluster: streams of known grammars and requests with new ones, each on a connection of its own."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import random
import secrets
import time
from typing import Any

import httpx
import jsonschema

from tests.chaos.load import slow_to_compile

GRAMMARS = 6
SEEDS = 20
PAUSE_S = 1.0
"""Between two requests of a client, so that two cores can follow 16 of them."""
DEADLINE_S = 120


@dataclasses.dataclass
class Sent:
    """One request and what came of it."""

    kind: str
    began: float
    outcome: str = "lost"
    """`valid`, `refused` (a whole answer that is an error), `broken` (a stream without its end), `lost` (no answer),
    `different` (from an earlier answer to the same request), `invalid`."""
    detail: str = ""
    ended: float = 0.0
    silence_s: float = 0.0
    """The longest time in which neither an event nor an error came."""


def known(number: int) -> dict[str, Any]:
    """One of a few grammars whose texts are long."""
    word = {"type": "string", "minLength": 20, "maxLength": 40, "pattern": "^[a-z ]+$"}
    properties = {
        "id": {"const": f"g{number}"},
        "words": {"type": "array", "minItems": 4, "maxItems": 4, "items": word},
    }
    return {"type": "object", "properties": properties, "required": ["id", "words"], "additionalProperties": False}


def unseen() -> dict[str, Any]:
    """A grammar that nobody has compiled and that takes a third of a second."""
    return slow_to_compile(secrets.token_hex(5), alternatives=11)


class Load:
    """Clients of one tenant that ask one request after the other until `stop`."""

    def __init__(self, url: str, *, streams: int = 0, storm: int = 0) -> None:
        self.sent: list[Sent] = []
        self._url = f"{url}/v1/chat/completions"
        self._texts: dict[tuple[int, int], str] = {}
        self._over = asyncio.Event()
        kinds = ["stream"] * streams + ["storm"] * storm
        self._clients = [asyncio.create_task(self._client(kind)) for kind in kinds]

    async def stop(self) -> list[Sent]:
        """Let every client end its request; return all requests."""
        self._over.set()
        await asyncio.gather(*self._clients)
        return self.sent

    async def _client(self, kind: str) -> None:
        await asyncio.sleep(random.random())
        while not self._over.is_set():
            one = Sent(kind, time.monotonic())
            try:
                await self._ask(one)
            except (httpx.HTTPError, OSError) as error:
                one.outcome = "broken" if one.outcome == "broken" else "lost"
                one.detail = repr(error)
            one.ended = time.monotonic()
            self.sent.append(one)
            await asyncio.sleep(PAUSE_S if kind == "stream" or one.outcome != "valid" else 0)

    async def _ask(self, one: Sent) -> None:
        number, seed = random.randrange(GRAMMARS), random.randrange(SEEDS)
        schema = known(number) if one.kind == "stream" else unseen()
        body = {
            "messages": [{"role": "user", "content": f"Anna is {seed} years old and lives in Oslo."}],
            "stream": True,
            "seed": seed,
            "temperature": 1,
            "max_tokens": 300 if one.kind == "stream" else 8,
            "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
        }
        heard = one.began

        def hear() -> None:
            nonlocal heard
            now = time.monotonic()
            one.silence_s, heard = max(one.silence_s, now - heard), now

        text, finish, done = "", None, False
        try:
            async with (
                httpx.AsyncClient(timeout=DEADLINE_S, trust_env=False) as http,
                http.stream("POST", self._url, json=body) as answer,
            ):
                hear()
                if answer.status_code != 200:
                    one.outcome, one.detail = "refused", f"{answer.status_code} {(await answer.aread()).decode()[:200]}"
                    return
                one.outcome = "broken"
                async for line in answer.aiter_lines():
                    hear()
                    data = line.removeprefix("data: ")
                    if not line or data == line or data == "[DONE]":
                        done |= data == "[DONE]"
                        continue
                    event = json.loads(data)
                    if "error" in event:
                        one.detail = data[:200]
                        return
                    for choice in event["choices"]:
                        text += choice["delta"].get("content") or ""
                        finish = choice["finish_reason"] or finish
        finally:
            hear()
        if not done:
            one.detail = "the stream ended without [DONE]"
            return
        one.outcome, one.detail = self._judged(text, finish, schema, (number, seed) if one.kind == "stream" else None)

    def _judged(
        self, text: str, finish: str | None, schema: dict[str, Any], same: tuple[int, int] | None
    ) -> tuple[str, str]:
        if finish != "length":
            try:
                jsonschema.validate(json.loads(text), schema)
            except (ValueError, jsonschema.ValidationError) as error:
                return "invalid", f"{finish} {text!r} {error}"[:300]
        if same is not None and self._texts.setdefault(same, text) != text:
            return "different", f"{same}: {text!r} after {self._texts[same]!r}"
        return "valid", ""
