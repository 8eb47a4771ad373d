"""The engine thread: runs the batch step by step. A step has five phases, which repeat until the engine closes.

schedule   gives slots of the KV cache to waiting sequences; advances each sequence in its grammar, appends forced
           tokens (the only token allowed), ends complete sequences; proposes drafts; selects the tokens of the step
launch     starts the forward pass over these tokens
overlap    host work while the device works: delivers the tokens of the previous step, handles messages, prepares
           sampling
commit     after the pass: gives sequences their hidden states, frees the slots of sequences that ended meanwhile
sample     samples a token for every sequence that has a hidden state and a mask, and again after an accepted draft
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gpu_workers.config import EngineConfig
from gpu_workers.device_step.plan import DevicePlan, DeviceStep
from gpu_workers.engine.messages import Add, Close, Constrain, End, Inbox
from gpu_workers.engine.overlap import Launch, Wait, launching, when_awaited
from gpu_workers.engine.scheduler import GROUP_TOKENS, Scheduler, StepPlan
from gpu_workers.guided.forced_text import ForcedTextFinder
from gpu_workers.guided.mask_loss import RejectionMeter
from gpu_workers.guided.masks import Constraint, MaskReader
from gpu_workers.inference_engine import Statistics
from gpu_workers.model.loader import LoadedModel
from gpu_workers.output import FinishReason, GenerationOutput, Outbox
from gpu_workers.request import RequestError
from gpu_workers.sampling.logprobs import reports
from gpu_workers.sampling.sampler import Draw, Drawn, Prepared, Sampler
from gpu_workers.sequence.sequence import Sequence
from gpu_workers.speculative.logits_drafter import LogitsDrafter
from gpu_workers.transfers import HostCopy
from grammar_workers import GrammarError
from grammar_workers.logs import get_logger

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Pass:
    """A forward pass of the batch that has been launched.

    Attributes:
        plan: Tokens of each sequence in the pass.
        device: Plan of the decode sequences, if they run as a device step (`device_step`): the device can then mask and
            sample for them. None if `device_step` is off, or if there are no decode sequences.
        wait: Function that waits for the pass and returns its hidden states. It must be called exactly once.
    """

    plan: StepPlan
    device: DevicePlan | None
    wait: Wait


@dataclass(frozen=True, slots=True)
class Unread:
    """Results of a forward pass that the host has not read yet.

    Attributes:
        rows: The sequence of each hidden state. A sequence with k verified drafts occurs 1 + k times.
        finite: Copy to the host, in progress, of a bool [n]: true for each hidden state without NaN and infinity.
        device: Plan of the decode sequences that ran as a device step (`device_step`), with the tokens that the device
            has sampled; None if there were none.
    """

    rows: list[Sequence]
    finite: HostCopy
    device: DevicePlan | None


@dataclass(frozen=True, slots=True)
class Batch:
    """Sampling inputs that the host has prepared while the forward pass ran.

    Attributes:
        draws: Sampling inputs of each sequence. They are a snapshot and do not change with the sequence.
        prepared: Result of `Sampler.prepare` for the values of `draws`, in their order.
    """

    draws: dict[Sequence, Draw]
    prepared: Prepared


class StepLoop(threading.Thread):
    """The engine thread: runs steps (forward pass, masks, sampling) of the batch until it receives a `Close` message.

    Other threads may send messages to `inbox` and read the counters, and must not use other attributes. Every sequence
    gets exactly one output with a `finish_reason`, even if a step fails.

    Args:
        loaded: The model with its KV cache.
        config: Settings of the engine.
        draft_model: Drafter that computes logits (a draft model or an EAGLE-3 head); None if there is none.

    Attributes:
        inbox: Queue of messages to this thread.
        outbox: Queue of new output, which the thread delivers to the streams once per step.
        statistics: Counters of steps, tokens and masks.
        failed_steps: Number of failed steps since the last successful one.
        grammar_waits: Seconds for which generations were idle until their grammar arrived; the latest 1,024. This
            thread appends, one reader removes.
        scheduler: Assigns slots of the KV cache and selects the tokens of a step.
        sampler: Samples tokens on the host.
        rejection_meter: Measures the probability of disallowed tokens.
    """

    def __init__(self, loaded: LoadedModel, config: EngineConfig, draft_model: LogitsDrafter | None) -> None:
        super().__init__(name="engine", daemon=True)
        self.inbox = Inbox()
        self.outbox = Outbox()
        self.statistics = Statistics()
        # Number of consecutive failed steps up to now.
        self.failed_steps = 0
        # Seconds for which generations were idle until their grammar arrived.
        #
        # The engine thread appends, one reader removes.
        self.grammar_waits: deque[float] = deque(maxlen=1024)
        self.scheduler = Scheduler(loaded.pool, config)
        self.sampler = Sampler(loaded.head, loaded.pool.device)
        self.rejection_meter = RejectionMeter(loaded.head, config.rejection_mass_interval)
        self._config = config
        self._device = loaded.pool.device
        self._runner = loaded.runner
        self._draft_model = draft_model
        self._device_step: DeviceStep | None = None
        if config.device_step != "off":
            self._device_step = DeviceStep(loaded, config, GROUP_TOKENS, draft_model)
        self._mask_threads = concurrent.futures.ThreadPoolExecutor(config.max_num_seqs, thread_name_prefix="masks")
        self._masks = MaskReader(
            self._mask_threads,
            loaded.vocabulary.eos_token_ids,
            config.sparse_limit,
            wake=self.inbox.wake,
            finder=ForcedTextFinder(loaded.vocabulary, loaded.encode) if config.forced_text else None,
        )
        self._live: set[Sequence] = set()
        self._late: set[concurrent.futures.Future[Any]] = set()
        self._progressed = False
        self._unread: Unread | None = None
        self._start_pass: Launch = when_awaited
        self._pass_running = False
        self._ended_meanwhile: list[tuple[Sequence, bool]] = []
        self._stopping = False

    def run(self) -> None:
        """Run steps until the thread receives a `Close` message, then end all sequences with an error.

        `start` calls this method on the engine thread.
        """
        if self._config.threads is not None:
            torch.set_num_threads(self._config.threads)
        try:
            with launching(self._device, self._config.overlap) as self._start_pass:
                while not self._stopping:
                    if not self._progressed:
                        self.outbox.deliver()
                    self._take_messages(wait=not self._progressed)
                    try:
                        self._step()
                    except Exception:
                        self._fail_step()
        finally:
            self._shut_down()

    def _step(self) -> None:
        self._progressed = False
        plan = self._schedule()
        if plan.scheduled:
            running = self._launch(plan)
            try:
                batch = self._overlap(plan, running)
            finally:
                hidden_states = running.wait()
            self._commit(running, hidden_states)
        else:
            batch = self._overlap(plan, None)
        sampled = self._sample(self.scheduler.running, batch)
        while sampled:
            self._follow_grammars(sampled)
            sampled = self._sample(sampled)
        if not self._progressed:
            self._progressed = self.scheduler.make_room()

    # -- schedule ----------------------------------------------------------------------------------------------------

    def _schedule(self) -> StepPlan:
        self.scheduler.admit()
        self._follow_grammars(self.scheduler.running)
        self._propose()
        return self.scheduler.plan()

    def _follow_grammars(self, sequences: Iterable[Sequence]) -> None:
        """Advance all sequences in their grammars, append forced tokens and end complete sequences.

        All states advance before any mask is computed: sequences of one TokenFSM would otherwise block each other by
        its lock.
        """
        self._guard_each(sequences, Sequence.catch_up)
        self._guard_each(sequences, Sequence.settle)
        self._wait_for_masks(sequences)
        for sequence in list(sequences):
            with self._guard(sequence):
                sequence.settle()
                self.statistics.forced_tokens += sequence.append_forced()
                if sequence.finish_reason is not None:
                    self._end(sequence, sequence.finish_reason)

    def _wait_for_masks(self, sequences: Iterable[Sequence]) -> None:
        """Wait up to `mask_timeout_ms` for masks being computed. A mask that takes longer is left for a later step."""
        reading = {future for sequence in sequences if (future := sequence.reading) is not None}
        fresh = reading - self._late
        if fresh:
            concurrent.futures.wait(fresh, self._config.mask_timeout_ms / 1000)
            self._late = {future for future in self._late | fresh if not future.done()}

    def _propose(self) -> None:
        """Renew the drafts of every sequence. Drafts of a model or head come after those that cost no forward pass."""
        self._guard_each([sequence for sequence in self.scheduler.running if sequence.runnable], Sequence.propose)
        if self._draft_model is not None:
            self._draft_model.propose([sequence for sequence in self.scheduler.running if sequence.runnable])

    # -- launch ------------------------------------------------------------------------------------------------------

    def _launch(self, plan: StepPlan) -> Pass:
        device_plan = None
        if self._device_step is not None and plan.decode:
            measured = None
            if self.rejection_meter.due(self.statistics.steps):
                measured = next((sequence for sequence in plan.sequences if sequence.constraint is not None), None)
            device_plan = self._device_step.plan(plan.decode, plan.sequences, without=measured)
        wait = self._start_pass(lambda: self._forward(plan, device_plan))
        self._pass_running = True
        return Pass(plan, device_plan, wait)

    def _forward(self, plan: StepPlan, device_plan: DevicePlan | None) -> Tensor:
        """Return the hidden states of the step, [n, H].

        If there is a device plan, its sequences run in the captured step.
        """
        if self._device_step is None or device_plan is None:
            return self._runner.forward(plan.decode, plan.chunks)
        decoded = self._device_step.run(device_plan)
        return torch.cat([decoded, self._runner.forward([], plan.chunks)]) if plan.chunks else decoded

    # -- overlap -----------------------------------------------------------------------------------------------------

    def _overlap(self, plan: StepPlan, running: Pass | None) -> Batch:
        """Do the host work of the previous and the next step.

        Sequences may end here, but keep their slots until `_commit`.

        Returns:
            Prepared sampling for all sequences that will have a hidden state, except those that the device samples.
        """
        self.outbox.deliver()
        self._take_messages(wait=False)
        on_device = running.device.drawing if running is not None and running.device is not None else ()
        wanted = [sequence for sequence, part in zip(plan.sequences, plan.scheduled, strict=True) if part.wanted]
        wanted += [sequence for sequence in self.scheduler.running if sequence.hidden_state is not None]
        draws: dict[Sequence, Draw] = {}
        for sequence in wanted:
            if sequence in self._live and sequence not in on_device:
                with self._guard(sequence):
                    if (draw := sequence.draw()) is not None:
                        draws[sequence] = draw
        return Batch(draws, self.sampler.prepare(list(draws.values())))

    def _take_messages(self, *, wait: bool) -> None:
        """Handle the messages in the inbox. If `wait` is true, block until there is one."""
        for message in self.inbox.receive(wait=wait):
            self._progressed = True  # a message taken during a step takes effect in the next one
            match message:
                case Add(sequence):
                    self._live.add(sequence)
                    self.scheduler.add(sequence)
                case Constrain(sequence, fsm, state):
                    with self._guard(sequence):
                        late_s = sequence.constrain(Constraint(fsm, state, self._masks.table(fsm), sequence.budget))
                        self.grammar_waits.append(late_s)
                case End(sequence, error):
                    self._end(sequence, "cancelled" if error is None else "error", error)
                case Close():
                    self._stopping = True
                    return

    # -- commit ------------------------------------------------------------------------------------------------------

    def _commit(self, running: Pass, hidden_states: Tensor) -> None:
        """Give each sequence its hidden states. The device may still be computing them: the host reads nothing here."""
        plan = running.plan
        self.scheduler.commit(plan)
        self._release_slots()
        self._progressed = True
        self.failed_steps = 0
        self.statistics.steps += 1
        self.statistics.fed_tokens += sum(len(part.token_ids) for part in plan.scheduled)
        self.statistics.drafted_tokens += sum(plan.drafts)
        rows: list[Sequence] = []
        for sequence, part in zip(plan.sequences, plan.scheduled, strict=True):
            if part.wanted:
                sequence.receive(hidden_states[len(rows) : len(rows) + part.wanted])
                rows += [sequence] * part.wanted
        self._unread = Unread(rows, HostCopy(torch.isfinite(hidden_states).all(-1)), running.device)

    def _read_pass(self) -> None:
        """Wait for the pass.

        Give sequences the tokens that the device sampled; end those with a hidden state that is not finite.
        """
        unread, self._unread = self._unread, None
        if unread is None:
            return
        if self._device_step is not None and unread.device is not None:
            for sequence, drawn in self._device_step.drawn(unread.device).items():
                sequence.receive_drawn(drawn)
        for sequence, finite in zip(unread.rows, unread.finite.read().tolist(), strict=True):
            sequence.times.note("computed")
            if not finite:
                self._end(sequence, "error", RequestError("the model overflowed", code="not_finite", status=500))

    def _release_slots(self) -> None:
        """Free the slots of sequences that ended during the pass: nothing writes to the pool any more."""
        self._pass_running = False
        ended, self._ended_meanwhile = self._ended_meanwhile, []
        for sequence, keep in ended:
            self.scheduler.remove(sequence, keep=keep)

    # -- draw --------------------------------------------------------------------------------------------------------

    def _sample(self, candidates: Iterable[Sequence], batch: Batch | None = None) -> list[Sequence]:
        """Sample one token for each candidate that is ready.

        Args:
            candidates: Sequences that may have a hidden state.
            batch: Sampling prepared during the forward pass. Candidates that became ready later are added to it.

        Returns:
            Sequences whose token was an accepted draft. They have a further hidden state and can sample again.
        """
        candidates = [sequence for sequence in candidates if sequence.hidden_state is not None]
        prepared = {} if batch is None else batch.draws
        device = None if self._unread is None else self._unread.device
        on_device = set() if device is None else device.drawing
        on_host = [sequence for sequence in candidates if sequence not in on_device and sequence.drawn is None]
        self._wait_for_masks(sequence for sequence in on_host if sequence not in prepared)
        drawing: dict[Sequence, Draw] = {}
        for sequence in on_host:
            with self._guard(sequence):
                if (draw := prepared.get(sequence) or sequence.draw()) is not None:
                    drawing[sequence] = draw
        draws = self._draw(drawing, batch) if drawing else None
        self._read_pass()
        taken = self._take_drawn(candidates)
        if draws is not None:
            self._take_draws(*draws)
        self.statistics.sampled_tokens += len(drawing) + len(taken)
        self.statistics.masks += sum(sequence.constraint is not None for sequence in (*taken, *drawing))
        self._progressed |= bool(drawing or taken)
        going_on = [one for one in (*taken, *drawing) if one in self._live and one.hidden_state is not None]
        self.statistics.accepted_tokens += len(going_on)
        return going_on

    def _take_drawn(self, candidates: Iterable[Sequence]) -> dict[Sequence, int]:
        """Append the next tokens that the device sampled, for candidates that are ready."""
        alive = [sequence for sequence in candidates if sequence in self._live]
        taken = {sequence: token_id for sequence in alive if (token_id := sequence.drawn) is not None}
        for sequence, token_id in taken.items():
            with self._guard(sequence):
                sequence.append(token_id)
        return taken

    def _draw(self, drawing: dict[Sequence, Draw], batch: Batch | None) -> tuple[Batch, Tensor, Drawn]:
        """Start sampling on the device from hidden states [n, H]. `batch` is reused if it has the same sequences."""
        if batch is None or drawing.keys() != batch.draws.keys():
            batch = Batch(drawing, self.sampler.prepare(list(drawing.values())))
        rows = [sequence.hidden_state for sequence in batch.draws if sequence.hidden_state is not None]
        hidden_states = torch.stack(rows)
        return batch, hidden_states, self.sampler.draw(hidden_states, batch.prepared)

    def _take_draws(self, batch: Batch, hidden_states: Tensor, drawn: Drawn) -> None:
        """Append the tokens that the host sampled."""
        sequences, draws = list(batch.draws), list(batch.draws.values())
        token_ids = drawn.token_ids()
        told = reports(self.sampler.head, hidden_states, draws, token_ids)
        self.rejection_meter.measure(hidden_states, draws, self.statistics.steps)
        for sequence, token_id, report in zip(sequences, token_ids, told, strict=True):
            if sequence in self._live:  # sequences with an overflow have ended
                with self._guard(sequence):
                    sequence.append(token_id, report)

    # -- ends --------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _guard(self, sequence: Sequence) -> Iterator[None]:
        """End `sequence`, and no other, if the block raises an exception."""
        try:
            yield
        except GrammarError as error:  # the automaton has exceeded a limit of the grammar
            self._end(sequence, "error", RequestError(str(error), code=error.code))
        except Exception:
            logger.exception("request failed: request_id=%s", sequence.request.request_id)
            self._end(sequence, "error", RequestError("the generation failed", code="internal_error", status=500))

    def _guard_each(self, sequences: Iterable[Sequence], do: Callable[[Sequence], None]) -> None:
        for sequence in list(sequences):
            with self._guard(sequence):
                do(sequence)

    def _end(self, sequence: Sequence, reason: FinishReason, error: RequestError | None = None) -> None:
        """End a sequence: send its terminal output and free its slot. No effect on a sequence that has ended."""
        if sequence not in self._live:
            return
        self._close_stream(sequence, reason, error)
        keep = reason != "error"  # after an error the slot may hold anything
        if self._pass_running:
            self._ended_meanwhile.append((sequence, keep))
        else:
            self.scheduler.remove(sequence, keep=keep)
        self._progressed = True

    def _close_stream(self, sequence: Sequence, reason: FinishReason, error: RequestError | None) -> None:
        self._live.discard(sequence)
        text = sequence.text.rest if reason in ("stop", "length") else ""
        told = None if error is None else error.to_dict()
        ending = GenerationOutput(finish_reason=reason, error=told, stop_string=sequence.text.stop_string)
        sequence.stream.end(ending, text)

    def _fail_step(self) -> None:
        """End all running sequences after a failed step. The engine goes on with waiting sequences."""
        self.failed_steps += 1
        self._release_slots()
        logger.exception("engine step failed, ending its sequences: sequences=%d", len(self.scheduler.running))
        for sequence in list(self.scheduler.running):
            self._end(sequence, "error", RequestError("the engine step failed", code="internal_error", status=500))

    def _shut_down(self) -> None:
        self._live.update(message.sequence for message in self.inbox.close() if isinstance(message, Add))
        # Slots are not freed: the device may have failed, and no other sequence will use them.
        gone = RequestError("the engine has shut down", code="unavailable", status=503)
        while self._live:
            self._close_stream(next(iter(self._live)), "error", gone)
        self.outbox.deliver()
        self._mask_threads.shutdown(wait=False, cancel_futures=True)
        if self._device_step is not None:
            self._device_step.automata.close()
