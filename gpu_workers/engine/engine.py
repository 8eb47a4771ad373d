"""The native engine: an asyncio interface to one thread that runs the batch step by step (`step_loop`).

The event loop and the thread share an inbox for messages to the thread, and one output stream per generation.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial

from gpu_workers.config import EngineConfig
from gpu_workers.engine.messages import Add, Close, Constrain, End, Message
from gpu_workers.engine.step_loop import StepLoop
from gpu_workers.guided.automaton_view import add_surroundings
from gpu_workers.guided.masks import ForbiddenTokenError
from gpu_workers.inference_engine import InferenceEngine, in_turn, too_late
from gpu_workers.model.loader import LoadedModel
from gpu_workers.output import GenerationOutput, OutputStream
from gpu_workers.request import GenerationRequest, GrammarReference, RequestError
from gpu_workers.sampling.beam_search import beam_search
from gpu_workers.sequence.drafts import Drafter
from gpu_workers.sequence.particles import sample_conditionally
from gpu_workers.sequence.sequence import Sequence
from gpu_workers.speculative.logits_drafter import LogitsDrafter
from grammar_workers import TokenFSM
from grammar_workers.logs import get_logger

logger = get_logger(__name__)

_FAILED_STEPS_UNHEALTHY = 3

# Seconds for which a prompt waits for its grammar.
#
# If the grammar arrives in time, the text that it forces is computed in the same forward pass as the prompt, and is
# sent before that pass.
GRAMMAR_HEAD_START_S = 0.01


class Engine(InferenceEngine):
    """The native engine: serves many concurrent generations of one model.

    The constructor starts the engine thread.

    Args:
        loaded: The model with its tokenizer and KV cache.
        config: Settings of the engine.
        fetch_grammar: Coroutine function that takes the `GrammarReference` of a request and returns its automaton.
        draft_model: Drafter that computes logits (a draft model or an EAGLE-3 head); None if there is none.

    Attributes:
        step_loop: The engine thread.
        scheduler: Queue of waiting sequences, and running sequences.
        pool: The KV cache.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        config: EngineConfig,
        fetch_grammar: Callable[[GrammarReference], Awaitable[TokenFSM]],
        draft_model: LogitsDrafter | None = None,
    ) -> None:
        super().__init__(
            loaded.tokenizer,
            loaded.vocabulary,
            loaded.head.token_limit,
            loaded.max_model_len,
            fetch_grammar,
            config.grammar_timeout_s,
        )
        self._config = config
        self.step_loop = StepLoop(loaded, config, draft_model)
        self.statistics = self.step_loop.statistics
        self.scheduler = self.step_loop.scheduler
        self.rejection_masses = self.step_loop.rejection_meter.masses
        self.grammar_waits = self.step_loop.grammar_waits
        self.pool = loaded.pool
        self.step_loop.start()

    @property
    def running(self) -> int:
        """Number of sequences that hold a slot of the KV cache."""
        return len(self.scheduler.running)

    @property
    def waiting(self) -> int:
        """Number of sequences that wait for a slot of the KV cache."""
        return len(self.scheduler.waiting)

    async def _outputs(self, request: GenerationRequest) -> AsyncGenerator[GenerationOutput, None]:
        """Stream the output of one request. RequestError is raised only before the first output."""
        if request.adapter is not None:
            raise RequestError("this engine has no adapters", code="model_not_found", status=404, param="model")
        prompt = await self._encode(request)
        if request.sampling.beam_search is not None or request.sampling.conditional_sampling is not None:
            yield await self._search(request, prompt)
            return
        async with contextlib.aclosing(self._stream(request, prompt)) as outputs:
            async for output in outputs:
                yield output

    async def _stream(self, request: GenerationRequest, prompt: list[int]) -> AsyncGenerator[GenerationOutput, None]:
        """Stream one sequence's output. RequestError: before the first output, or at any time in a search."""
        with contextlib.ExitStack() as ending:
            interval_s = 0 if request.sampling.probe else self._config.stream_interval_ms / 1000
            stream = OutputStream(len(prompt), self.step_loop.outbox, interval_s)
            sequence = Sequence(request, prompt, self.vocabulary, self.max_model_len, stream, self._new_drafter())
            if request.grammar is None:
                sequence.replay(None)
                self._enter(sequence)
            else:
                grammar = asyncio.create_task(self._constraint(sequence, request.grammar))
                ending.callback(grammar.cancel)
                await asyncio.wait((grammar,), timeout=GRAMMAR_HEAD_START_S)
                self._enter(sequence)
                self._constrain(grammar)
            ending.callback(self._tell, End(sequence))
            if request.timeout_s is not None:
                deadline = stream.loop.call_later(request.timeout_s, self._tell, End(sequence, too_late(request)))
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
        """Check that the engine can serve requests.

        Raises:
            RuntimeError: The engine thread has ended, or at least the last three steps have failed.
        """
        if not self.step_loop.is_alive():
            raise RuntimeError("the engine thread has ended")
        if self.step_loop.failed_steps >= _FAILED_STEPS_UNHEALTHY:
            raise RuntimeError(f"the last {self.step_loop.failed_steps} steps of the engine failed")

    def close(self) -> None:
        """End every generation with an error (code `unavailable`). Blocks until the engine thread has ended."""
        self._tell(Close())
        self.step_loop.join()

    async def _search(self, request: GenerationRequest, prompt: list[int]) -> GenerationOutput:
        """Return the output of a request that several generations serve. RequestError is raised if there is none."""
        conditional, room = request.sampling.conditional_sampling, self.max_model_len - len(prompt)
        # Other requests need the remaining slots: a generation that waits for its grammar may hold a slot for long.
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
        if not config.num_speculative_tokens or not (config.forced_text or config.prompt_lookup_max):
            return None
        return Drafter(config)

    def _constrain(self, grammar: asyncio.Task[Message]) -> None:
        """Send the result of `_constraint` to the engine thread.

        A result that is ready now is there for the first step.
        """
        if not grammar.done():
            grammar.add_done_callback(self._constrain)
        elif not grammar.cancelled():
            self._tell(grammar.result())

    async def _constraint(self, sequence: Sequence, grammar: GrammarReference) -> Message:
        """Return a message with the grammar of a sequence, after a replay of its earlier tokens, or with the error."""
        try:
            sequence.times.note("fetching")
            fsm = await self._automaton(grammar)
            sequence.times.note("fetched")
            request = sequence.request
            if request.emitted_token_ids or request.begun_text or request.sampling.finish_within_budget:
                replayed = await in_turn(self._threads, request.tenant, sequence.replay, fsm)  # may take long
                return Constrain(sequence, fsm, replayed)
            return Constrain(sequence, fsm, sequence.replay(fsm))
        except RequestError as error:
            return End(sequence, error)
        except ForbiddenTokenError as error:
            return End(sequence, RequestError(f"cannot resume: {error}", code="invalid_resume"))
        except Exception:
            logger.exception(
                "fetching a grammar failed: request_id=%s key=%s", sequence.request.request_id, grammar.key
            )
            return End(sequence, RequestError("fetching the grammar failed", code="internal_error", status=500))

    def _enter(self, sequence: Sequence) -> None:
        """Queue `sequence`. RequestError is raised if the queue is full; generations of a search are not limited."""
        if not sequence.request.sampling.probe:
            self._check_queue()
        self.step_loop.inbox.send(Add(sequence))

    def _check_queue(self) -> None:
        if self.waiting >= self._config.max_waiting:
            message = f"{self._config.max_waiting} generations are waiting already; try again later"
            raise RequestError(message, code="server_full", status=429)

    def _tell(self, message: Message) -> None:
        """Send a message. It is dropped if the engine thread has ended."""
        with contextlib.suppress(RequestError):
            self.step_loop.inbox.send(message)
