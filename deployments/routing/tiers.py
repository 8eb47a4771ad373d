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
import functools
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from typing import Any, TypeVar, cast

from ray.serve.exceptions import BackPressureError
from ray.serve.handle import DeploymentHandle, DeploymentResponseGenerator

from deployments.chat.thinking import ThoughtsLimit
from deployments.http.deadline import Deadline
from deployments.http.errors import ApiError, Places, in_the_body
from deployments.http.unenforced import InTheseWords, in_words
from deployments.routing.grammar_admission import NewGrammars
from deployments.routing.retries import REPLICA_LOST, Retries
from deployments.routing.thoughts import limited
from deployments.status.seen_grammars import Seen, SeenGrammars
from deployments.tokens.body import text_request
from grammar_workers.errors import GRAMMAR_CODES
from grammar_workers.logs import SERVE, get_logger
from grammar_workers.tracing import Span, Timing

logger = get_logger(SERVE)

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
    only_own: bool = False
    """The key must be one of the tenant's."""
    seen: Seen = dataclasses.field(default_factory=Seen)
    """The specification in words, for people."""


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


def _is_about_grammar(error: BaseException | None) -> bool:
    return isinstance(error, ApiError) and error.detail.code in (*GRAMMAR_CODES, "grammar_not_found")


class Tiers:
    """The two tiers by their handles.

    Args:
        new_grammars: How many new grammars of one tenant may be under way.
        routers: Number of router replicas, among which a tenant's own limit is divided.
    """

    def __init__(
        self, compiler: DeploymentHandle, replica: DeploymentHandle, *, new_grammars: int, routers: int = 1
    ) -> None:
        self._compiler = compiler
        self._replica = replica
        self._new_grammars = NewGrammars(new_grammars, routers)
        self._retries = Retries()
        self.seen_grammars = SeenGrammars()
        self._id = uuid.uuid4().hex

    async def start_generation(
        self,
        request: dict[str, Any],
        grammar: Grammar | None,
        tenant: str,
        *,
        choices: int = 1,
        thoughts: ThoughtsLimit | None = None,
        new_grammars: int | None = None,
        deadline: Deadline | None = None,
    ) -> Generation:
        """Call both tiers; return when the grammar is ready and each choice's first event is there.

        A grammar that is new waits for its turn, and compiles for `HEAD_START_S` before a replica is asked; one that
        has been ready before waits for no compiler. Raises `ApiError` as soon as either tier refuses; the other calls
        are cancelled then, as they are when the client goes away (`asyncio.CancelledError`). `deadline` bounds the
        whole generation; None: by the request's `timeout_s`.
        """
        deadline, started = deadline or Deadline(request.get("timeout_s"), "timeout_s"), time.monotonic()
        key = None if grammar is None else grammar.key
        async with deadline.bounds(), self._new_grammars.turn(tenant, key, new_grammars):
            turn = time.monotonic()
            generation = await self._start(request, grammar, tenant, choices, thoughts, deadline)
            generation.timings += [("turn", started, turn), ("first event", turn, time.monotonic())]
            return generation

    async def _start(
        self,
        request: dict[str, Any],
        grammar: Grammar | None,
        tenant: str,
        choices: int,
        thoughts: ThoughtsLimit | None,
        deadline: Deadline,
    ) -> Generation:
        only_to = tenant if grammar is not None and grammar.only_own else None
        known = None if grammar is None else self._new_grammars.known(grammar.key, only_to)
        is_new = grammar is not None and known is None
        if grammar is not None and known is not None:  # a compiler has said already whose it is
            grammar = dataclasses.replace(grammar, only_own=False)
        compiled = asyncio.create_task(self._compile(grammar, tenant, request.get("traceparent", ""), is_new))
        events: list[AsyncGenerator[Event, None]] = []
        first: list[asyncio.Future[Event]] = []
        try:
            if is_new:
                await asyncio.wait((compiled,), timeout=HEAD_START_S)
            _, artifact = compiled.result() if compiled.done() else (None, None)
            for index in range(choices):
                choice = {**request, "choice_index": index, "tenant": tenant}
                events.append(self._events(choice, grammar, artifact, tenant, thoughts, deadline))
                first.append(asyncio.ensure_future(anext(events[-1])))
            calls: list[asyncio.Future[Any]] = [compiled, *first] if known is None else [*first]
            done, _ = await asyncio.wait(calls, return_when=asyncio.FIRST_EXCEPTION)
            # The compiler explains a refused grammar better than the replica, which may have heard of it sooner.
            if is_new and any(_is_about_grammar(call.exception()) for call in first if call in done):
                await asyncio.wait([compiled])
            for call in calls:
                if call.done():
                    call.result()
            answer = _answer(compiled, known)
            told = None if grammar is None or answer is None else _in_the_words_of(grammar, answer)
            return Generation([call.result() for call in first], events, told)
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

    async def report_held_back(self) -> None:
        """Report to every compiler how many new grammars wait here, for autoscaling.

        Failures are ignored, because the next report follows within seconds. Zero is not reported: an earlier number
        expires by itself.
        """
        waiting = self._new_grammars.waiting
        if not waiting:
            return
        with contextlib.suppress(Exception):
            call = self._compiler.broadcast("report_held_back", self._id, waiting)
            await call.results_async(timeout_s=REPORT_TIMEOUT_S, return_exceptions=True)

    async def compiler_info(self) -> dict[str, Any]:
        return await self._retried(COMPILER, lambda: self._compiler.info.remote())

    async def replica_info(self, *template_arguments: dict[str, Any]) -> dict[str, Any]:
        """`ModelReplica.info`."""
        return await self._retried(REPLICA, lambda: self._replica.info.remote(list(template_arguments)))

    async def tokenize(self, request: dict[str, Any]) -> dict[str, Any]:
        """`ModelReplica.tokenize`; raises `ApiError` where it refuses."""
        return _accepted(await self._retried(REPLICA, lambda: self._replica.tokenize.remote(request)))

    async def detokenize(self, tokens: list[int], tenant: str) -> dict[str, Any]:
        """`ModelReplica.detokenize`; raises `ApiError` where it refuses."""
        return _accepted(await self._retried(REPLICA, lambda: self._replica.detokenize.remote(tokens, tenant)))

    async def compile(self, grammar: Grammar, tenant: str) -> dict[str, Any]:
        """The compiler's answer (`GrammarCompiler.compile`) about a grammar that is ready now.

        Raises `ApiError` for any other.
        Its `unenforced` are data of `deployments.http.unenforced.Unenforced`. `tenant`: who pays for the compilation.
        """
        answer, _ = await self._compiled(grammar, tenant)
        return _in_the_words_of(grammar, answer)

    async def _compiled(
        self, grammar: Grammar, tenant: str, traceparent: str = "", with_artifact: bool = False
    ) -> tuple[dict[str, Any], bytes | None]:
        """As `compile`, in the compiler's own words, and apart from them the artifact, where it came along."""
        handle = self._compiler_of(grammar.key)
        answer = await self._retried(
            COMPILER,
            lambda: handle.compile.remote(
                grammar.key, grammar.specification, tenant, traceparent, with_artifact, grammar.only_own
            ),
        )
        if answer["status"] == "ready":
            artifact = answer.pop("artifact", None)
            self._new_grammars.learn(grammar.key, answer, tenant)
            self.seen_grammars.ready(grammar.key, grammar.seen, tenant, answer)
            return answer, artifact
        if not grammar.only_own:
            self._new_grammars.forget(grammar.key)
        if answer["status"] == "refused":
            refusal = ApiError.of_grammar(
                answer["error"], param=grammar.param, places=grammar.places, specification=grammar.specification
            )
            self.seen_grammars.refused(grammar.seen, tenant, refusal.detail.message)
            raise refusal
        raise ApiError.grammar_not_found(grammar.key)

    async def grammar_status(self, key: str, tenant: str, administrator: bool) -> dict[str, Any]:
        """What the grammar tier knows about a key (`GrammarCompiler.status`)."""
        return await self._retried(COMPILER, lambda: self._compiler_of(key).status.remote(key, tenant, administrator))

    async def discard_grammar(self, key: str, tenant: str, administrator: bool) -> dict[str, Any]:
        """`GrammarCompiler.discard`."""
        handle = self._compiler_of(key)
        before = await self._retried(COMPILER, lambda: handle.discard.remote(key, tenant, administrator))
        if before["status"] != "forbidden":
            self._new_grammars.forget(key)
        return before

    def _compiler_of(self, key: str) -> DeploymentHandle:
        """The session id is what the consistent hash looks at: one key always meets the same compiler's caches."""
        return self._compiler.options(session_id=key)

    async def _compile(
        self, grammar: Grammar | None, tenant: str, traceparent: str, with_artifact: bool
    ) -> tuple[dict[str, Any] | None, bytes | None]:
        if grammar is None:
            return None, None
        answer, artifact = await self._compiled(grammar, tenant, traceparent, with_artifact)
        fields = {"grammar_key": grammar.key, "tenant": tenant, "grammar_source": answer["source"]}
        logger.info("generating under grammar %s from %s", grammar.key, answer["source"], extra=fields)
        return answer, artifact

    async def _events(
        self,
        request: dict[str, Any],
        grammar: Grammar | None,
        artifact: bytes | None,
        tenant: str,
        thoughts: ThoughtsLimit | None,
        deadline: Deadline,
    ) -> AsyncGenerator[Event, None]:
        """The events of one generation, over as many replicas as it takes; the last one has a finish reason."""

        def generate(request: dict[str, Any]) -> AsyncGenerator[Event, None]:
            return self._events_of_replicas(request, deadline)

        if grammar is not None:
            named = {"key": grammar.key, "specification": grammar.specification, "tenant": tenant}
            request = {**request, "grammar": {**named, "artifact": artifact}}
        with self._new_grammars.served(tenant):
            found = generate(request) if thoughts is None else self._limited(thoughts, request, generate)
            async with contextlib.aclosing(found) as events:
                while True:
                    async with deadline.bounds():
                        event = await anext(events, None)
                    if event is None:
                        return
                    yield event

    def _limited(
        self,
        thoughts: ThoughtsLimit,
        request: dict[str, Any],
        generate: Callable[[dict[str, Any]], AsyncGenerator[Event, None]],
    ) -> AsyncGenerator[Event, None]:
        async def encode(text: str) -> list[int]:
            tokens: list[int] = (await self.tokenize({**text_request(text), "tenant": request["tenant"]}))["tokens"]
            return tokens

        async def decode(tokens: list[int]) -> str:
            text: str = (await self.detokenize(tokens, request["tenant"]))["prompt"]
            return text

        return limited(thoughts, request, generate, encode, decode)

    async def _events_of_replicas(self, request: dict[str, Any], deadline: Deadline) -> AsyncGenerator[Event, None]:
        handle = self._replica.options(stream=True)
        emitted = list(request["emitted_token_ids"])
        pauses = self._retries.pauses(REPLICA)
        while True:
            going_on = {"timeout_s": deadline.left, "emitted_token_ids": list(emitted)}
            call = handle.generate.remote({**request, **going_on})
            stream = cast(DeploymentResponseGenerator[Event], call)
            ended = False
            try:
                async for event in stream:
                    if (error := event.get("error")) is not None:
                        if error["code"] == "unavailable":
                            raise ReplicaClosingError(error["message"])
                        if error["code"] == "deadline_exceeded":
                            raise deadline.passed()
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


def _answer(
    compiled: asyncio.Task[tuple[dict[str, Any] | None, bytes | None]], known: dict[str, Any] | None
) -> dict[str, Any] | None:
    """The compiler's answer, or what it said before (`known`) where it has none now, for whatever reason."""
    if known is None:
        return compiled.result()[0]
    if compiled.done():
        if (error := compiled.exception()) is None or _is_about_grammar(error):
            return compiled.result()[0]
    else:
        compiled.cancel()
    return known


def _in_the_words_of(grammar: Grammar, answer: dict[str, Any]) -> dict[str, Any]:
    found = [{**one, "param": grammar.param} for one in answer.get("unenforced", ())]
    words = functools.partial(in_the_body, places=grammar.places)
    return {**answer, "unenforced": in_words(found, words)}


def _accepted(answer: dict[str, Any]) -> dict[str, Any]:
    if (error := answer.get("error")) is not None:
        raise ApiError.of_replica(error)
    return answer


async def _cancelled(calls: Iterable[asyncio.Future[Any]]) -> None:
    """Cancels the calls and waits until they have ended."""
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
