"""One decode step as a pure function of tensors: forward pass, masks, draws and the verification of drafts.

No host reads, no shape that depends on data, nothing allocated by Python in between: so it can be captured whole, by
`torch.compile(fullgraph=True)` or in a CUDA graph. A row feeds `[context .. last, d1 .. dk]`:

    query      0        1      2      3
    token      last     d1     d2     padding      fed = 3, first = 0
    state      s        s.d1   s.d2                advances in the automata of `tables`
    drawn      d1       x      .      .            accepted = 1: the draws 0 and 1 are output tokens

Draws are those of `sampler`: the same masks and uniform numbers, and the same functions between them (`distribution`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from itertools import product

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from gpu_workers.device_step.drafts import DeviceHead, Verified, drafts
from gpu_workers.device_step.tables import LEFT, TableMemory
from gpu_workers.model.attention import static_plan
from gpu_workers.model.kv_pool import KVPool
from gpu_workers.model.output_head import OutputHead
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
MOST_SHAPES = 40
"""That are captured in CUDA graphs: each takes a fraction of a second, and memory."""
_KINDS = ((True, True), (True, False), (False, False))
"""`masked` and `truncates` of captured shapes."""


@dataclass(frozen=True, slots=True)
class StaticRow:
    """What one row of a step is; `token_ids` as in `ScheduledTokens`; those from `first` on are drawn after.

    `state`: its place in `TableMemory`, 0 without one; `position`: of the first draw, in output tokens; `drafts`: a
    head goes on behind the draws.
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
    """The sizes and kinds of work of a static step, which no value of a tensor can change.

    `masked`: masks are looked up, for all rows; otherwise no grammar code at all. `truncates`: top-k or top-p is on.
    `drafts`: a head drafts for the next step.
    """

    rows: int
    queries: int
    kv_length: int
    masked: bool
    truncates: bool
    drafts: bool = False

    def cost(self) -> tuple[int, ...]:
        """To compare shapes by: how many keys its queries look at, then what else it does."""
        return self.rows * self.queries * self.kv_length, self.truncates, self.masked

    def holds(self, other: StaticShape) -> bool:
        """Whether a step of the other shape can run as one of this, padded."""
        own, others = (astuple(shape) for shape in (self, other))
        return all(size >= needed for size, needed in zip(own, others, strict=True))


def shape_of(rows: Sequence[StaticRow], pool: KVPool, queries: int, fineness: int = 2, many: int = 0) -> StaticShape:
    """The smallest shape that holds `rows`, of at most `queries` tokens each: their number is a power of `fineness`.

    `many`: the drafts that a head makes.
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
    """The shapes to capture, `MOST_SHAPES` at most, those that need the most memory first: one holds whatever comes up.

    Sizes are a quarter of the next larger one, as far down as there is room. `drafts`: there is a head.
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
    """All that a step reads from the host, int64 [rows, _TOKENS + queries]; float64 values as their bits."""
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
    """`hidden_states` [rows * queries, H] and `told` int64 [rows, 1 + 2 * queries + drafts].

    A row is told how many drafts were accepted, the draws, the states after them, and the next drafts.
    """

    hidden_states: Tensor
    told: Tensor


def static_step(
    model: PreTrainedModel,
    head: OutputHead,
    pool: KVPool,
    tables: TableMemory,
    draft_head: DeviceHead | None,
    packed: Tensor,
    shape: StaticShape,
) -> StaticResult:
    """Runs the step that `packed` describes; keys and values go into the pools."""
    integers = dict(zip(_INTEGERS, packed.unbind(1), strict=False))
    floats = dict(zip(_FLOATS, packed[:, len(_INTEGERS) : _TOKENS].view(torch.float64).unbind(1), strict=True))
    tokens = packed[:, _TOKENS:]
    hidden_states = _forward(model, head, pool, tokens, integers, shape)
    logits = head.logits(hidden_states)
    states = rows = places = None
    if shape.masked:
        states = _states_along(tables, integers["state"], tokens, integers["first"])
        rows, places = tables.rows, tables.places(states.flatten())
    drawn = _draw(logits, rows, places, integers, floats, shape).view(tokens.shape)
    after = torch.zeros_like(drawn)
    if states is not None:
        after = tables.advance(states.flatten(), drawn.flatten()).view(states.shape)
    accepted = _accepted(drawn, after, tokens, integers["first"], integers["fed"])
    told = [accepted[:, None], drawn, after]
    if draft_head is not None and shape.drafts:
        slot, past, first = (integers[name] for name in ("slot", "past", "first"))
        written = torch.where(integers["drafts"] > 0, slot, pool.dummy_slot)
        state = None if states is None else after.gather(1, (first + accepted)[:, None])[:, 0]
        verified = Verified(slot, written, past, first, accepted, tokens, drawn, state)
        told.append(drafts(draft_head, tables, verified, shape.kv_length))
    return StaticResult(hidden_states, torch.cat(told, 1))


