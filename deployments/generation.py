"""One request through both tiers: the grammar compiles while the prompt is prefilled.

                     +-- compile(key, specification) --> ready | refused
    start_generation |                                                      --> Generation (first event, then the rest)
                     +-- generate(request) -----------> first event, ...

Nothing has been sent to the client when `start_generation` returns or raises, so a refusal can still become a 400.
A replica that dies is replaced behind the client's back: compiling is idempotent, and a generation is repeated with the
tokens it has already emitted, which the next replica replays before it goes on.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar, cast

from ray.exceptions import RayActorError
from ray.serve.exceptions import BackPressureError, ReplicaUnavailableError
from ray.serve.handle import DeploymentHandle, DeploymentResponseGenerator
from ray.util.metrics import Counter

from deployments.errors import ApiError

logger = logging.getLogger("ray.serve")

Event = dict[str, Any]
"""What a replica yields: `text`, `token_ids`, `finish_reason`, `prompt_tokens`; or `error`."""


class ReplicaClosingError(Exception):
    """A replica said that it cannot finish a generation because it is shutting down."""


REPLICA_LOST = (RayActorError, ReplicaUnavailableError, ReplicaClosingError)
"""The replica of a call has died, is unreachable, has left the routing table, or is shutting down."""

MAX_TRIES = 8
"""Calls made for one answer before the failure is ours; tokens received meanwhile start the count again."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 2.0
"""Pause before the second try, doubled each time: Serve needs a moment to notice a death and route around it."""

COMPILER, REPLICA = "GrammarCompiler", "ModelReplica"

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Grammar:
    """A constraint on its way through the tiers. `param` is the HTTP field it came from."""

    key: str
    specification: dict[str, Any]
    param: str


@dataclasses.dataclass(frozen=True)
class CompiledGrammar:
    """What the grammar tier answered: annotations it ignored (`notes`) and where the automaton was (`source`)."""

    key: str
    source: str
    notes: list[str]


@dataclasses.dataclass
class Generation:
    """A generation that has begun. Iterate it once; `aclose` stops the replica if the end was not reached."""

    first: Event
    rest: AsyncGenerator[Event, None]
    grammar: CompiledGrammar | None

    async def __aiter__(self) -> AsyncIterator[Event]:
        yield self.first
        async for event in self.rest:
            yield event

    async def aclose(self) -> None:
        await self.rest.aclose()


class Tiers:
    """The two tiers by their handles."""

    def __init__(self, compiler: DeploymentHandle, replica: DeploymentHandle) -> None:
        self._compiler = compiler
        self._replica = replica
        self._retries = Counter(
            "turnstile_retries_total", "Calls repeated because their replica was lost.", ("deployment",)
        )

    async def start_generation(self, request: dict[str, Any], grammar: Grammar | None) -> Generation:
        """Call both tiers at once; return when the grammar is ready and the first event is there.

        Raises `ApiError` as soon as either tier refuses; the other call is cancelled then, as it is when the client
        goes away (`asyncio.CancelledError`).
        """
        events = self._events(request, grammar)
        first = asyncio.ensure_future(anext(events))
        compiled = asyncio.ensure_future(self._compile(grammar))
        try:
            done, _ = await asyncio.wait((first, compiled), return_when=asyncio.FIRST_EXCEPTION)
            # A refused grammar explains more than the replica's own failure to get it.
            for call in (compiled, first):
                if call in done:
                    call.result()
            return Generation(first.result(), events, compiled.result())
        except BaseException:
            for call in (first, compiled):
                call.cancel()
            await asyncio.gather(first, compiled, return_exceptions=True)
            await events.aclose()
            raise

    async def compiler_info(self) -> dict[str, Any]:
        return await self._retried(COMPILER, lambda: self._compiler.info.remote())

    async def replica_info(self) -> dict[str, Any]:
        return await self._retried(REPLICA, lambda: self._replica.info.remote())

    async def _compile(self, grammar: Grammar | None) -> CompiledGrammar | None:
        if grammar is None:
            return None
        # The session id is what the consistent hash looks at: one key always meets the same compiler's caches.
        handle = self._compiler.options(session_id=grammar.key)
        answer = await self._retried(COMPILER, lambda: handle.compile.remote(grammar.key, grammar.specification))
        if answer["status"] == "refused":
            raise ApiError.of_grammar(answer["error"], param=grammar.param)
        return CompiledGrammar(answer["key"], answer["source"], answer["notes"])

    async def _events(self, request: dict[str, Any], grammar: Grammar | None) -> AsyncGenerator[Event, None]:
        """The events of one generation, over as many replicas as it takes; the last one has a finish reason."""
        if grammar is not None:
            request = {**request, "grammar": {"key": grammar.key, "specification": grammar.specification}}
        handle = self._replica.options(stream=True)
        emitted: list[int] = []
        pauses = _Pauses(REPLICA, self._retries)
        while True:
            call = handle.generate.remote({**request, "emitted_token_ids": list(emitted)})
            stream = cast(DeploymentResponseGenerator[Event], call)
            ended = False
            try:
                async for event in stream:
                    if (error := event.get("error")) is not None:
                        if error["code"] == "unavailable":
                            raise ReplicaClosingError(error["message"])
                        raise ApiError.of_replica(error)
                    emitted += event["token_ids"]
                    pauses.reset()
                    ended = event["finish_reason"] is not None
                    yield event
                if ended:
                    return
                raise RuntimeError("a model replica ended a generation without a finish reason")
            except REPLICA_LOST as error:
                if ended:
                    return
                await pauses.wait(error)
            except BackPressureError as error:
                raise ApiError.full(error) from error
            finally:
                if not ended:
                    stream.cancel()

    async def _retried(self, deployment: str, call: Callable[[], Awaitable[T]]) -> T:
        """The answer of an idempotent call, over as many replicas as it takes."""
        pauses = _Pauses(deployment, self._retries)
        while True:
            try:
                return await call()
            except REPLICA_LOST as error:
                await pauses.wait(error)
            except BackPressureError as error:
                raise ApiError.full(error) from error


class _Pauses:
    """Counts the failures of one call and waits between them; re-raises the last when there were too many."""

    def __init__(self, deployment: str, retries: Counter) -> None:
        self._deployment = deployment
        self._retries = retries
        self.reset()

    def reset(self) -> None:
        self._failures = 0

    async def wait(self, error: BaseException) -> None:
        self._failures += 1
        if self._failures >= MAX_TRIES:
            raise error
        self._retries.inc(tags={"deployment": self._deployment})
        logger.warning("lost a %s (%s), try %d", self._deployment, type(error).__name__, self._failures + 1)
        await asyncio.sleep(min(FIRST_PAUSE_S * 2 ** (self._failures - 1), LONGEST_PAUSE_S))
