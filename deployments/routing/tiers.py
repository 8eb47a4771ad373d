"""One request through both tiers: a new grammar first, and where it takes long, the prompt meanwhile.

                     +-- compile(key, specification) --> ready, maybe with the artifact | refused
    start_generation |         `-- within 10 ms --.                                               --> Generation
                     +-- ... or later ----------- generate(request) --> first event, ...

Nothing has been sent to the client when `start_generation` returns or raises, so a refusal can still become a 400.
A replica that dies is replaced behind the client's back: compiling is idempotent, and a generation is repeated with the
tokens it has already emitted, which the next replica replays before it goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from typing import Any, TypeVar, cast

from ray.serve.exceptions import BackPressureError
from ray.serve.handle import DeploymentHandle, DeploymentResponseGenerator

from deployments.chat.thinking import ThoughtsLimit
from deployments.http.errors import ApiError, Places, in_the_body
from deployments.http.unenforced import InTheseWords, in_words
from deployments.routing.grammar_admission import NewGrammars
from deployments.routing.retries import REPLICA_LOST, Retries
from deployments.routing.thoughts import limited
from deployments.tokens.body import text_request
from grammar_workers.errors import GRAMMAR_CODES
from grammar_workers.tracing import Span, Timing

logger = logging.getLogger("ray.serve")

Event = dict[str, Any]
"""What a replica yields: `text`, `token_ids`, `finish_reason`, `prompt_tokens`, maybe `reports`; or `error`."""


class ReplicaClosingError(Exception):
    """A replica said that it cannot finish a generation because it is shutting down."""


COMPILER, REPLICA = "GrammarCompiler", "ModelReplica"
REPORT_TIMEOUT_S = 3.0
HEAD_START_S = 0.01
"""So long a new grammar compiles before its generation begins: mostly enough, and the artifact travels with it."""

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Grammar:
    """A constraint on its way through the tiers, `specification` None where the client named only its key.

    `specification` is a `grammar_workers.service.job`. `param` is the HTTP field it came from, `places` as in
    `ApiError.of_grammar`.
    """

    key: str
    specification: dict[str, Any] | None
    param: str
    places: Places = ()


@dataclasses.dataclass
class Generation:
    """The choices of one answer, which have begun. Iterate it once; `aclose` stops the replicas before the end.

    `first[i]` is the i-th choice's first event, `rest[i]` the others. `grammar`: what `Tiers.compile` returned. `span`
    is over with the generation, `timings` are parts of it.
    """

    first: list[Event]
    rest: list[AsyncGenerator[Event, None]]
    grammar: dict[str, Any] | None
    span: Span = dataclasses.field(default_factory=Span)
    timings: list[Timing] = dataclasses.field(default_factory=list)

    async def __aiter__(self) -> AsyncGenerator[Event, None]:
        """Every event with its choice's number as `index`, as they come."""
        for index, event in enumerate(self.first):
            yield {**event, "index": index}
        if len(self.rest) == 1:
            async for event in self.rest[0]:
                yield {**event, "index": 0}
            return
        coming = {asyncio.ensure_future(anext(rest)): index for index, rest in enumerate(self.rest)}
        try:
            while coming:
                done, _ = await asyncio.wait(coming, return_when=asyncio.FIRST_COMPLETED)
                for call in done:
                    index = coming.pop(call)
                    try:
                        event = call.result()
                    except StopAsyncIteration:
                        continue
                    yield {**event, "index": index}
                    coming[asyncio.ensure_future(anext(self.rest[index]))] = index
        finally:
            await _cancelled(coming)

    def tell_places(self, words: InTheseWords) -> None:
        """Name what is not enforced by the words of another body than that of a chat completion."""
        if self.grammar is not None:
            self.grammar = {**self.grammar, "unenforced": in_words(self.grammar["unenforced"], words)}

    async def aclose(self) -> None:
        for rest in self.rest:
            await rest.aclose()
        self.span.end(self.timings)


def _refuses_grammar(call: asyncio.Future[Event]) -> bool:
    error = call.exception()
    return isinstance(error, ApiError) and error.detail.code in GRAMMAR_CODES


