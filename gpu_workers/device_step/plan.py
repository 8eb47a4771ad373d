"""Decode steps that sample on the device: selection of the sequences, captured steps, and results for the host.

All decode sequences of a step run in one function, which can be captured in a graph because no shape depends on data.
The device samples for a sequence if the device supports the request's settings and has the automaton of the grammar.
For each other sequence, the device returns hidden states, and the host samples.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from gpu_workers.config import EngineConfig
from gpu_workers.device_step.drafts import DeviceHead
from gpu_workers.device_step.step import (
    StaticResult,
    StaticRow,
    StaticShape,
    captured_shapes,
    pack,
    shape_of,
    static_step,
)
from gpu_workers.device_step.tables import DeviceAutomata, TableMemory
from gpu_workers.model.kv_pool import KVPool
from gpu_workers.model.loader import LoadedModel
from gpu_workers.model.model_runner import ScheduledTokens
from gpu_workers.sequence.sequence import Sequence, State
from gpu_workers.speculative.eagle_drafter import EagleDrafter
from gpu_workers.speculative.logits_drafter import LogitsDrafter
from gpu_workers.transfers import HostCopy, to_device
from grammar_workers.logs import get_logger

logger = get_logger(__name__)

# Share of the device's memory after which no further graph is captured.
_GRAPHS_SHARE = 0.1
_LIMITS = {"recompile_limit": 1 << 12, "accumulated_recompile_limit": 1 << 12}

Step = Callable[[Tensor, StaticShape], StaticResult]
# Tokens sampled one after another, each with the grammar state after it; -1: no grammar, or unknown.
Drawn = list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class _Place:
    """One sequence of the static step.

    `base` is the index of its automaton's state 0 on the device. `draws` is true if the device samples, `drafts` if it
    also drafts.
    """

    base: int
    draws: bool
    drafts: bool


@dataclass(slots=True)
class DevicePlan:
    """Plan of a decode step that runs on the device. The lists have one entry per sequence, in the order scheduled.

    Attributes:
        rows: Inputs of each sequence.
        places: For each sequence: the base index of its automaton on the device, and two flags that are true if the
            device samples and drafts for the sequence.
        sequences: The sequences.
        shape: Shape of the step.
        told: Copy of the step's results to the host (`StaticResult.told`); None before the step runs.
    """

    rows: list[StaticRow]
    places: list[_Place]
    sequences: list[Sequence]
    shape: StaticShape
    told: HostCopy | None = None

    @property
    def drawing(self) -> set[Sequence]:
        """Sequences for which the device samples. For the other sequences of the plan, the host samples."""
        return {sequence for place, sequence in zip(self.places, self.sequences, strict=True) if place.draws}

    def drawn(self) -> dict[Sequence, Drawn]:
        """Return the tokens that the device has sampled.

        `DeviceStep.run` must have started the step. The call waits for the device.

        Returns:
            For each sequence of `drawing`: pairs (token, grammar state after the token), in output order. The state is
            -1 if it has no table on the device, or if the sequence has no grammar.
        """
        assert self.told is not None
        lines, queries = self.told.read().tolist(), self.shape.queries
        drawn: dict[Sequence, Drawn] = {}
        # `told` has lines for padding, too.
        for row, place, sequence, line in zip(self.rows, self.places, self.sequences, lines, strict=False):
            if place.draws:
                span = range(1 + row.first, 2 + row.first + line[0])
                drawn[sequence] = [
                    (line[i], max(-1, line[i + queries] - place.base) if row.state else -1) for i in span
                ]
        return drawn

    def drafts(self) -> dict[Sequence, list[int]]:
        """Return the draft tokens (proposed next tokens) of the EAGLE-3 head.

        `DeviceStep.run` must have started the step. The call waits for the device.

        Returns:
            Token IDs of the drafts, by sequence, in output order. They follow the tokens that the step has sampled.
            Sequences for which the head does not draft are left out.
        """
        assert self.told is not None
        lines = self.told.read()[:, 1 + 2 * self.shape.queries :].tolist()
        places = zip(self.places, self.sequences, lines, strict=False)
        return {sequence: line for place, sequence, line in places if place.drafts}


class DeviceStep:
    """Runs decode steps that mask and sample on the device. A step is one function and can be captured in a graph.

    Call `plan` and `drawn` on the engine thread, and `run` on the thread that runs the model.

    Args:
        loaded: The target model.
        config: Settings of the engine. `device_step` selects whether the step is compiled or captured; it must not be
            `off`.
        queries: Maximum number of tokens of a sequence in a step.
        drafter: Drafter of the engine; None if there is none. An EAGLE-3 head drafts inside the steps. A draft model
            runs separately and is ignored here.

    Attributes:
        automata: Automata of grammars on the device.
        uncaptured: Function that runs the step operation by operation, without a graph.
        step: Function that runs the step, compiled or captured if the config requires it.
    """

    def __init__(self, loaded: LoadedModel, config: EngineConfig, queries: int, drafter: LogitsDrafter | None) -> None:
        self._pool = loaded.pool
        self._queries = queries
        self._drafter = drafter if isinstance(drafter, EagleDrafter) else None
        # More drafts would not fit into the next step.
        self._many = min(config.num_speculative_tokens, queries - 1)
        head = None
        if self._drafter is not None and self._many:
            own, features = self._drafter.head, self._drafter.features
            head = DeviceHead(own, self._drafter.pool, features, own.token_ids, self._many, masks=config.draft_masks)
        memory = TableMemory(loaded.head.token_limit, config.device_table_mb << 20, loaded.pool.device)
        self.automata = DeviceAutomata(memory)
        step: Step = partial(static_step, loaded, memory, head)
        # The step, run operation by operation.
        self.uncaptured = step
        self._fineness = 2
        self._graphs: GraphedStep | None = None
        if config.device_step == "compile":
            self._fineness = 4  # compiling takes long: fewer shapes, more padding
            step = CompiledStep(step)
        elif config.device_step == "cuda_graph":
            self._graphs = GraphedStep(
                step, loaded.pool, captured_shapes(loaded.pool, queries, drafts=head is not None)
            )
            step = self._graphs
        self.step = step

    def plan(
        self, decode: list[ScheduledTokens], sequences: list[Sequence], without: Sequence | None = None
    ) -> DevicePlan:
        """Plan a decode step: select the sequences for which the device samples, and the shape of the step.

        Args:
            decode: Tokens of each decode sequence. Not empty.
            sequences: Sequences of the step. The first ones belong to the items of `decode`, in this order. The others
                are ignored.
            without: A sequence for which the host must sample, because its rejection mass is measured. None: the device
                may sample for all sequences.

        Returns:
            The plan, for `run`.
        """
        pairs = list(zip(decode, sequences, strict=False))
        able = [(_draws(one) and one is not without) for _, one in pairs]
        fsms = [
            one.constraint.fsm if draws and one.constraint else None
            for draws, (_, one) in zip(able, pairs, strict=True)
        ]
        self.automata.bring(fsm for fsm in fsms if fsm is not None)
        rows, places = [], []
        for (part, sequence), draws, fsm in zip(pairs, able, fsms, strict=True):
            state = -1 if sequence.constraint is None else sequence.constraint.state
            base = 0 if fsm is None else self.automata.base(fsm, state)
            draws = draws and base is not None
            place = _Place(base or 0, draws, drafts=draws and self._drafts(sequence))
            rows.append(_static_row(part, sequence, place))
            places.append(place)
        shape = shape_of(rows, self._pool, self._queries, self._fineness, self._many)
        if self._graphs is not None:
            shape = self._graphs.shape_for(shape)
        return DevicePlan(rows, places, [one for _, one in pairs], shape)

    def _drafts(self, sequence: Sequence) -> bool:
        return self._drafter is not None and self._many > 0 and self._drafter.begin_round(sequence)

    def drawn(self, plan: DevicePlan) -> dict[Sequence, Drawn]:
        """Return the tokens that the device has sampled, and store the drafts of an EAGLE-3 head in its drafter.

        The call waits for the device.

        Args:
            plan: Plan of a step that `run` has started.

        Returns:
            For each sequence for which the device samples: pairs (token, grammar state after the token), in output
            order. The state is -1 if it has no table on the device, or if the sequence has no grammar.
        """
        drawn = plan.drawn()
        if self._drafter is not None and plan.shape.drafts:
            for sequence, drafts in plan.drafts().items():
                self._drafter.keep(sequence, [token_id for token_id, _ in drawn[sequence]], drafts)
        return drawn

    @torch.no_grad()
    def run(self, plan: DevicePlan) -> Tensor:
        """Start a planned step on the device, and start to copy the sampled tokens to the host (`plan.told`).

        Args:
            plan: The plan of the step. Its `told` is set.

        Returns:
            Hidden states [n, H] on the device, in the order of the sequences: one for each token after which a token is
            sampled. If the model's logits are not a linear map of the hidden state (`OutputHead.separable` is false),
            logits [n, V].
        """
        device, queries = self._pool.device, plan.shape.queries
        wanted = [
            i * queries + query for i, row in enumerate(plan.rows) for query in range(row.first, len(row.token_ids))
        ]
        index = to_device(torch.tensor(wanted), device)
        result = self.step(to_device(pack(plan.rows, plan.shape, self._pool), device), plan.shape)
        # Copies: a captured step writes its results to the same memory the next time.
        plan.told = HostCopy(result.told)
        return result.hidden_states[index]


class CompiledStep:
    """The decode step, compiled by `torch.compile` to one graph per shape (padded sizes of a step).

    A new shape is compiled when it first occurs.

    Args:
        step: Function that runs the step operation by operation. It takes packed inputs (from `pack`) and the shape.
    """

    def __init__(self, step: Step) -> None:
        self._step = torch.compile(step, fullgraph=True, dynamic=False)

    def __call__(self, packed: Tensor, shape: StaticShape) -> StaticResult:
        """Run the step.

        Args:
            packed: Inputs of the step from `pack`, on the device.
            shape: Shape of the step. A new shape is compiled first.

        Returns:
            The results, on the device.
        """
        # The compiler's settings are per thread, and the step runs in another thread than this object's constructor.
        with torch.compiler.config.patch(**_LIMITS):  # type: ignore[attr-defined]
            return self._step(packed, shape)


class GraphedStep:
    """The decode step, captured in one CUDA graph for each of several shapes (padded sizes of a step).

    The constructor captures the graphs, the largest first. They share one memory pool. Once they take 10 % of the
    device's memory, no more are captured. A step that fits into no captured shape runs operation by operation. Each
    call overwrites the results of the previous call: copy results that are needed later.

    Args:
        step: Function that runs the step operation by operation. It takes packed inputs (from `pack`) and the shape.
        pool: KV cache of the target model.
        shapes: Shapes to capture, those that need the most memory first.
    """

    def __init__(self, step: Step, pool: KVPool, shapes: list[StaticShape]) -> None:
        self._step = step
        self._device = pool.device
        self._memory = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(pool.device)
        self._captured: dict[StaticShape, tuple[torch.cuda.CUDAGraph, Tensor, StaticResult]] = {}
        self._fitting: dict[StaticShape, StaticShape] = {}
        started, (free, total) = time.monotonic(), torch.cuda.mem_get_info(pool.device)
        for shape in shapes:
            if free - torch.cuda.mem_get_info(pool.device)[0] < _GRAPHS_SHARE * total:
                self._captured[shape] = self._capture(pack([], shape, pool).to(pool.device), shape)
        taken, seconds = free - torch.cuda.mem_get_info(pool.device)[0], time.monotonic() - started
        told = (len(self._captured), len(shapes), seconds, taken / 2**30)
        logger.info("CUDA graphs captured: graphs=%d shapes=%d seconds=%.1f gib=%.2f", *told)

    def shape_for(self, shape: StaticShape) -> StaticShape:
        """Return the cheapest captured shape in which a step of the given shape can run, with padding.

        Args:
            shape: Sizes of the step and kinds of work in it.

        Returns:
            The captured shape; `shape` itself if the step fits into no captured shape.
        """
        if shape not in self._fitting:  # few come up, each in many steps
            fitting = (one for one in self._captured if one.holds(shape))
            self._fitting[shape] = min(fitting, key=StaticShape.cost, default=shape)
        return self._fitting[shape]

    def __call__(self, packed: Tensor, shape: StaticShape) -> StaticResult:
        """Run the step: replay its graph, or run it operation by operation if its shape is not captured.

        Args:
            packed: Inputs of the step from `pack`, on the device.
            shape: Shape of the step, from `shape_for`.

        Returns:
            The results, on the device. The next call with this shape overwrites them.
        """
        if shape not in self._captured:
            return self._step(packed, shape)
        graph, buffer, result = self._captured[shape]
        buffer.copy_(packed)
        graph.replay()
        return result

    @torch.no_grad()
    def _capture(self, buffer: Tensor, shape: StaticShape) -> tuple[torch.cuda.CUDAGraph, Tensor, StaticResult]:
        """Capture the step. It runs once before, so that libraries initialize. Only the dummy slot is written."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            self._step(buffer, shape)
        current.wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        # Other threads may use the device meanwhile: with this mode, their work is not captured and causes no error.
        with torch.cuda.graph(graph, pool=self._memory, stream=self._stream, capture_error_mode="thread_local"):
            result = self._step(buffer, shape)
        return graph, buffer, result


def _draws(sequence: Sequence) -> bool:
    """Return whether the device can sample the next tokens of `sequence`, by its settings and state."""
    sampling = sequence.request.sampling
    plain = not (
        sampling.penalizes
        or sampling.reports
        or sampling.ignore_eos
        or sampling.banned_words is not None
        or sampling.finish_within_budget
        or any(draft.proposal for draft in sequence.drafts)
    )
    ready = sequence.state is State.RUNNING and sequence.pending > 0
    return plain and ready and sequence.output_length >= sampling.min_tokens


def _static_row(part: ScheduledTokens, sequence: Sequence, place: _Place) -> StaticRow:
    row = StaticRow(part.slot, part.past, part.token_ids, first=len(part.token_ids) - part.wanted)
    if not place.draws:
        return row
    return replace(
        row,
        state=place.base + sequence.constraint.state if sequence.constraint is not None else 0,
        position=sequence.output_length,
        choice_index=sequence.request.choice_index,
        sampling=sequence.request.sampling,
        drafts=place.drafts,
    )
