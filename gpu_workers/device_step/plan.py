"""Decode steps that draw on the device: which rows take part, how the step is captured, what comes back.

All decoding rows go through one static step. Rows whose settings it knows, and whose automaton is on the device, come
back with their tokens; the others with their hidden states alone, to be drawn on the host: per row, not per batch.
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

_GRAPHS_SHARE = 0.1
"""Of the device's memory: captured graphs take no more, but for the last one."""
_LIMITS = {"recompile_limit": 1 << 12, "accumulated_recompile_limit": 1 << 12}

Step = Callable[[Tensor, StaticShape], StaticResult]
Drawn = list[tuple[int, int]]
"""Tokens drawn one after another, each with the grammar state after it; -1: there is no grammar, or it is not known."""


@dataclass(frozen=True, slots=True)
class _Place:
    """One row of the static step. `base`: of its automaton's states; `draws`: on the device; `drafts`: there, too."""

    base: int
    draws: bool
    drafts: bool


@dataclass(slots=True)
class DevicePlan:
    """The decode rows of a step, in the order scheduled. `told`: what the step said, as in `StaticResult`."""

    rows: list[StaticRow]
    places: list[_Place]
    sequences: list[Sequence]
    shape: StaticShape
    told: HostCopy | None = None

    @property
    def drawing(self) -> set[Sequence]:
        """Whose tokens the device draws."""
        return {sequence for place, sequence in zip(self.places, self.sequences, strict=True) if place.draws}

    def drawn(self) -> dict[Sequence, Drawn]:
        """Their tokens, when the step has run; waits for the device."""
        assert self.told is not None
        lines, queries = self.told.read().tolist(), self.shape.queries
        drawn: dict[Sequence, Drawn] = {}
        # Rows of padding are told about, too.
        for row, place, sequence, line in zip(self.rows, self.places, self.sequences, lines, strict=False):
            if place.draws:
                span = range(1 + row.first, 2 + row.first + line[0])
                drawn[sequence] = [
                    (line[i], max(-1, line[i + queries] - place.base) if row.state else -1) for i in span
                ]
        return drawn

    def drafts(self) -> dict[Sequence, list[int]]:
        """What a head has drafted behind the tokens drawn, when the step has run; waits for the device."""
        assert self.told is not None
        lines = self.told.read()[:, 1 + 2 * self.shape.queries :].tolist()
        places = zip(self.places, self.sequences, lines, strict=False)
        return {sequence: line for place, sequence, line in places if place.drafts}


class DeviceStep:
    """Runs the decode rows of steps. `plan` is for the engine thread, `run` for whoever runs the model."""

    def __init__(self, loaded: LoadedModel, config: EngineConfig, queries: int, drafter: EagleDrafter | None) -> None:
        self._pool = loaded.pool
        self._queries = queries
        self._drafter = drafter
        # More would not fit into a row of the next step.
        self._many = min(config.max_drafts, queries - 1)
        head = None if drafter is None or not self._many else _device_head(drafter, config, self._many)
        memory = TableMemory(loaded.head.token_limit, config.device_table_mb << 20, loaded.pool.device)
        self.automata = DeviceAutomata(memory)
        step: Step = partial(static_step, loaded.model, loaded.head, loaded.pool, memory, head)
        self.uncaptured = step
        """The step operation by operation."""
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
        """Lays out the decode rows of a step, at least one, of the first `sequences`; `without` is left to the host."""
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
        """The tokens that `plan` has drawn; hands the drafts behind them to the drafter. Waits for the device."""
        drawn = plan.drawn()
        if self._drafter is not None and plan.shape.drafts:
            for sequence, drafts in plan.drafts().items():
                self._drafter.keep(sequence, [token_id for token_id, _ in drawn[sequence]], drafts)
        return drawn

    @torch.no_grad()
    def run(self, plan: DevicePlan) -> Tensor:
        """Hidden states [n, H] of all wanted tokens, in the order scheduled; the plan is told the rest."""
        device, queries = self._pool.device, plan.shape.queries
        wanted = [
            i * queries + query for i, row in enumerate(plan.rows) for query in range(row.first, len(row.token_ids))
        ]
        index = to_device(torch.tensor(wanted), device)
        result = self.step(to_device(pack(plan.rows, plan.shape, self._pool), device), plan.shape)
        # Copies: a captured step writes its results to the same memory the next time.
        plan.told = HostCopy(result.told)
        return result.hidden_states[index]

    def close(self) -> None:
        self.automata.close()


class CompiledStep:
    """The step by `torch.compile`, as one graph for each shape that comes up."""

    def __init__(self, step: Step) -> None:
        self._step = torch.compile(step, fullgraph=True, dynamic=False)

    def __call__(self, packed: Tensor, shape: StaticShape) -> StaticResult:
        # The compiler's settings are those of a thread, and a step runs in another one than it is made in.
        with torch.compiler.config.patch(**_LIMITS):  # type: ignore[attr-defined]
            return self._step(packed, shape)


class GraphedStep:
    """A CUDA graph for each of `shapes`, all captured here and now; no step is captured later.

    They share one pool of memory, the largest first: what it needs the others fit into. Past a share of the device's
    memory no more are captured, and steps that fit into none run operation by operation. Results stay where they are:
    whoever wants to keep them copies them before the next call.
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
        logger.info("%d of %d CUDA graphs captured in %.1f s, %.2f GiB", *told)

    def shape_for(self, shape: StaticShape) -> StaticShape:
        """The smallest captured shape that holds `shape`; itself where none does."""
        if shape not in self._fitting:  # few come up, each in many steps
            fitting = (one for one in self._captured if one.holds(shape))
            self._fitting[shape] = min(fitting, key=StaticShape.cost, default=shape)
        return self._fitting[shape]

    def __call__(self, packed: Tensor, shape: StaticShape) -> StaticResult:
        if shape not in self._captured:
            return self._step(packed, shape)
        graph, buffer, result = self._captured[shape]
        buffer.copy_(packed)
        graph.replay()
        return result

    @torch.no_grad()
    def _capture(self, buffer: Tensor, shape: StaticShape) -> tuple[torch.cuda.CUDAGraph, Tensor, StaticResult]:
        """Runs the step once outside, where libraries set themselves up; the dummy slot is all that it writes to."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            self._step(buffer, shape)
        current.wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        # Other threads go on meanwhile: their work is not part of the graph and does not spoil it.
        with torch.cuda.graph(graph, pool=self._memory, stream=self._stream, capture_error_mode="thread_local"):
            result = self._step(buffer, shape)
        return graph, buffer, result


def _draws(sequence: Sequence) -> bool:
    """Whether settings and states that the device knows decide about the next tokens of `sequence`."""
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


def _device_head(drafter: EagleDrafter, config: EngineConfig, many: int) -> DeviceHead:
    head = drafter.head
    return DeviceHead(head, drafter.pool, drafter.features, head.token_ids, many, masks=config.draft_masks)


def device_step(
    loaded: LoadedModel, config: EngineConfig, queries: int, drafter: LogitsDrafter | None = None
) -> DeviceStep | None:
    """The step that `config` asks for, ready; None: everything stays with the host.

    `queries`: the most tokens of one sequence among the decode rows of a step. An EAGLE-3 head as `drafter` drafts in
    the same step; models draft on their own.
    """
    if config.device_step == "off":
        return None
    return DeviceStep(loaded, config, queries, drafter if isinstance(drafter, EagleDrafter) else None)
