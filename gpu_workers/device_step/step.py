"""One decode step as a pure function of tensors: forward pass, masks, sampling and verification of drafts.

During a step, the host reads no value from the device, and no shape depends on data. So the whole step can be captured,
by `torch.compile(fullgraph=True)` or in a CUDA graph. The tokens of each sequence in a step are the last tokens of its
text, then its drafts d1 .. dk (proposed next tokens):

    query      0        1      2      3          index of a token in the step
    token      last     d1     d2     padding    fed = 3 tokens; first = 0: sampling begins after query 0
    state      s0       s1     s2                grammar state before each sample; token d1 leads from s0 to s1
    drawn      d1       x      .      .          sample after each query; the first equals d1: accepted = 1

With `accepted` accepted drafts, the first 1 + `accepted` samples are output tokens: here d1 and x. They equal the
samples of the host's `sampler`: masks and random numbers are equal, and both use the functions of `distribution`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from itertools import product

import numpy as np
import torch
from torch import Tensor

from gpu_workers.device_step.drafts import DeviceHead, Verified, drafts
from gpu_workers.device_step.tables import LEFT, TableMemory
from gpu_workers.model.attention import static_plan
from gpu_workers.model.kv_pool import KVPool
from gpu_workers.model.loader import LoadedModel
from gpu_workers.request import SamplingParameters
from gpu_workers.sampling.distribution import DrawSettings, filtered, inverse_cdf
from gpu_workers.sampling.masked_scores import masked_scores
from gpu_workers.sampling.randomness import device_uniforms

_INTEGERS = (
    "slot", "past", "fed", "first", "state", "position", "choice_index", "seed_low", "seed_high", "top_k", "drafts"
)  # fmt: skip
_FLOATS = ("temperature", "top_p", "min_p")
_TOKENS = len(_INTEGERS) + len(_FLOATS)
_SHORTEST_KV = 64
_COARSE = 4
# Maximum number of shapes that are captured in CUDA graphs. Each takes a fraction of a second, and memory.
MOST_SHAPES = 40
# `masked` and `truncates` of captured shapes.
_KINDS = ((True, True), (True, False), (False, False))


@dataclass(frozen=True, slots=True)
class StaticRow:
    """Inputs of one sequence for a decode step that samples on the device.

    Attributes:
        slot: Slot of the KV cache that the sequence owns.
        past: Number of tokens of the sequence that are already in the slot.
        token_ids: Tokens of the sequence in the step, drafts (proposed tokens to verify) included.
        first: Index in `token_ids` of the first token after which a token is sampled.
        state: Index of the grammar state in `TableMemory`; 0 without a grammar.
        position: Output position of the first sampled token, from 0.
        choice_index: Index of the sequence among the outputs of its client request.
        sampling: Sampling settings of the request.
        drafts: True if an EAGLE-3 head proposes drafts after the sampled tokens.
    """

    slot: int
    past: int
    token_ids: Sequence[int]
    first: int
    state: int = 0
    position: int = 0
    choice_index: int = 0
    sampling: SamplingParameters = SamplingParameters(temperature=0)  # noqa: RUF009 - immutable
    drafts: bool = False


@dataclass(frozen=True, slots=True)
class StaticShape:
    """Sizes of a decode step on the device, and the kinds of work in it. Steps of equal shape can run in one graph.

    Attributes:
        rows: Number of sequences, padding included.
        queries: Number of tokens of each sequence, padding included.
        kv_length: Number of positions that are read from each slot of the KV cache.
        masked: True if a sequence has a grammar. Masks are then looked up for all sequences; otherwise no grammar code
            runs.
        truncates: True if a sequence uses top-k or top-p.
        drafts: True if an EAGLE-3 head proposes drafts for the next step.
    """

    rows: int
    queries: int
    kv_length: int
    masked: bool
    truncates: bool
    drafts: bool = False

    def cost(self) -> tuple[int, ...]:
        """Return a sort key for the work of a step of this shape. A larger key means more work.

        Returns:
            Tuple of the number of (query, key) pairs in attention, `truncates` and `masked`.
        """
        return self.rows * self.queries * self.kv_length, self.truncates, self.masked

    def holds(self, other: StaticShape) -> bool:
        """Return whether a step of the shape `other` can run in this shape, with padding.

        Args:
            other: Shape of the step.

        Returns:
            True if every size in `other` is at most the size in this shape, and this shape includes every kind of work
            in `other`.
        """
        own, others = (astuple(shape) for shape in (self, other))
        return all(size >= needed for size, needed in zip(own, others, strict=True))


def shape_of(rows: Sequence[StaticRow], pool: KVPool, queries: int, fineness: int = 2, many: int = 0) -> StaticShape:
    """Return the shape of a step with the given sequences. Sizes are rounded up, so that few different shapes occur.

    Args:
        rows: Inputs of the sequences, at least one.
        pool: KV cache of the target model.
        queries: Maximum number of tokens of a sequence in a step.
        fineness: The number of sequences is rounded up to a power of `fineness`.
        many: Number of drafts that an EAGLE-3 head proposes per sequence; 0 without a head.

    Returns:
        The shape. Its `kv_length` has room for the drafts.
    """
    longest = max(row.past + len(row.token_ids) + many * row.drafts for row in rows)
    return StaticShape(
        rows=min(_bucket(len(rows), fineness), pool.slots),
        queries=min(_bucket(max(len(row.token_ids) for row in rows), _COARSE), queries),
        kv_length=_kv_bucket(longest, pool),
        masked=any(row.state for row in rows),
        truncates=any(one.top_k or one.top_p < 1 for one in (row.sampling for row in rows) if one.temperature > 0),
        drafts=any(row.drafts for row in rows),
    )


def captured_shapes(pool: KVPool, queries: int, *, drafts: bool) -> list[StaticShape]:
    """Return the shapes of steps to capture in CUDA graphs, at most `MOST_SHAPES`.

    The largest shape can run any step. The other shapes are smaller in one or more respects: fewer sequences, a shorter
    KV cache, one token per sequence, no truncation (top-k, top-p), no masks. The numbers of sequences form a series in
    which each is a quarter of the next larger one; the lengths of the KV cache form another one. Sizes are added until
    there would be too many shapes.

    Args:
        pool: KV cache of the target model.
        queries: Maximum number of tokens of a sequence in a step.
        drafts: True if an EAGLE-3 head proposes drafts in the steps.

    Returns:
        The shapes, those that need the most memory first.
    """
    fed = sorted({1, queries})
    rows, lengths = [pool.slots], [pool.length]
    room = MOST_SHAPES // (len(_KINDS) * len(fed))
    growing = True
    while growing:
        growing = False
        for sizes, others, least in ((rows, lengths, 1), (lengths, rows, _SHORTEST_KV)):
            if sizes[-1] > least and (len(sizes) + 1) * len(others) <= room:
                sizes.append(max(least, -(-sizes[-1] // _COARSE)))
                growing = True
    shapes = [StaticShape(*sizes, *kind, drafts=drafts) for sizes in product(rows, fed, lengths) for kind in _KINDS]
    return sorted(shapes, key=StaticShape.cost, reverse=True)


def pack(rows: Sequence[StaticRow], shape: StaticShape, pool: KVPool) -> Tensor:
    """Pack all inputs of a step into one tensor on the host, so that one copy brings them to the device.

    Args:
        rows: Inputs of the sequences, at most `shape.rows`.
        shape: Shape of the step. The remaining rows are padding.
        pool: KV cache of the target model.

    Returns:
        int64 [shape.rows, m], one row per sequence. The columns begin with integers: slot, past, number of tokens,
        first, state, position, choice_index, seed (low 32 bits, high 32 bits), top_k, drafts. Then come the bits of
        three float64 values: temperature, top_p, min_p. The last `shape.queries` columns have the tokens, padded with
        0.
    """
    packed = np.zeros((shape.rows, _TOKENS + shape.queries), np.int64)
    floats = packed.view(np.float64)
    # Padding: one token in the dummy slot, greedy.
    packed[len(rows) :, _INTEGERS.index("slot")] = pool.dummy_slot
    packed[len(rows) :, _INTEGERS.index("fed")] = 1
    for line, values, row in zip(packed, floats, rows, strict=False):
        seed = row.sampling.seed & 0xFFFFFFFFFFFFFFFF
        line[: len(_INTEGERS)] = (
            row.slot, row.past, len(row.token_ids), row.first, row.state, row.position, row.choice_index,
            seed & 0xFFFFFFFF, seed >> 32, row.sampling.top_k, row.drafts,
        )  # fmt: skip
        values[len(_INTEGERS) : _TOKENS] = [getattr(row.sampling, setting) for setting in _FLOATS]
        line[_TOKENS : _TOKENS + len(row.token_ids)] = row.token_ids
    return torch.from_numpy(packed)


@dataclass(frozen=True, slots=True)
class StaticResult:
    """Results of a step that samples on the device.

    Attributes:
        hidden_states: Hidden states [rows * queries, H]. If the output head cannot run separately from the model
            (`OutputHead.separable` is false), logits [rows * queries, V].
        told: Results for the host, int64 [rows, 1 + 2 * queries + k]. The columns are, in this order: the number of
            accepted drafts; the token sampled after each query; the grammar state (index in `TableMemory`) after each
            sampled token; k drafts for the next step. Without drafts of an EAGLE-3 head, k is 0.
    """

    hidden_states: Tensor
    told: Tensor


def static_step(
    loaded: LoadedModel, tables: TableMemory, draft_head: DeviceHead | None, packed: Tensor, shape: StaticShape
) -> StaticResult:
    """Run a decode step: forward pass, masks, sampling, verification of drafts, and new drafts.

    The host reads no value. Keys and values are written into the KV caches of the target model and of the EAGLE-3 head.

    Args:
        loaded: The target model, with its output head and KV cache.
        tables: Automata of grammars on the device.
        draft_head: EAGLE-3 head that proposes drafts; None if there is none.
        packed: Inputs of the step, from `pack`, on the device.
        shape: Shape of the step.

    Returns:
        The results, on the device.
    """
    inputs = dict(zip(_INTEGERS, packed.unbind(1), strict=False))
    inputs |= zip(_FLOATS, packed[:, len(_INTEGERS) : _TOKENS].view(torch.float64).unbind(1), strict=True)
    tokens = packed[:, _TOKENS:]
    hidden_states = _forward(loaded, tokens, inputs, shape)
    logits = loaded.head.logits(hidden_states)
    states = rows = places = None
    if shape.masked:
        states = _states_along(tables, inputs["state"], tokens, inputs["first"])
        rows, places = tables.rows, tables.places(states.flatten())
    drawn = _draw(logits, rows, places, inputs, shape).view(tokens.shape)
    after = torch.zeros_like(drawn)
    if states is not None:
        after = tables.advance(states.flatten(), drawn.flatten()).view(states.shape)
    accepted = _accepted(drawn, after, tokens, inputs["first"], inputs["fed"])
    told = [accepted[:, None], drawn, after]
    if draft_head is not None and shape.drafts:
        slot, past, first = (inputs[name] for name in ("slot", "past", "first"))
        written = torch.where(inputs["drafts"] > 0, slot, loaded.pool.dummy_slot)
        state = None if states is None else after.gather(1, (first + accepted)[:, None])[:, 0]
        verified = Verified(slot, written, past, first, accepted, tokens, drawn, state)
        told.append(drafts(draft_head, tables, verified, shape.kv_length))
    return StaticResult(hidden_states, torch.cat(told, 1))


def _forward(loaded: LoadedModel, tokens: Tensor, inputs: dict[str, Tensor], shape: StaticShape) -> Tensor:
    """Return hidden states [rows * queries, H]. Keys and values of padding are written into the dummy slot."""
    model, pool = loaded.model, loaded.pool
    slot, past, fed = (inputs[name][:, None] for name in ("slot", "past", "fed"))
    query = torch.arange(shape.queries, device=tokens.device)
    real = query < fed
    position = past + torch.minimum(query, fed - 1)  # a padded query attends like the last token of its sequence
    written = torch.where(real, slot, pool.dummy_slot)
    plan = static_plan(pool, written, position, inputs["slot"], shape.kv_length)
    total = shape.rows * shape.queries
    arguments = {
        "input_ids": tokens.reshape(1, total),
        "position_ids": position.reshape(1, total),
        "use_cache": False,
        "attention_plan": plan,
    }
    if loaded.head.separable:
        return model.base_model(**arguments).last_hidden_state[0]
    return model(**arguments).logits[0]


def _states_along(tables: TableMemory, state: Tensor, tokens: Tensor, first: Tensor) -> Tensor:
    """Return the state before each sample, int64 [rows, queries]. Queries before `first` only complete the context."""
    along = [state]
    for query in range(1, tokens.shape[1]):
        along.append(torch.where(query > first, tables.advance(along[-1], tokens[:, query]), along[-1]))
    return torch.stack(along, 1)


def _draw(
    logits: Tensor, rows: Tensor | None, places: Tensor | None, inputs: dict[str, Tensor], shape: StaticShape
) -> Tensor:
    """Return one token for each of the logits [rows * queries, V], int64.

    `rows` and `places` are as in `masked_scores`.
    """

    def each(values: Tensor) -> Tensor:
        return values.repeat_interleave(shape.queries)

    temperature = each(inputs["temperature"])
    settings = DrawSettings(
        temperature,
        top_k=each(inputs["top_k"]) if shape.truncates else None,
        top_p=each(inputs["top_p"]) if shape.truncates else None,
        min_p=each(inputs["min_p"]),
    )
    query = torch.arange(shape.queries, device=logits.device)
    position = (inputs["position"][:, None] + query - inputs["first"][:, None]).clamp(min=0).flatten()
    uniform = device_uniforms(
        each(inputs["seed_low"]), each(inputs["seed_high"]), position, each(inputs["choice_index"])
    )
    scores = masked_scores(logits, rows, places, torch.where(temperature > 0, temperature, 1.0))
    largest = scores.argmax(-1)
    drawn = inverse_cdf(filtered(scores.exp_(), settings), uniform)
    return torch.where(temperature > 0, drawn, largest)


def _accepted(drawn: Tensor, after: Tensor, tokens: Tensor, first: Tensor, fed: Tensor) -> Tensor:
    """Return the number of consecutively accepted drafts of each sequence, int64 [rows].

    A sample after a state that is not on the device had no mask, so no draft after such a state is accepted.
    """
    query = torch.arange(tokens.shape[1] - 1, device=tokens.device)
    true = (drawn[:, :-1] == tokens[:, 1:]) & (after[:, :-1] != LEFT) & (query + 1 < fed[:, None])
    before = query < first[:, None]
    return ((true | before).to(torch.int64).cumprod(1) * ~before).sum(1)


def _bucket(number: int, base: int) -> int:
    """Return the smallest power of `base` that is at least `number`."""
    size = 1
    while size < number:
        size *= base
    return size


def _kv_bucket(length: int, pool: KVPool) -> int:
    return min(_SHORTEST_KV * _bucket(-(-length // _SHORTEST_KV), _COARSE), pool.length)
