"""Drafts for the next step in the same captured step: an EAGLE-3 head goes on behind the tokens just drawn.

    query              0     1     2     3          first = 0, accepted = 1: the draws x0 and x1 are output tokens
    feature            f0    f1    f2    f3         of the tokens fed, written by the target's layers
    token after it     x0    x1    .     .          what lies behind the last output token goes into the dummy slot
    output             .     h1                     h1 -> d1, then d1 beside h1 -> h2 -> d2, and so on

As everything in a step, a pure function of tensors: no host read, no shape that depends on data.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gpu_workers.device_step.tables import TableMemory
from gpu_workers.model.attention import static_plan
from gpu_workers.model.kv_pool import KVPool
from gpu_workers.speculative.eagle_head import EagleHead


@dataclass(frozen=True, slots=True, eq=False)
class DeviceHead:
    """A head with its own `pool`, the `features` [slots + 1, length, H] that the target writes, and its tokens' ids.

    `token_ids` int64 [k], of the target. It proposes `many` drafts each time, under the grammar if `masks` says so.
    """

    head: EagleHead
    pool: KVPool
    features: Tensor
    token_ids: Tensor
    many: int
    masks: bool


@dataclass(frozen=True, slots=True)
class Verified:
    """What the step has made of the tokens fed, all int64.

    `past`, `first`, `accepted` [rows]: `first + accepted + 1` tokens behind position `past` are settled. `tokens`,
    `drawn` [rows, queries]: fed, and drawn behind each. `state` [rows]: behind the last one; None: no grammar.
    `slot`, `written` [rows]: rows that ask for no drafts write to the dummy slot, since theirs holds what others need.
    """

    slot: Tensor
    written: Tensor
    past: Tensor
    first: Tensor
    accepted: Tensor
    tokens: Tensor
    drawn: Tensor
    state: Tensor | None


def drafts(on: DeviceHead, tables: TableMemory, verified: Verified, kv_length: int) -> Tensor:
    """The likeliest tokens behind each row's last one, int64 [rows, many]; `kv_length` positions are read of a slot.

    A draft that ends the output, or that the grammar forbids, is proposed as well: what is behind it means nothing.
    """
    rows, queries = verified.tokens.shape
    query = torch.arange(queries, device=verified.tokens.device)
    last = verified.first + verified.accepted
    following = torch.where(query < verified.first[:, None], verified.tokens.roll(-1, 1), verified.drawn)
    position = verified.past[:, None] + torch.minimum(query, last[:, None])
    slot = torch.where(query <= last[:, None], verified.written[:, None], on.pool.dummy_slot)
    features = on.features[verified.slot[:, None], position].flatten(0, 1)
    outputs = _pass(on, following, features, slot, position, verified.slot, kv_length)
    output = outputs.view(rows, queries, -1)[torch.arange(rows, device=last.device), last]
    position, state = verified.past + last, verified.state
    proposed = [_likeliest(on, tables, output, state)]
    while len(proposed) < on.many:
        state = None if state is None else tables.advance(state, proposed[-1])
        position = position + 1
        # Past the end of the slot nothing can be proposed any more; the host cuts these drafts off.
        slot = torch.where(position < on.pool.length, verified.written, on.pool.dummy_slot)[:, None]
        place = position.clamp(max=on.pool.length - 1)[:, None]
        output = _pass(on, proposed[-1], output, slot, place, verified.slot, kv_length)
        proposed.append(_likeliest(on, tables, output, state))
    return torch.stack(proposed, 1)


def _pass(
    on: DeviceHead, tokens: Tensor, features: Tensor, slot: Tensor, position: Tensor, read: Tensor, kv_length: int
) -> Tensor:
    """Outputs [rows * queries, H] for as many tokens and features; slot, position [rows, queries], `read` [rows]."""
    plan = static_plan(on.pool, slot, position, read, kv_length)
    return on.head.over_slots(tokens.flatten(), features, plan)


def _likeliest(on: DeviceHead, tables: TableMemory, outputs: Tensor, state: Tensor | None) -> Tensor:
    """The target's ids, int64 [rows], of the likeliest tokens that `state` allows behind outputs [rows, H]."""
    logits = on.head.logits(outputs)
    if state is not None and on.masks:
        words = tables.rows[tables.places(state)[:, None], on.token_ids >> 5]
        allowed = (words >> (on.token_ids & 31)) & 1 != 0
        logits = logits.masked_fill(~allowed, -torch.inf)
    return on.token_ids[logits.argmax(-1)]
