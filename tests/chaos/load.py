"""Mixed load: long streams, known and unseen grammars, tool calls. Every answer is checked, and repeated at the end."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import re
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import jsonschema

from tests.integration.traffic import PERSON, PROMPT, structured

CLIENTS = 8
LETTERS = "[a-z ]{400}"
REPEAT_DEADLINE_S = 60.0


@dataclasses.dataclass
class Exchange:
    """A request and what came back for it."""

    request_id: str
    body: dict[str, Any]
    text: str = ""
    finish_reason: str = ""
    breaks: int = 0
    """How often the connection broke before the answer was whole."""

    def check(self) -> bool:
        """Whether the answer is finished; a finished one must match what was asked for."""
        if self.finish_reason == "length":
            return False
        if "tools" in self.body:
            assert self.finish_reason == "tool_calls", self
            (call,) = json.loads(self.text)
            jsonschema.validate(json.loads(call["arguments"]), PERSON)
            return True
        assert self.finish_reason == "stop", self
        wanted = self.body["response_format"]
        if wanted["type"] == "regex":
            assert re.fullmatch(wanted["pattern"], self.text), self
        else:
            jsonschema.validate(json.loads(self.text), wanted["json_schema"]["schema"])
        return True


class ConnectionBrokenError(Exception):
    """The proxy or router on the way to the answer has died."""


class LostError(Exception):
    """An answer that no client should get."""


def unseen(salt: str) -> dict[str, Any]:
    """The properties of PERSON under a grammar nobody has compiled yet."""
    return {**PERSON, "properties": {**PERSON["properties"], f"code_{salt}": {"const": salt}}}


def mixed_body(worker: int, turn: int, salt: str) -> dict[str, Any]:
    """Of four requests in a row: a long stream, a known grammar, an unseen one, a tool call."""
    match (worker + turn) % 4:
        case 0:
            response_format = {"type": "regex", "pattern": LETTERS}
            return {"messages": PROMPT, "response_format": response_format, "temperature": 1, "stream": True}
        case 1:
            return structured(PERSON, temperature=1, stream=bool(turn % 2))
        case 2:
            return structured(unseen(f"{salt}{worker}x{turn}"), temperature=1, stream=bool(turn % 2))
        case _:
            function = {"name": "save_person", "parameters": PERSON}
            tools = {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}
            return {"messages": PROMPT, **tools, "parallel_tool_calls": False, "temperature": 1, "max_tokens": 200}


async def exchange(http: httpx.AsyncClient, one: Exchange) -> None:
    """Fill in the answer. Raises `ConnectionBrokenError` with what came until then in `text`, or `LostError`."""
    one.text = ""
    headers = {"x-request-id": one.request_id}
    try:
        async with http.stream("POST", "/v1/chat/completions", json=one.body, headers=headers) as response:
            if response.status_code != 200:
                body = (await response.aread()).decode()
                # The proxy says so when the router behind it has died.
                if response.status_code >= 500 and '"router_lost"' in body:
                    raise ConnectionBrokenError(f"{response.status_code} {body[:200]}")
                raise LostError(f"{response.status_code} {body}")
            if not one.body.get("stream"):
                choice = json.loads(await response.aread())["choices"][0]
                one.text, one.finish_reason = _text(choice["message"]), choice["finish_reason"]
                return
            async for line in response.aiter_lines():
                if line == "data: [DONE]":
                    return
                if line:
                    chunk = json.loads(line.removeprefix("data: "))
                    if "error" in chunk:
                        raise LostError(str(chunk))
                    one.text += chunk["choices"][0]["delta"].get("content") or ""
                    one.finish_reason = chunk["choices"][0]["finish_reason"] or one.finish_reason
    except httpx.TransportError as error:
        raise ConnectionBrokenError(repr(error)) from error
    raise ConnectionBrokenError("the stream ended early")


def _text(message: dict[str, Any]) -> str:
    if calls := message.get("tool_calls"):
        return json.dumps([call["function"] for call in calls])
    return str(message["content"])


class Load:
    """What `mixed_load` has sent so far: what was answered, and why others were not; how many connections broke."""

    def __init__(self, http: httpx.AsyncClient, name: str, *, may_break: bool) -> None:
        self.answered: list[Exchange] = []
        self.lost: list[str] = []
        self.broken = 0
        self._http = http
        self._name = name
        self._may_break = may_break

    async def wait(self, more: int) -> None:
        """Return after that many more answers or losses."""
        goal = len(self.answered) + len(self.lost) + more
        while len(self.answered) + len(self.lost) < goal:
            await asyncio.sleep(0.02)

    async def work(self, worker: int, over: asyncio.Event) -> None:
        turn = 0
        while not over.is_set():
            body = mixed_body(worker, turn, self._name)
            one = Exchange(f"{self._name}-{worker}-{turn}", body)
            try:
                await self._until_answered(one)
                one.check()
                self.answered.append(one)
            except (LostError, ConnectionBrokenError, AssertionError, jsonschema.ValidationError) as error:
                self.lost.append(f"{one.request_id}: {type(error).__name__} {error}")
            turn += 1

    async def differing(self) -> list[Exchange]:
        """The exchanges whose request gives another answer when it is repeated with its id."""
        places = asyncio.Semaphore(CLIENTS)

        async def repeat(one: Exchange) -> bool:
            again = Exchange(one.request_id, {**one.body, "stream": False})
            async with places:
                try:
                    await exchange(self._http, again)
                except (LostError, ConnectionBrokenError) as error:
                    self.lost.append(f"{one.request_id} repeated: {error}")
                    return False
            return (again.text, again.finish_reason) != (one.text, one.finish_reason)

        differ = await asyncio.gather(*map(repeat, self.answered))
        return [one for one, differs in zip(self.answered, differ, strict=True) if differs]

    async def _until_answered(self, one: Exchange) -> None:
        """A client that repeats what was cut off, with the id it had."""
        deadline = time.monotonic() + REPEAT_DEADLINE_S
        beginnings = []
        while True:
            try:
                await exchange(self._http, one)
                break
            except ConnectionBrokenError:
                if not self._may_break or time.monotonic() > deadline:
                    raise
                beginnings.append(one.text)
                one.breaks += 1
                self.broken += 1
                await asyncio.sleep(0.05)
        assert all(one.text.startswith(beginning) for beginning in beginnings), (beginnings, one)


@contextlib.asynccontextmanager
async def mixed_load(http: httpx.AsyncClient, name: str, *, may_break: bool = False) -> AsyncIterator[Load]:
    """Eight clients, one request after the other, until the block ends.

    `may_break`: connections may, and the client then repeats its request.
    """
    load = Load(http, name, may_break=may_break)
    over = asyncio.Event()
    async with asyncio.TaskGroup() as workers:
        for worker in range(CLIENTS):
            workers.create_task(load.work(worker, over))
        try:
            yield load
        finally:
            over.set()


def slow_to_compile(salt: str, alternatives: int = 9) -> dict[str, Any]:
    """A schema whose alternatives all overlap: 9 of them are a seventh of a second of work, 11 twice that."""
    places = range(alternatives)
    return {"anyOf": [{"properties": {f"n{place + one}{salt}": {"const": one} for place in places}} for one in places]}
