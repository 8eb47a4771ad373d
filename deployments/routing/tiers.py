"""Client of the two deployments behind the router: the grammar compilers and the model replicas.

`start_generation` compiles an uncached grammar (constraint) first. The result is the *artifact* (stored automaton). The
model replica is called when the grammar is ready, but after 10 ms at the latest:

                     +-- compile(key, specification) --> ready, maybe with the artifact | rejected
    start_generation |         `-- within 10 ms --.                                               --> Generation
                     +-- ... or later ----------- generate(request) --> first event, ...

Nothing is sent to the client before `start_generation` returns, so an error can still become a response with HTTP 400.
If a replica fails, the call is repeated on another replica, and the client sees no error. A repeated generation gets
the tokens that it has already emitted, and continues after them. Compiling is idempotent.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, TypeVar, cast

from ray.serve.exceptions import BackPressureError
from ray.serve.handle import DeploymentHandle, DeploymentResponseGenerator

from deployments.chat.thinking import ThoughtsLimit
from deployments.generation import Event, Generation, Grammar, cancelled
from deployments.http.deadline import Deadline
from deployments.http.errors import ApiError, in_the_body
from deployments.http.unenforced import in_words
from deployments.routing.grammar_admission import NewGrammars
from deployments.routing.retries import REPLICA_LOST, Retries
from deployments.routing.thoughts import limited
from deployments.status.seen_grammars import SeenGrammars
from deployments.tokens.body import text_request
from grammar_workers.errors import GRAMMAR_CODES
from grammar_workers.logs import SERVE, get_logger

logger = get_logger(SERVE)


class ReplicaClosingError(Exception):
    """A model replica cannot finish a generation, because the replica is shutting down. The call is repeated."""


COMPILER, REPLICA = "GrammarCompiler", "ModelReplica"
# Seconds to wait for reports of the replicas.
REPORT_TIMEOUT_S = 3.0
# Seconds for which an uncached grammar is compiled before its generation starts. Most grammars are ready by then, and
# the artifact is sent together with the generation request.
HEAD_START_S = 0.01

T = TypeVar("T")


def _is_about_grammar(error: BaseException | None) -> bool:
    return isinstance(error, ApiError) and error.detail.code in (*GRAMMAR_CODES, "grammar_not_found")


class Tiers:
    """Client of the grammar compilers and the model replicas, in one router replica (process of the HTTP ingress).

    If a replica is lost during a call, the call is repeated on another replica. Methods that call a deployment raise
    `ApiError` 429 if all replicas of the deployment are full.

    Args:
        compiler: Handle of the deployment `GrammarCompiler`.
        replica: Handle of the deployment `ModelReplica`.
        new_grammars: Maximum number of uncached grammars (constraints that must be compiled) of one tenant (client) in
            progress in this router. Further grammars of the tenant wait.
        routers: Number of router replicas. A tenant's own limit (see `start_generation`) is divided by this number.

    Attributes:
        seen_grammars: Grammars and rejections of this router, for the status page.
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
        """Compile the constraint, start one generation per choice (output), and wait for the first event of each.

        An uncached grammar (constraint that must be compiled) may have to wait for other uncached grammars of its
        tenant. Its compilation starts at most 10 ms before the calls to model replicas. A cached grammar does not wait
        for a compiler.

        `ApiError` is raised if a compiler or a replica rejects the request, (429) if the constraint would wait too long
        for its compilation, or (408) if the deadline passes. All calls are then canceled. They are also canceled if
        this call is canceled (`asyncio.CancelledError`).

        Args:
            request: Generation request as plain data (`gpu_workers.request.GenerationRequest`); not changed.
            grammar: The constraint. None: free text.
            tenant: Name of the tenant (client) that has sent the request.
            choices: Number of outputs that are generated in parallel.
            thoughts: Limit on reasoning tokens. None: no limit.
            new_grammars: The tenant's own limit on uncached grammars in progress, in all routers together. None: only
                the limit of the constructor applies.
            deadline: Time limit of the whole generation. None: the limit is `timeout_s` of `request`, from now on.

        Returns:
            The running generation. Its constraint is compiled, and it has the first event of each choice. The caller
            must close it.
        """
        deadline, started = deadline or Deadline(request.get("timeout_s"), "timeout_s"), time.monotonic()
        key = None if grammar is None else grammar.key
        async with deadline.bounds(), self._new_grammars.turn(tenant, key, new_grammars, deadline.left):
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
        if grammar is not None and known is not None:  # a compiler has checked before that it is the tenant's
            grammar = dataclasses.replace(grammar, only_own=False)
        compiled = asyncio.create_task(self._compile(grammar, tenant, request.get("traceparent", ""), is_new))
        events: list[AsyncGenerator[Event, None]] = []
        first: list[asyncio.Future[Event]] = []
        try:
            if is_new:
                await asyncio.wait((compiled,), timeout=HEAD_START_S)
            _, artifact = compiled.result() if compiled.done() else (None, None)
            if grammar is not None:
                named = {"key": grammar.key, "specification": grammar.specification, "tenant": tenant}
                request = {**request, "grammar": {**named, "artifact": artifact}}
            for index in range(choices):
                choice = {**request, "choice_index": index, "tenant": tenant}
                events.append(self._events(choice, thoughts, deadline))
                first.append(asyncio.ensure_future(anext(events[-1])))
            calls: list[asyncio.Future[Any]] = [compiled, *first] if known is None else [*first]
            done, _ = await asyncio.wait(calls, return_when=asyncio.FIRST_EXCEPTION)
            # The compiler's error is more precise than the replica's, which may arrive earlier.
            if is_new and any(_is_about_grammar(call.exception()) for call in first if call in done):
                await asyncio.wait([compiled])
            for call in calls:
                if call.done():
                    call.result()
            answer = _answer(compiled, known)
            told = None if grammar is None or answer is None else _in_the_words_of(grammar, answer)
            return Generation([call.result() for call in first], events, told)
        except BaseException:
            await cancelled((*first, compiled))
            for one in events:
                await one.aclose()
            raise

    async def reports(self) -> list[list[dict[str, Any]] | None]:
        """Return the reports (figures for the status page) of all compilers and of all model replicas.

        Returns:
            Two items: a list of the results of `GrammarCompiler.report`, and a list of the results of
            `ModelReplica.report`. A replica whose call fails is missing in the list. If a replica does not respond
            within 3 s, None takes the place of the list of its deployment.
        """
        return list(await asyncio.gather(*map(_reports, (self._compiler, self._replica))))

    async def report_held_back(self) -> None:
        """Send every compiler the number of uncached grammars (constraints) that wait in this router, for autoscaling.

        Failures are ignored, because the next report follows within seconds. Zero is not sent, because compilers drop
        old numbers by themselves.
        """
        waiting = self._new_grammars.waiting
        if not waiting:
            return
        with contextlib.suppress(Exception):
            call = self._compiler.broadcast("report_held_back", self._id, waiting)
            await call.results_async(timeout_s=REPORT_TIMEOUT_S, return_exceptions=True)

    async def compiler_info(self) -> dict[str, Any]:
        """Return the inputs of grammar keys (hashes of constraints) that are equal for all constraints.

        Returns:
            A dictionary with `vocabulary_fingerprint` (hash of the model's vocabulary, as text) and `options` (fields
            of `GrammarOptions`).
        """
        return await self._retried(COMPILER, lambda: self._compiler.info.remote())

    async def replica_info(self, *template_arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the properties of the served model, from one model replica.

        Args:
            template_arguments: Sets of variables of the chat template, each a dictionary. For each set, the result has
                the text that the template adds before a response.

        Returns:
            The result of `ModelReplica.info`: a dictionary with `max_model_len` (in tokens), `chat_template` (source,
            or None) and `generation_prompts` (one text for each item of `template_arguments`).
        """
        return await self._retried(REPLICA, lambda: self._replica.info.remote(list(template_arguments)))

    async def tokenize(self, request: dict[str, Any]) -> dict[str, Any]:
        """Tokenize a text or a conversation in a model replica.

        `ApiError` is raised if the replica rejects the request.

        Args:
            request: Fields of `gpu_workers.request.TokenizeRequest` as plain data.

        Returns:
            A dictionary with `count` (number of tokens), `tokens` (IDs), `token_strs` (names of the tokens; None unless
            requested) and `max_model_len` (maximum length of prompt and output in tokens).
        """
        return _accepted(await self._retried(REPLICA, lambda: self._replica.tokenize.remote(request)))

    async def detokenize(self, tokens: list[int], tenant: str) -> dict[str, Any]:
        """Convert token IDs to text in a model replica. `ApiError` 400 is raised if an ID does not exist.

        Args:
            tokens: Token IDs.
            tenant: Name of the tenant (client) that has sent the request.

        Returns:
            The dictionary `{"prompt": text}`.
        """
        return _accepted(await self._retried(REPLICA, lambda: self._replica.detokenize.remote(tokens, tenant)))

    async def compile(self, grammar: Grammar, tenant: str) -> dict[str, Any]:
        """Compile a constraint, unless the store already has the compiled grammar.

        `ApiError` 400 is raised if the constraint is rejected. `ApiError` 404 is raised if `grammar` has only a key,
        and no compiled grammar has this key.

        Args:
            grammar: The constraint, with its key.
            tenant: Name of the tenant (client) in whose queue the compilation waits.

        Returns:
            The response of `GrammarCompiler.compile`: a dictionary with the status `ready`. Its field `unenforced` has
            one dictionary (fields of `Unenforced`) for each schema keyword that is not enforced.
        """
        answer, _ = await self._compiled(grammar, tenant)
        return _in_the_words_of(grammar, answer)

    async def _compiled(
        self, grammar: Grammar, tenant: str, traceparent: str = "", with_artifact: bool = False
    ) -> tuple[dict[str, Any], bytes | None]:
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
        """Return the status of a grammar (compiled constraint). Nothing is compiled.

        Args:
            key: Grammar key.
            tenant: Name of the tenant (client) that requests the status.
            administrator: True: the grammars of all tenants are visible. False: the status of a grammar of another
                tenant is `unknown`.

        Returns:
            The result of `GrammarCompiler.status`: a dictionary with `key`, `status` (`unknown`, `queued`, `compiling`,
            `ready` or `refused`) and details of a ready or rejected grammar.
        """
        return await self._retried(COMPILER, lambda: self._compiler_of(key).status.remote(key, tenant, administrator))

    async def discard_grammar(self, key: str, tenant: str, administrator: bool) -> dict[str, Any]:
        """Delete a compiled grammar, or the cached rejection of a constraint.

        Args:
            key: Grammar key.
            tenant: Name of the tenant (client) that requests the deletion.
            administrator: True: the grammars of all tenants may be deleted. False: only grammars of `tenant`.

        Returns:
            The status before the deletion: a dictionary with `key` and `status`, as from `grammar_status`. Only `ready`
            and `refused` mean that something was deleted. If the tenant may not delete the grammar, the status is
            `forbidden` for a compiled grammar, otherwise `unknown`.
        """
        handle = self._compiler_of(key)
        before = await self._retried(COMPILER, lambda: handle.discard.remote(key, tenant, administrator))
        if before["status"] != "forbidden":
            self._new_grammars.forget(key)
        return before

    def _compiler_of(self, key: str) -> DeploymentHandle:
        # Consistent hashing of the session ID always sends one key to the same compiler.
        return self._compiler.options(session_id=key)

    async def _compile(
        self, grammar: Grammar | None, tenant: str, traceparent: str, with_artifact: bool
    ) -> tuple[dict[str, Any] | None, bytes | None]:
        if grammar is None:
            return None, None
        answer, artifact = await self._compiled(grammar, tenant, traceparent, with_artifact)
        fields = {"grammar_key": grammar.key, "tenant": tenant, "grammar_source": answer["source"]}
        logger.info("generation started under a grammar: key=%s source=%s", grammar.key, answer["source"], extra=fields)
        return answer, artifact

    async def _events(
        self, request: dict[str, Any], thoughts: ThoughtsLimit | None, deadline: Deadline
    ) -> AsyncGenerator[Event, None]:
        generate = functools.partial(self._events_of_replicas, deadline=deadline)
        with self._new_grammars.served(request["tenant"]):
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
    """Return the compiler's response, or the earlier response `known` if there is no new one."""
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