def _forward(
    model: PreTrainedModel,
    head: OutputHead,
    pool: KVPool,
    tokens: Tensor,
    integers: dict[str, Tensor],
    shape: StaticShape,
) -> Tensor:
    """Hidden states [rows * queries, H]. Padding is written into the dummy slot."""
    slot, past, fed = (integers[name][:, None] for name in ("slot", "past", "fed"))
    query = torch.arange(shape.queries, device=tokens.device)
    real = query < fed
    position = past + torch.minimum(query, fed - 1)  # a padded query looks where its row's last token looks
    written = torch.where(real, slot, pool.dummy_slot)
    plan = static_plan(pool, written, position, integers["slot"], shape.kv_length)
    total = shape.rows * shape.queries
    arguments = {
        "input_ids": tokens.reshape(1, total),
        "position_ids": position.reshape(1, total),
        "use_cache": False,
        "attention_plan": plan,
    }
    return model.base_model(**arguments).last_hidden_state[0] if head.separable else model(**arguments).logits[0]


def _states_along(tables: TableMemory, state: Tensor, tokens: Tensor, first: Tensor) -> Tensor:
    """The state before each draw, int64 [rows, queries]: queries before `first` only complete the context."""
    along = [state]
    for query in range(1, tokens.shape[1]):
        along.append(torch.where(query > first, tables.advance(along[-1], tokens[:, query]), along[-1]))
    return torch.stack(along, 1)


def _draw(
    logits: Tensor,
    rows: Tensor | None,
    places: Tensor | None,
    integers: dict[str, Tensor],
    floats: dict[str, Tensor],
    shape: StaticShape,
) -> Tensor:
    """One token for each line of logits [rows * queries, V] under its mask row (as in `masked_scores`), int64."""

    def each(values: Tensor) -> Tensor:
        return values.repeat_interleave(shape.queries)

    temperature = each(floats["temperature"])
    settings = DrawSettings(
        temperature,
        top_k=each(integers["top_k"]) if shape.truncates else None,
        top_p=each(floats["top_p"]) if shape.truncates else None,
        min_p=each(floats["min_p"]),
    )
    query = torch.arange(shape.queries, device=logits.device)
    position = (integers["position"][:, None] + query - integers["first"][:, None]).clamp(min=0).flatten()
    uniform = device_uniforms(
        each(integers["seed_low"]), each(integers["seed_high"]), position, each(integers["choice_index"])
    )
    scores = masked_scores(logits, rows, places, torch.where(temperature > 0, temperature, 1.0))
    largest = scores.argmax(-1)
    drawn = inverse_cdf(filtered(scores.exp_(), settings), uniform)
    return torch.where(temperature > 0, drawn, largest)


def _accepted(drawn: Tensor, after: Tensor, tokens: Tensor, first: Tensor, fed: Tensor) -> Tensor:
    """How many drafts of each row came true, one after another, int64 [rows].

    Where the state after a draw is not on the device, what was drawn behind it had no mask: there the row ends.
    """
    query = torch.arange(tokens.shape[1] - 1, device=tokens.device)
    true = (drawn[:, :-1] == tokens[:, 1:]) & (after[:, :-1] != LEFT) & (query + 1 < fed[:, None])
    before = query < first[:, None]
    return ((true | before).to(torch.int64).cumprod(1) * ~before).sum(1)


def _bucket(number: int, base: int) -> int:
    """The smallest power of `base` that is at least `number`."""
    size = 1
    while size < number:
        size *= base
    return size


def _kv_bucket(length: int, pool: KVPool) -> int:
    return min(_SHORTEST_KV * _bucket(-(-length // _SHORTEST_KV), _COARSE), pool.length)
