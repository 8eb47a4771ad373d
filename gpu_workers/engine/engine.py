"""The engine: one thread that steps the batch, and the asyncio surface around it.

Nothing is shared between the two but an inbox (in) and a stream per generation (out). A step, in words:

    take messages; give slots to waiting sequences; follow each sequence's grammar, append what it forces and retire
    what is complete; launch the model over what is pending and over drafts of what may follow; meanwhile tell what the
    last step drew, take messages and get ready for the draw; wait for the model; draw a token for every sequence that
    has its features and its mask, and again for those whose drafts came true.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import queue
import threading
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

import torch
from torch import Tensor

from gpu_workers.config import EngineConfig
from gpu_workers.device_step.plan import DevicePlan, Drawn, device_step
from gpu_workers.engine.overlap import Launch, launching, when_awaited
from gpu_workers.engine.scheduler import Scheduler, StepPlan
from gpu_workers.engine.sequence import Sequence
from gpu_workers.guided.automaton_view import add_surroundings
from gpu_workers.guided.forced_text import ForcedTextFinder
from gpu_workers.guided.mask_loss import RejectionMeter
from gpu_workers.guided.masks import Constraint, ForbiddenTokenError, MaskReader
from gpu_workers.messages import Add, Cancel, Close, Constrain, Fail, Message, Wake
from gpu_workers.model.loader import LoadedModel
from gpu_workers.model.prompt import PromptEncoder
from gpu_workers.output import FinishReason, GenerationOutput, Outbox, OutputStream
from gpu_workers.request import GenerationRequest, GrammarReference, RequestError
from gpu_workers.sampling.beam_search import beam_search
from gpu_workers.sampling.logprobs import reports
from gpu_workers.sampling.sampler import Draw, Prepared, Sampler
from gpu_workers.speculative.draft_model import DraftModel
from gpu_workers.speculative.drafts import Drafter
from grammar_workers import GrammarError, TokenFSM

logger = logging.getLogger(__name__)

_FAILED_STEPS_UNHEALTHY = 3


@dataclass(slots=True)
class Statistics:
    """Counters since the start. Written by the engine thread.

    Output tokens are `sampled_tokens`, drawn from features, `masks` of them under a mask, and `forced_tokens`, appended
    without; of `drafted_tokens` in forward passes, `accepted_tokens` saved a pass each.
    """

    steps: int = 0
    fed_tokens: int = 0
    sampled_tokens: int = 0
    masks: int = 0
    forced_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    ended: dict[FinishReason, int] = field(default_factory=lambda: dict.fromkeys(get_args(FinishReason), 0))


@dataclass(frozen=True, slots=True)
class Batch:
    """What is to be drawn, as it was when the step was in flight; sequences change, a draw never does."""

    draws: dict[Sequence, Draw]
    prepared: Prepared


class Engine:
    """Continuous batching on one model.

    `fetch_grammar` resolves a grammar key to its TokenFSM, once per request, off the engine thread.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        config: EngineConfig,
        fetch_grammar: Callable[[GrammarReference], Awaitable[TokenFSM]],
        draft_model: DraftModel | None = None,
    ) -> None:
        self.statistics = Statistics()
        self.pool = loaded.pool
        self.scheduler = Scheduler(
            loaded.pool,
            step_tokens=config.step_tokens,
            prefill_chunk=config.prefill_chunk,
            shortest_prefix=config.shortest_prefix,
            patience=config.preempt_patience,
        )
        self.sampler = Sampler(loaded.head, loaded.pool.device)
        self._runner = loaded.runner
        self._vocabulary = loaded.vocabulary
        self._token_limit = loaded.head.token_limit
        self._max_length = loaded.max_length
        self._prompts = PromptEncoder(
            loaded.tokenizer, token_limit=loaded.head.token_limit, max_length=loaded.max_length
        )
        self._config = config
        self._fetch_grammar = fetch_grammar
        self._draft_model = draft_model
        self._device_step = device_step(loaded, config)
        self._inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._outbox = Outbox()
        self._mask_threads = concurrent.futures.ThreadPoolExecutor(config.slots, thread_name_prefix="masks")
        self._masks = MaskReader(
            self._mask_threads,
            loaded.vocabulary.eos_token_ids,
            config.sparse_limit,
            wake=lambda: self._inbox.put(Wake()),
            finder=ForcedTextFinder(loaded.vocabulary, loaded.encode) if config.forced_text else None,
        )
        self._live: set[Sequence] = set()
        self._late: set[concurrent.futures.Future[Any]] = set()
        self.rejection_meter = RejectionMeter(loaded.head, config.rejection_mass_interval)
        # Samples that nobody has fetched yet; the engine thread appends, one reader pops.
        self.grammar_waits: deque[float] = deque(maxlen=1024)
        self._failed_steps = 0
        self._progressed = False
        self._launch: Launch = when_awaited
        self._in_flight = False
        self._ended_in_flight: list[tuple[Sequence, bool]] = []
        self._stopping = False
        self._closed = False
        self._closing = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    # -- asyncio side ------------------------------------------------------------------------------------------------

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[GenerationOutput, None]:
        """Streams one output. The last item, and no other, has a `finish_reason`; closing the iterator cancels."""
        try:
            request.sampling.check_token_ids(self._token_limit)
            prompt_token_ids = await asyncio.to_thread(self._prompts.encode, request)
            if request.sampling.beam_search is not None:
                async with contextlib.aclosing(self._search(request, prompt_token_ids)) as found:
                    async for output in found:
                        yield output
                return
            stream = OutputStream(len(prompt_token_ids), self._outbox, self._config.stream_interval_ms / 1000)
            sequence = Sequence(
                request, prompt_token_ids, self._vocabulary, self._max_length, stream, self._new_drafter()
            )
            if request.grammar is None:
                sequence.replay(None)
            self._enter(sequence)
        except RequestError as error:
            yield GenerationOutput(finish_reason="error", error=error.to_dict())
            return
        grammar = None if request.grammar is None else asyncio.create_task(self._constrain(sequence, request.grammar))
        deadline = None
        if request.timeout_s is not None:
            deadline = stream.loop.call_later(request.timeout_s, self._expire, sequence)
        try:
            finished = False
            while not finished:
                output = await stream.next()
                if request.sampling.diagnostics and sequence.constraint is not None:
                    await asyncio.to_thread(add_surroundings, output.reports, sequence.constraint.fsm, self._vocabulary)
                finished = output.finish_reason is not None
                yield output
        finally:
            if grammar is not None:
                grammar.cancel()
            if deadline is not None:
                deadline.cancel()
            with contextlib.suppress(RequestError):
                self._send(Cancel(sequence))

    def _search(self, request: GenerationRequest, prompt: list[int]) -> AsyncGenerator[GenerationOutput, None]:
        room = self._max_length - len(prompt)
        max_tokens = min(request.sampling.max_tokens or room, room)
        return beam_search(request, prompt, self.generate, self._vocabulary, max_tokens)

    def _new_drafter(self) -> Drafter | None:
        config = self._config
        if not config.max_drafts or not (config.forced_text or config.ngram):
            return None
        return Drafter(cost=config.draft_cost, limit=config.max_drafts, ngram=config.ngram)

    def check_health(self) -> None:
        """Raises RuntimeError when the engine cannot serve any more."""
        if not self._thread.is_alive():
            raise RuntimeError("the engine thread has ended")
        if self._failed_steps >= _FAILED_STEPS_UNHEALTHY:
            raise RuntimeError(f"the last {self._failed_steps} steps of the engine failed")

    def close(self) -> None:
        """Ends every generation with an error event and the engine thread with them."""
        with contextlib.suppress(RequestError):
            self._send(Close())
        self._thread.join()

    async def _constrain(self, sequence: Sequence, grammar: GrammarReference) -> None:
        try:
            async with asyncio.timeout(self._config.grammar_timeout_s):
                fsm = await self._fetch_grammar(grammar)
            # Off the engine thread: a resumed output may be long.
            state = await asyncio.to_thread(sequence.replay, fsm)
            message: Message = Constrain(sequence, fsm, state)
        except RequestError as error:
            message = Fail(sequence, error)
        except TimeoutError:
            text = f"the grammar did not arrive within {self._config.grammar_timeout_s:g} s"
            message = Fail(sequence, RequestError(text, code="grammar_timeout", status=503))
        except ForbiddenTokenError as error:
            message = Fail(sequence, RequestError(f"cannot resume: {error}", code="invalid_resume"))
        except Exception:
            logger.exception("request %s: fetching grammar %s failed", sequence.request.request_id, grammar.key)
            message = Fail(sequence, RequestError("fetching the grammar failed", code="internal_error", status=500))
        with contextlib.suppress(RequestError):
            self._send(message)

    def _enter(self, sequence: Sequence) -> None:
        """Queues `sequence`. Raises RequestError when as many wait as may."""
        if len(self.scheduler.waiting) >= self._config.max_waiting:
            message = f"{self._config.max_waiting} generations are waiting already; try again later"
            raise RequestError(message, code="server_full", status=429)
        self._send(Add(sequence))

    def _expire(self, sequence: Sequence) -> None:
        message = f"the output was not complete within {sequence.request.timeout_s:g} s"
        with contextlib.suppress(RequestError):
            self._send(Fail(sequence, RequestError(message, code="deadline_exceeded", status=408, param="timeout_s")))

    def _send(self, message: Message) -> None:
        with self._closing:
            if self._closed:
                raise RequestError("the engine has shut down", code="unavailable", status=503)
            self._inbox.put(message)

    # -- engine thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        if self._config.threads is not None:
            torch.set_num_threads(self._config.threads)
        try:
            with launching(self.pool.device, self._config.overlap) as self._launch:
                while not self._stopping:
                    if not self._progressed:
                        self._outbox.deliver()
                    self._take_messages(wait=not self._progressed)
                    try:
                        self._step()
                    except Exception:
                        self._fail_step()
        finally:
            self._shut_down()

    def _step(self) -> None:
        self._progressed = False
        self.scheduler.admit()
        self._follow_grammars(self.scheduler.running)
        self._propose()
        plan = self.scheduler.plan()
        batch = self._fly(plan)
        sampled = self._sample(self.scheduler.running, batch)
        while sampled:
            self._follow_grammars(sampled)
            sampled = self._sample(sampled)
        if not self._progressed:
            self._progressed = self.scheduler.make_room()

    def _fly(self, plan: StepPlan) -> Batch:
        """Runs the model; the host's work for the steps before and after it is done meanwhile."""
        if not plan.feeds:
            return self._meanwhile(plan, {})
        device_plan = None
        if self._device_step is not None and plan.decode:
            device_plan = self._device_step.plan(
                plan, self.rejection_meter.wanted(plan.sequences, self.statistics.steps)
            )
        wait = self._launch(lambda: self._forward(plan, device_plan))
        self._in_flight = True
        try:
            batch = self._meanwhile(plan, {} if device_plan is None else device_plan.drawing)
        finally:
            features = wait()
        self.scheduler.commit(plan)
        self._land()
        self._keep(features, plan, {} if device_plan is None else device_plan.drawn())
        return batch

    def _forward(self, plan: StepPlan, device_plan: DevicePlan | None) -> Tensor:
        """The step's features; with a device plan its decode rows go through the static step."""
        if self._device_step is None or device_plan is None:
            return self._runner.forward(plan.decode, plan.chunks)
        features = self._device_step.run(device_plan)
        return torch.cat([features, self._runner.forward([], plan.chunks)]) if plan.chunks else features

    def _meanwhile(self, plan: StepPlan, drawing: Container[Sequence]) -> Batch:
        """Between launch and landing: sequences may end, but their slots stay theirs.

        Those in `drawing` will come back with their tokens.
        """
        self._outbox.deliver()
        self._take_messages(wait=False)
        draws: dict[Sequence, Draw] = {}
        wanted = [sequence for sequence, feed in zip(plan.sequences, plan.feeds, strict=True) if feed.wanted] + [
            sequence for sequence in self.scheduler.running if sequence.features is not None
        ]
        for sequence in wanted:
            if sequence in self._live and sequence not in drawing:
                with self._row(sequence):
                    if (draw := sequence.draw()) is not None:
                        draws[sequence] = draw
        return Batch(draws, self.sampler.prepare(list(draws.values())))

    def _land(self) -> None:
        """Nothing writes to the pool any more: those that ended meanwhile leave their slots."""
        self._in_flight = False
        ended, self._ended_in_flight = self._ended_in_flight, []
        for sequence, keep in ended:
            self.scheduler.remove(sequence, keep=keep)

    def _take_messages(self, *, wait: bool) -> None:
        """Handles what is in the inbox; waits for something first if told so."""
        while True:
            try:
                message = self._inbox.get(block=wait)
            except queue.Empty:
                return
            wait = False
            self._progressed = True  # taken in the middle of a step, it is for the next one to act on
            match message:
                case Add(sequence):
                    self._live.add(sequence)
                    self.scheduler.add(sequence)
                case Constrain(sequence, fsm, state):
                    with self._row(sequence):
                        late_s = sequence.constrain(Constraint(fsm, state, self._masks.table(fsm)))
                        self.grammar_waits.append(late_s)
                case Fail(sequence, error):
                    self._end(sequence, "error", error)
                case Cancel(sequence):
                    self._end(sequence, "cancelled")
                case Close():
                    self._stopping = True
                    return

    def _propose(self) -> None:
        """Drafts for every sequence of the next step; the draft model's where there are no cheaper ones."""
        runnable = [sequence for sequence in self.scheduler.running if sequence.runnable]
        for sequence in runnable:
            sequence.propose()
        if self._draft_model is not None:
            self._draft_model.propose([one for one in runnable if not one.drafts and one.draft_room > 0])

    def _follow_grammars(self, sequences: Iterable[Sequence]) -> None:
        """Advances every state before any row is read, so that one FSM's sequences do not lock each other out."""
        for sequence in list(sequences):
            with self._row(sequence):
                sequence.catch_up()
        for sequence in list(sequences):
            with self._row(sequence):
                sequence.settle()
        self._wait_for_masks(sequences)
        for sequence in list(sequences):
            with self._row(sequence):
                sequence.settle()
                self.statistics.forced_tokens += sequence.append_forced()
                if sequence.finish_reason is not None:
                    self._end(sequence, sequence.finish_reason)

    def _keep(self, features: Tensor, plan: StepPlan, drawn: Mapping[Sequence, Drawn]) -> None:
        """Hands each sequence its rows of the step. A row that is not finite is that sequence's failure."""
        self._progressed = True
        self._failed_steps = 0
        self.statistics.steps += 1
        self.statistics.fed_tokens += sum(len(feed.token_ids) for feed in plan.feeds)
        self.statistics.drafted_tokens += sum(plan.drafts)
        finite = torch.isfinite(features).all(-1).tolist()
        first = 0
        for sequence, feed in zip(plan.sequences, plan.feeds, strict=True):
            last = first + feed.wanted
            if feed.wanted:
                sequence.receive(features[first:last], drawn.get(sequence, ()))
                if not all(finite[first:last]):
                    self._end(sequence, "error", RequestError("the model overflowed", code="not_finite", status=500))
            first = last

    def _sample(self, candidates: Iterable[Sequence], batch: Batch | None = None) -> list[Sequence]:
        """Draws a token for each candidate that is ready; returns those whose draft came true: they can go on.

        `batch`: draws made before the features were there. Whoever was not ready then joins them.
        """
        candidates = [sequence for sequence in candidates if sequence.features is not None]
        snapshots = {} if batch is None else batch.draws
        taken = self._take_drawn(candidates)
        candidates = [sequence for sequence in candidates if sequence not in taken]
        self._wait_for_masks(sequence for sequence in candidates if sequence not in snapshots)
        drawing: dict[Sequence, Draw] = {}
        for sequence in candidates:
            with self._row(sequence):
                if (draw := snapshots.get(sequence) or sequence.draw()) is not None:
                    drawing[sequence] = draw
        if drawing:
            self._draw(drawing, batch)
        self.statistics.sampled_tokens += len(drawing) + len(taken)
        self.statistics.masks += sum(sequence.constraint is not None for sequence in (*taken, *drawing))
        self._progressed |= bool(drawing or taken)
        going_on = [sequence for sequence in (*taken, *drawing) if sequence.features is not None]
        self.statistics.accepted_tokens += sum(not sequence.undecided for sequence in going_on)
        return going_on

    def _take_drawn(self, candidates: Iterable[Sequence]) -> dict[Sequence, int]:
        """Appends the next tokens that were drawn on the device, where sequences are ready for them."""
        taken = {sequence: token_id for sequence in candidates if (token_id := sequence.drawn) is not None}
        for sequence, token_id in taken.items():
            with self._row(sequence):
                sequence.append(token_id)
        return taken

    def _draw(self, drawing: dict[Sequence, Draw], batch: Batch | None) -> None:
        """Draws and appends a token each; `batch`: the same draws, if none has changed, prepared already."""
        if batch is None or drawing.keys() != batch.draws.keys():
            batch = Batch(drawing, self.sampler.prepare(list(drawing.values())))
        sequences, draws = list(batch.draws), list(batch.draws.values())
        features = torch.stack([sequence.features for sequence in sequences if sequence.features is not None])
        token_ids = self.sampler.finish(features, batch.prepared)
        told = reports(self.sampler.head, features, draws, token_ids)
        self.rejection_meter.measure(features, draws, self.statistics.steps)
        for sequence, token_id, report in zip(sequences, token_ids, told, strict=True):
            with self._row(sequence):
                sequence.append(token_id, report)

    def _wait_for_masks(self, sequences: Iterable[Sequence]) -> None:
        """Gives rows that are nearly read a moment, once; slow ones are left for a later step."""
        reading = {future for sequence in sequences if (future := sequence.reading) is not None}
        fresh = reading - self._late
        if fresh:
            concurrent.futures.wait(fresh, self._config.mask_patience_ms / 1000)
            self._late = {future for future in self._late | fresh if not future.done()}

    @contextlib.contextmanager
    def _row(self, sequence: Sequence) -> Iterator[None]:
        """An exception in here ends `sequence` and nothing else."""
        try:
            yield
        except GrammarError as error:  # the automaton has grown past a budget of the grammar's
            self._end(sequence, "error", RequestError(str(error), code=error.code))
        except Exception:
            logger.exception("request %s failed", sequence.request.request_id)
            self._end(sequence, "error", RequestError("the generation failed", code="internal_error", status=500))

    def _end(self, sequence: Sequence, reason: FinishReason, error: RequestError | None = None) -> None:
        """The one way out: frees the slot and sends the terminal event. Does nothing the second time."""
        if sequence not in self._live:
            return
        self._close_stream(sequence, reason, error)
        keep = reason != "error"  # after an error the slot may hold anything
        if self._in_flight:
            self._ended_in_flight.append((sequence, keep))
        else:
            self.scheduler.remove(sequence, keep=keep)
        self._progressed = True

    def _close_stream(self, sequence: Sequence, reason: FinishReason, error: RequestError | None) -> None:
        self._live.remove(sequence)
        self.statistics.ended[reason] += 1
        text = sequence.rest_of_text if reason in ("stop", "length") else ""
        sequence.stream.end(reason, text=text, error=None if error is None else error.to_dict())

    def _fail_step(self) -> None:
        """The whole step failed: whatever was in it ends; the engine goes on with what waits."""
        self._failed_steps += 1
        self._land()
        logger.exception("an engine step failed; %d sequences end", len(self.scheduler.running))
        for sequence in list(self.scheduler.running):
            self._end(sequence, "error", RequestError("the engine step failed", code="internal_error", status=500))

    def _shut_down(self) -> None:
        with self._closing:
            self._closed = True
        while not self._inbox.empty():
            if isinstance(message := self._inbox.get(), Add):
                self._live.add(message.sequence)
        # Slots are not freed: the device may be what failed, and nobody takes them any more.
        gone = RequestError("the engine has shut down", code="unavailable", status=503)
        for sequence in list(self._live):
            self._close_stream(sequence, "error", gone)
        self._outbox.deliver()
        self._mask_threads.shutdown(wait=False, cancel_futures=True)
        if self._device_step is not None:
            self._device_step.close()