class Tiers:
    """The two tiers by their handles; `new_grammars`: how many of one tenant may be under way."""

    def __init__(self, compiler: DeploymentHandle, replica: DeploymentHandle, *, new_grammars: int) -> None:
        self._compiler = compiler
        self._replica = replica
        self._new_grammars = NewGrammars(new_grammars)
        self._retries = Retries()

    async def start_generation(
        self,
        request: dict[str, Any],
        grammar: Grammar | None,
        tenant: str,
        *,
        choices: int = 1,
        thoughts: ThoughtsLimit | None = None,
    ) -> Generation:
        """Call both tiers; return when the grammar is ready and each choice's first event is there.

        A grammar that is new waits for its turn, and compiles for `HEAD_START_S` before a replica is asked. Raises
        `ApiError` as soon as either tier refuses; the other calls are cancelled then, as they are when the client goes
        away (`asyncio.CancelledError`).
        """
        timeout_s, started = request.get("timeout_s"), time.monotonic()
        async with self._new_grammars.turn(tenant, None if grammar is None else grammar.key, timeout_s):
            if timeout_s is not None:
                request = {**request, "timeout_s": max(timeout_s - (time.monotonic() - started), 1e-3)}
            turn = time.monotonic()
            generation = await self._start(request, grammar, tenant, choices, thoughts)
            generation.timings += [("turn", started, turn), ("first event", turn, time.monotonic())]
            return generation

    async def _start(
        self,
        request: dict[str, Any],
        grammar: Grammar | None,
        tenant: str,
        choices: int,
        thoughts: ThoughtsLimit | None,
    ) -> Generation:
        is_new = grammar is not None and not self._new_grammars.knows(grammar.key)
        compiled = asyncio.create_task(self._compile(grammar, tenant, request.get("traceparent", ""), is_new))
        events: list[AsyncGenerator[Event, None]] = []
        first: list[asyncio.Future[Event]] = []
        try:
            if is_new:
                await asyncio.wait((compiled,), timeout=HEAD_START_S)
            _, artifact = compiled.result() if compiled.done() else (None, None)
            for index in range(choices):
                events.append(self._events({**request, "choice_index": index}, grammar, artifact, tenant, thoughts))
                first.append(asyncio.ensure_future(anext(events[-1])))
            calls: list[asyncio.Future[Any]] = [compiled, *first]
            done, _ = await asyncio.wait(calls, return_when=asyncio.FIRST_EXCEPTION)
            # The compiler explains a refused grammar better than the replica, which may have heard of it sooner.
            if any(_refuses_grammar(call) for call in first if call in done):
                await asyncio.wait([compiled])
            for call in calls:
                if call.done():
                    call.result()
            answer, _ = compiled.result()
            return Generation([call.result() for call in first], events, answer)
        except BaseException:
            await _cancelled((*first, compiled))
            for one in events:
                await one.aclose()
            raise

    async def reports(self) -> list[list[dict[str, Any]] | None]:
        """`GrammarCompiler.report` of every compiler and `Replica.report` of every model replica; None for a tier that
        does not answer in time. Replicas that die meanwhile are left out.
        """
        return list(await asyncio.gather(*map(_reports, (self._compiler, self._replica))))

    async def compiler_info(self) -> dict[str, Any]:
        return await self._retried(COMPILER, lambda: self._compiler.info.remote())

    async def replica_info(self, *template_arguments: dict[str, Any]) -> dict[str, Any]:
        """`ModelReplica.info`."""
        return await self._retried(REPLICA, lambda: self._replica.info.remote(list(template_arguments)))

    async def tokenize(self, request: dict[str, Any]) -> dict[str, Any]:
        """`ModelReplica.tokenize`; raises `ApiError` where it refuses."""
        return _accepted(await self._retried(REPLICA, lambda: self._replica.tokenize.remote(request)))

    async def detokenize(self, tokens: list[int]) -> dict[str, Any]:
        """`ModelReplica.detokenize`; raises `ApiError` where it refuses."""
        return _accepted(await self._retried(REPLICA, lambda: self._replica.detokenize.remote(tokens)))

    async def compile(
        self, grammar: Grammar, tenant: str, traceparent: str = "", with_artifact: bool = False
    ) -> dict[str, Any]:
        """The compiler's answer (`GrammarCompiler.compile`) about a grammar that is ready now.

        Raises `ApiError` for any other.
        Its `unenforced` are data of `deployments.http.unenforced.Unenforced`. `tenant`: who pays for the compilation.
        """
        handle = self._compiler_of(grammar.key)
        answer = await self._retried(
            COMPILER,
            lambda: handle.compile.remote(grammar.key, grammar.specification, tenant, traceparent, with_artifact),
        )
        if answer["status"] == "refused":
            raise ApiError.of_grammar(answer["error"], param=grammar.param, places=grammar.places)
        if answer["status"] == "unknown":
            raise ApiError.grammar_not_found(grammar.key)
        unenforced = [
            {"param": param, "pointer": pointer, "reason": one["reason"]}
            for one in answer.get("unenforced", ())
            for pointer, param in [in_the_body(one["pointer"], grammar.places, grammar.param)]
        ]
        return {**answer, "unenforced": unenforced}

    async def grammar_status(self, key: str) -> dict[str, Any]:
        """What the grammar tier knows about a key (`GrammarCompiler.status`)."""
        return await self._retried(COMPILER, lambda: self._compiler_of(key).status.remote(key))

    async def discard_grammar(self, key: str, tenant: str, administrator: bool) -> dict[str, Any]:
        """`GrammarCompiler.discard`."""
        return await self._retried(COMPILER, lambda: self._compiler_of(key).discard.remote(key, tenant, administrator))

    def _compiler_of(self, key: str) -> DeploymentHandle:
        """The session id is what the consistent hash looks at: one key always meets the same compiler's caches."""
        return self._compiler.options(session_id=key)

    async def _compile(
        self, grammar: Grammar | None, tenant: str, traceparent: str, with_artifact: bool
    ) -> tuple[dict[str, Any] | None, bytes | None]:
        """The compiler's answer, and apart from it the artifact, where it came along."""
        if grammar is None:
            return None, None
        answer = await self.compile(grammar, tenant, traceparent, with_artifact)
        self._new_grammars.learn(grammar.key)
        fields = {"grammar_key": grammar.key, "tenant": tenant, "grammar_source": answer["source"]}
        logger.info("generating under grammar %s from %s", grammar.key, answer["source"], extra=fields)
        return answer, answer.pop("artifact", None)

    async def _events(
        self,
        request: dict[str, Any],
        grammar: Grammar | None,
        artifact: bytes | None,
        tenant: str,
        thoughts: ThoughtsLimit | None,
    ) -> AsyncGenerator[Event, None]:
        """The events of one generation, over as many replicas as it takes; the last one has a finish reason."""
        if grammar is not None:
            named = {"key": grammar.key, "specification": grammar.specification, "tenant": tenant}
            request = {**request, "grammar": {**named, "artifact": artifact}}
        with self._new_grammars.served(tenant):
            found = self._events_of_replicas(request) if thoughts is None else self._limited(thoughts, request)
            async with contextlib.aclosing(found) as events:
                async for event in events:
                    yield event

    def _limited(self, thoughts: ThoughtsLimit, request: dict[str, Any]) -> AsyncGenerator[Event, None]:
        async def encode(text: str) -> list[int]:
            tokens: list[int] = (await self.tokenize(text_request(text)))["tokens"]
            return tokens

        async def decode(tokens: list[int]) -> str:
            text: str = (await self.detokenize(tokens))["prompt"]
            return text

        return limited(thoughts, request, self._events_of_replicas, encode, decode)

    async def _events_of_replicas(self, request: dict[str, Any]) -> AsyncGenerator[Event, None]:
        handle = self._replica.options(stream=True)
        limit = request.get("timeout_s")
        deadline = None if limit is None else time.monotonic() + limit
        emitted = list(request["emitted_token_ids"])
        pauses = self._retries.pauses(REPLICA)
        while True:
            left = None if deadline is None else max(deadline - time.monotonic(), 1e-3)
            call = handle.generate.remote({**request, "timeout_s": left, "emitted_token_ids": list(emitted)})
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
            except (*REPLICA_LOST, ReplicaClosingError) as error:
                if ended:
                    return
                await pauses.wait(error)
            except BackPressureError as error:
                raise ApiError.full(retry_after_s=error.retry_after_s) from error
            finally:
                if not ended:
                    stream.cancel()

    async def _retried(self, deployment: str, call: Callable[[], Awaitable[T]]) -> T:
        """The answer of an idempotent call, over as many replicas as it takes."""
        try:
            return await self._retries.answer(deployment, call)
        except BackPressureError as error:
            raise ApiError.full(retry_after_s=error.retry_after_s) from error


async def _reports(tier: DeploymentHandle) -> list[dict[str, Any]] | None:
    try:
        found = await tier.broadcast("report").results_async(timeout_s=REPORT_TIMEOUT_S, return_exceptions=True)
    except TimeoutError:
        return None
    return [report for report in found if not isinstance(report, BaseException)]


def _accepted(answer: dict[str, Any]) -> dict[str, Any]:
    if (error := answer.get("error")) is not None:
        raise ApiError.of_replica(error)
    return answer


async def _cancelled(calls: Iterable[asyncio.Future[Any]]) -> None:
    """Cancels the calls and waits until they have ended."""
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
