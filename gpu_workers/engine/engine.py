"""The engine: one thread that steps the batch (`step_loop`), and the asyncio surface around it.

Nothing is shared between the two but an inbox (in) and a stream per generation (out).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial

from gpu_workers.config import EngineConfig
from gpu_workers.engine.messages import Add, Cancel, Close, Constrain, Fail, Message
from gpu_workers.engine.step_loop import StepLoop
from gpu_workers.guided.automaton_view import add_surroundings
from gpu_workers.guided.masks import ForbiddenTokenError
from gpu_workers.inference_engine import counted, in_turn, too_late
from gpu_workers.model.loader import LoadedModel
from gpu_workers.model.prompt import PromptEncoder
from gpu_workers.output import GenerationOutput, OutputStream
from gpu_workers.request import GenerationRequest, GrammarReference, RequestError
from gpu_workers.sampling.beam_search import beam_search
from gpu_workers.sequence.drafts import Drafter
from gpu_workers.sequence.particles import sample_conditionally
from gpu_workers.sequence.sequence import Sequence
from gpu_workers.speculative.logits_drafter import LogitsDrafter
from grammar_workers import TokenFSM
from grammar_workers.logs import get_logger
from grammar_workers.service.tenant_threads import TenantThreads

logger = get_logger(__name__)

_FAILED_STEPS_UNHEALTHY = 3

GRAMMAR_HEAD_START_S = 0.01
"""So long a prompt waits for its grammar: the text that the grammar forces is then computed in the same pass, and sent
before it."""


class Engine:
    """One model that many generations share; every one of them ends with exactly one terminal output.

    `fetch_grammar` resolves a grammar key to its TokenFSM, once per request, off the engine thread.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        config: EngineConfig,
        fetch_grammar: Callable[[GrammarReference], Awaitable[TokenFSM]],
        draft_model: LogitsDrafter | None = None,
    ) -> None:
        self.tokenizer = loaded.tokenizer
        self.vocabulary = loaded.vocabulary
        self.max_length = loaded.max_length
        self._token_limit = loaded.head.token_limit
        self._prompts = PromptEncoder(
            loaded.tokenizer,
            token_limit=self._token_limit,
            max_length=loaded.max_length,
            longest_token=loaded.vocabulary.longest_token,
        )
        self.tokenizing = TenantThreads("tokenize", may_end=True)
        self._threads = TenantThreads("grammar")
        self._config = config
        self._fetch_grammar = fetch_grammar
        self.step_loop = StepLoop(loaded, config, draft_model)
        self.statistics = self.step_loop.statistics
        self.scheduler = self.step_loop.scheduler
        self.rejection_masses = self.step_loop.rejection_meter.masses
        self.grammar_waits = self.step_loop.grammar_waits
        self.pool = loaded.pool
        self.step_loop.start()

    @property
    def running(self) -> int:
        return len(self.scheduler.running)

    @property
    def waiting(self) -> int:
        return len(self.scheduler.waiting)

    def generate(self, request: GenerationRequest) -> AsyncGenerator[GenerationOutput, None]:
        """Streams one output. The last item, and no other, has a `finish_reason`; closing the iterator cancels."""
        return counted(self._outputs(request), self.statistics)

    async def _outputs(self, request: GenerationRequest) -> AsyncGenerator[GenerationOutput, None]:
        """`generate`. Raises RequestError where nothing has been generated."""
        if request.adapter is not None:
            raise RequestError("this engine has no adapters", code="model_not_found", status=404, param="model")
        request.sampling.check_token_ids(self._token_limit)
        prompt = await in_turn(self.tokenizing, request.tenant, self._prompts.encode, request)
        if request.sampling.beam_search is not None or request.sampling.conditional_sampling is not None:
            yield await self._search(request, prompt)
            return
        async with contextlib.aclosing(self._stream(request, prompt)) as outputs:
            async for output in outputs:
                yield output

    async def _stream(self, request: GenerationRequest, prompt: list[int]) -> AsyncGenerator[GenerationOutput, None]:
        """`generate` by one sequence. Raises RequestError before its first output, and for a part of a search."""
        with contextlib.ExitStack() as ending:
            interval_s = 0 if request.sampling.probe else self._config.stream_interval_ms / 1000
            stream = OutputStream(len(prompt), self.step_loop.outbox, interval_s)
            sequence = Sequence(request, prompt, self.vocabulary, self.max_length, stream, self._new_drafter())
            if request.grammar is None:
                sequence.replay(None)
                self._enter(sequence)
            else:
                grammar = asyncio.create_task(self._constraint(sequence, request.grammar))
                ending.callback(grammar.cancel)
                await asyncio.wait((grammar,), timeout=GRAMMAR_HEAD_START_S)
                self._enter(sequence)
                self._constrain(grammar)
            ending.callback(self._tell, Cancel(sequence))
            if request.timeout_s is not None:
                deadline = stream.loop.call_later(request.timeout_s, self._tell, Fail(sequence, too_late(request)))
                ending.callback(deadline.cancel)
            finished = False
            while not finished:
                output = await stream.next()
                if request.sampling.diagnostics and sequence.constraint is not None:
                    arguments = output.reports, sequence.constraint.fsm, self.vocabulary
                    await in_turn(self._threads, request.tenant, add_surroundings, *arguments)
                if output.error is not None and request.sampling.probe:
                    raise RequestError(**output.error)
                finished = output.finish_reason is not None
                output.spans = sequence.times.spans() if finished else []
                yield output

    def check_health(self) -> None:
        """Raises RuntimeError when the engine cannot serve any more."""
        if not self.step_loop.is_alive():
            raise RuntimeError("the engine thread has ended")
        if self.step_loop.failed_steps >= _FAILED_STEPS_UNHEALTHY:
            raise RuntimeError(f"the last {self.step_loop.failed_steps} steps of the engine failed")

    def close(self) -> None:
        """Ends every generation with an error event and the engine thread with them."""
        self._tell(Close())
        self.step_loop.join()

    async def _search(self, request: GenerationRequest, prompt: list[int]) -> GenerationOutput:
        """The output of a request that several generations serve. Raises RequestError where there is none."""
        conditional, room = request.sampling.conditional_sampling, self.max_length - len(prompt)
        # Others have the rest: a generation that waits for its grammar may hold a slot for long.
        if conditional is not None and conditional.particles > (most := max(1, self.pool.slots // 2)):
            message = f"conditional_sampling.particles: at most {most} on this server, half of its engine's slots"
            raise RequestError(message, code="too_many_particles", param="conditional_sampling.particles")
        self._check_queue()
        part = request.model_copy(update={"timeout_s": None})
        generate = partial(self._stream, prompt=prompt)
        try:
            async with asyncio.timeout(request.timeout_s), asyncio.TaskGroup() as tasks:
                if conditional is not None:
                    output = await sample_conditionally(part, generate, tasks, self.vocabulary)
                else:
                    max_tokens = min(request.sampling.max_tokens or room, room)
                    output = await beam_search(part, generate, tasks, self.vocabulary, max_tokens)
        except TimeoutError:
            raise too_late(request) from None
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        output.prompt_tokens = len(prompt)
        return output

    def _new_drafter(self) -> Drafter | None:
        config = self._config
        if not config.max_drafts or not (config.forced_text or config.ngram):
            return None
        return Drafter(cost=config.draft_cost, limit=config.max_drafts, ngram=config.ngram)

    def _constrain(self, grammar: asyncio.Task[Message]) -> None:
        """Tells the engine thread what `_constraint` has found: now if it has, for the sequence's first step."""
        if not grammar.done():
            grammar.add_done_callback(self._constrain)
        elif not grammar.cancelled():
            self._tell(grammar.result())

    async def _constraint(self, sequence: Sequence, grammar: GrammarReference) -> Message:
        """The grammar of a sequence, or why there is none."""
        try:
            async with asyncio.timeout(self._config.grammar_timeout_s):
                sequence.times.note("fetching")
                fsm = await self._fetch_grammar(grammar)
                sequence.times.note("fetched")
            request = sequence.request
            if request.emitted_token_ids or request.begun_text or request.sampling.finish_within_budget:
                replayed = await in_turn(self._threads, request.tenant, sequence.replay, fsm)  # may take long
                return Constrain(sequence, fsm, replayed)
            return Constrain(sequence, fsm, sequence.replay(fsm))
        except RequestError as error:
            return Fail(sequence, error)
        except TimeoutError:
            text = f"the grammar did not arrive within {self._config.grammar_timeout_s:g} s"
            return Fail(sequence, RequestError(text, code="grammar_timeout", status=503))
        except ForbiddenTokenError as error:
            return Fail(sequence, RequestError(f"cannot resume: {error}", code="invalid_resume"))
        except Exception:
            logger.exception("request %s: fetching grammar %s failed", sequence.request.request_id, grammar.key)
            return Fail(sequence, RequestError("fetching the grammar failed", code="internal_error", status=500))

    def _enter(self, sequence: Sequence) -> None:
        """Queues `sequence`. Raises RequestError when as many wait as may; the parts of a search wait beside them."""
        if not sequence.request.sampling.probe:
            self._check_queue()
        self.step_loop.inbox.send(Add(sequence))

    def _check_queue(self) -> None:
        if self.waiting >= self._config.max_waiting:
            message = f"{self._config.max_waiting} generations are waiting already; try again later"
            raise RequestError(message, code="server_full", status=429)

    def _tell(self, message: Message) -> None:
        """Sends what is of no effect once the engine thread has ended."""
        with contextlib.suppress(RequestError):
            self.step_loop.inbox.send(message)
