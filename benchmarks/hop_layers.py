"""The layers of `benchmarks.hops`, which are there as long as its server is. Imports Ray."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import statistics
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import yaml
from ray import serve
from starlette.requests import Request
from tqdm import tqdm

from benchmarks.processes import cpu_seconds
from deployments.arguments import AppArguments
from deployments.config_file import load_config
from deployments.http.event_stream import EventStream
from deployments.http.tenants import Tenant
from deployments.local.server import Progress, deploy, start_ray
from deployments.local.stop import stop_all
from deployments.openai.protocol import CompletionBody
from deployments.routing.service import Service
from deployments.routing.tiers import COMPILER, REPLICA, Tiers
from deployments.shipped import REPOSITORY
from gpu_workers.config import EngineConfig
from gpu_workers.engine.engine import Engine
from gpu_workers.model.loader import load
from gpu_workers.request import GenerationRequest, GrammarReference
from grammar_workers import GrammarOptions, TokenFSM, compile_grammar
from tests.redis_server import free_port

MODEL = REPOSITORY / "models" / "turnstile-tiny"
APPLICATION = "turnstile"
START_DEADLINE_S = 240.0
IDLE_S = 5.0
TOKENS = 64
DONE = b"data: [DONE]\n\n"
CONSTRAINT = {"regex": "([a-z]+ )+"}
KINDS: dict[str, dict[str, Any]] = {"free": {}, "constrained": {"structured_outputs": CONSTRAINT}}
ENGINE = {"threads": 1, "slots": 32, "max_length": 512}

Ask = Callable[[dict[str, Any]], AsyncIterator[Any]]
"""The events of the stream that answers the body of a completion."""


@dataclass
class Seen:
    """Of requests at one layer, in seconds; `cpu` of all of them, `elapsed` while they ran."""

    first: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    events: list[int] = field(default_factory=list)
    cpu: float = 0.0
    elapsed: float = 0.0

    @property
    def cpu_ms(self) -> float:
        """Of one request."""
        return 1000 * self.cpu / len(self.whole)

    async def ask(self, ask: Ask, body: dict[str, Any]) -> None:
        started = time.perf_counter()
        events = 0
        async for _ in ask(body):
            if not events:
                self.first.append(time.perf_counter() - started)
            events += 1
        self.whole.append(time.perf_counter() - started)
        self.events.append(events)


def measure(folder: Path, *, requests: int, clients: int, seconds: float) -> None:
    """Starts a server, prints both tables, and stops it."""
    with server(folder) as port:
        asyncio.run(_measure(port, requests, clients, seconds))


@contextlib.contextmanager
def server(folder: Path) -> Iterator[int]:
    """The port of a server whose Ray this process is connected to."""
    config = yaml.safe_load((REPOSITORY / "configs" / "local.yaml").read_text())
    config["applications"][0]["args"] |= {
        "store": f"file://{folder}/grammars",
        "compiler": {"num_cpus": 0.1, "processes": 1},
        "replica": {"num_cpus": 0.1, "engine": ENGINE},
    }
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    checked = load_config(path)
    checked.http_options.port = free_port()
    progress = Progress()
    start_ray()
    try:
        deploy(checked, progress, threading.Event(), deadline_s=START_DEADLINE_S)
        yield checked.http_options.port
    finally:
        stop_all(progress, threading.Event(), gracefully=True)


class Layers:
    """Ways to ask for a completion, from the engine to the proxy."""

    def __init__(self, port: int, http: aiohttp.ClientSession) -> None:
        config = EngineConfig.model_validate(ENGINE)
        self._loaded = load(str(MODEL), config)
        self._specification = {"type": "regex", "pattern": CONSTRAINT["regex"]}
        self._fsm = compile_grammar(self._specification, self._loaded.vocabulary, options=GrammarOptions())
        self._engine = Engine(self._loaded, config, self._fetch)
        compiler = serve.get_deployment_handle(COMPILER, APPLICATION)
        self._replica = serve.get_deployment_handle(REPLICA, APPLICATION).options(stream=True)
        tiers = Tiers(compiler, serve.get_deployment_handle(REPLICA, APPLICATION), new_grammars=2)
        self._service = Service(tiers, AppArguments(model=str(MODEL)))
        self._http = http
        (router,) = _processes("ServeReplica:turnstile:Router")
        low, high = (int(os.environ[f"RAY_SERVE_DIRECT_INGRESS_{end}_HTTP_PORT"]) for end in ("MIN", "MAX"))
        listening = {one.laddr.port for one in router.net_connections("tcp") if one.status == psutil.CONN_LISTEN}
        (self._router_port,) = (one for one in listening if low <= one <= high)
        self._proxy_port = port

    def ways(self) -> dict[str, Ask]:
        return {
            "engine": self.engine,
            "replica": self.replica,
            "router": self.router,
            "port": lambda body: self._stream(self._router_port, body),
            "proxy": lambda body: self._stream(self._proxy_port, body),
        }

    async def engine(self, body: dict[str, Any]) -> AsyncIterator[Any]:
        async for output in self._engine.generate(GenerationRequest.model_validate(self._request(body))):
            yield output

    async def replica(self, body: dict[str, Any]) -> AsyncIterator[Any]:
        async for event in self._replica.generate.remote(self._request(body)):
            assert "error" not in event, event
            yield event

    async def router(self, body: dict[str, Any]) -> AsyncIterator[Any]:
        request = Request({"type": "http", "headers": []})
        answer = await self._service.answer(CompletionBody.model_validate(body), request, Tenant(name="hops"))
        assert isinstance(answer, EventStream)
        async for block in answer.body_iterator:
            if block != DONE:
                yield block

    def close(self) -> None:
        self._engine.close()

    async def _stream(self, port: int, body: dict[str, Any]) -> AsyncIterator[Any]:
        async with self._http.post(f"http://127.0.0.1:{port}/v1/completions", json=body) as response:
            assert response.status == 200, await response.text()
            async for line in response.content:
                if line.startswith(b"data: {"):
                    yield line

    def _request(self, body: dict[str, Any]) -> dict[str, Any]:
        """What the router makes of a body."""
        request = CompletionBody.model_validate(body).generation_request(uuid.uuid4().hex, drawn_seed=0)
        if "structured_outputs" not in body:
            return request
        return {**request, "grammar": {"key": self._fsm.key, "specification": self._specification, "tenant": "hops"}}

    async def _fetch(self, _: GrammarReference) -> TokenFSM:
        return self._fsm


async def _measure(port: int, requests: int, clients: int, seconds: float) -> None:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        layers = Layers(port, http)
        ways = layers.ways()
        bodies = (_body(number) for number in itertools.count())
        for kind, ask in itertools.product(KINDS.values(), ways.values()):
            await Seen().ask(ask, {**next(bodies), **kind})  # everything has run once
        idle = await _idle_cpu()
        alone = {(kind, layer): Seen() for kind in KINDS for layer in ways}
        for _ in tqdm(range(requests), desc="one at a time", disable=None):
            for (kind, layer), seen in alone.items():
                with _counted(seen, idle):
                    await seen.ask(ways[layer], {**next(bodies), **KINDS[kind]})
        together = {(kind, layer): Seen() for kind in KINDS for layer in ways}
        for (kind, layer), seen in tqdm(together.items(), desc=f"{clients} at a time", disable=None):
            with _counted(seen, idle):
                end = time.perf_counter() + seconds
                await asyncio.gather(*(_client(seen, ways[layer], bodies, KINDS[kind], end) for _ in range(clients)))
        layers.close()
    print(tables(alone, together, clients))


async def _client(seen: Seen, ask: Ask, bodies: Iterator[dict[str, Any]], kind: dict[str, Any], end: float) -> None:
    while time.perf_counter() < end:
        await seen.ask(ask, {**next(bodies), **kind})


def _body(number: int) -> dict[str, Any]:
    return {
        "prompt": "Tell me about the harbour of Lisbon.",
        "max_tokens": TOKENS,
        "ignore_eos": True,
        "temperature": 1,
        "seed": number,
        "stream": True,
    }


def tables(alone: dict[tuple[str, str], Seen], together: dict[tuple[str, str], Seen], clients: int) -> str:
    """Markdown; a layer's differences are those to the layer above it."""
    head = ("layer", "first event ms", "+", "64 tokens ms", "+", "CPU ms", "+", "events")
    head += (f"tokens/s of {clients}", "CPU ms/request", "events")
    lines = []
    for kind in KINDS:
        lines += [f"\n{kind}:\n", "| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
        above = None
        for layer in [layer for of, layer in alone if of == kind]:
            single, beside = alone[kind, layer], together[kind, layer]
            figures = (1000 * statistics.median(single.first), 1000 * statistics.median(single.whole), single.cpu_ms)
            cells = [layer]
            for place, figure in enumerate(figures):
                cells += [f"{figure:.1f}", "" if above is None else f"{figure - above[place]:+.1f}"]
            above = figures
            cells += [f"{statistics.mean(single.events):.0f}", f"{TOKENS * len(beside.whole) / beside.elapsed:,.0f}"]
            cells += [f"{beside.cpu_ms:.1f}", f"{statistics.mean(beside.events):.0f}"]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


@contextlib.contextmanager
def _counted(seen: Seen, idle: float) -> Iterator[None]:
    """Adds the CPU time and the seconds of what happens; `idle`: CPU seconds that a second takes anyway."""
    processes = _participants()
    started, before = time.perf_counter(), cpu_seconds(processes)
    yield
    elapsed = time.perf_counter() - started
    seen.elapsed += elapsed
    seen.cpu += cpu_seconds(processes) - before - idle * elapsed


async def _idle_cpu() -> float:
    seen = Seen()
    with _counted(seen, 0.0):
        await asyncio.sleep(IDLE_S)
    return seen.cpu / seen.elapsed


def _participants() -> list[psutil.Process]:
    """Those through which a request goes: this one, the replicas and HAProxy, but not Ray's own."""
    return [psutil.Process(), *_processes("ServeReplica:turnstile:"), *_processes("haproxy -")]


def _processes(words: str) -> list[psutil.Process]:
    return [one for one in psutil.Process().children(recursive=True) if words in " ".join(one.cmdline())]
