"""Drafts of an EAGLE-3 head for the next decode step. They are computed in the current step, after its sampled tokens.

A *feature* is one vector per token, made of the target model's hidden states before three of its layers. A *query* is
the index of a token of a sequence in the step. The *dummy slot* is a slot of the KV cache without an owner.

The example is one sequence. The target model has processed four tokens and sampled x0 after the first one, x1 after the
second one. Both samples are output tokens, so the drafts follow x1 (`first` = 0, `accepted` = 1):

    query             0     1     2     3
    feature           f0    f1    f2    f3     from the target model
    token after it    x0    x1    .     .      second input of the head
    output            .     h1    .     .      output of the head

The first draft d1 is the most likely token by h1. Then the head processes d1, with h1 in place of a feature, and its
output h2 gives d2, and so on. Queries after the last output token (2 and 3) are written to the dummy slot.

The whole step can be captured in a graph: the host reads no value, and no shape depends on data.
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
    """An EAGLE-3 head that proposes drafts (next tokens to verify) in captured decode steps.

    Attributes:
        head: The head.
        pool: KV cache of the head.
        features: Features (vectors made of the target model's hidden states) of each position of each slot, float
            [slots + 1, length, H]. The target model writes them.
        token_ids: Token ID, in the target's vocabulary, of each column of the head's logits, int64 [columns].
        many: Number of drafts per sequence and step.
        masks: If true, drafts are chosen under the mask of the grammar. If false, any token may be a draft.
    """

    head: EagleHead
    pool: KVPool
    features: Tensor
    token_ids: Tensor
    many: int
    masks: bool


@dataclass(frozen=True, slots=True)
class Verified:
    """Results of a decode step that the head needs for the next drafts. All tensors are int64 on the device.

    A *query* is the index of a token of a sequence in the step.

    Attributes:
        slot: Slot of the KV cache of each sequence, [rows].
        written: Slot of the head's KV cache to which the head writes for each sequence, [rows]. For a sequence without
            drafts, it is the dummy slot (a slot without an owner), so that the sequence's own slot does not change.
        past: Number of tokens of each sequence in its slot before the step, [rows].
        first: First query after which a token is sampled for the output, [rows]. Earlier queries only complete the
            context.
        accepted: Number of accepted drafts, [rows]. The first `first + accepted + 1` tokens of the step are final.
        tokens: Tokens in the step, [rows, queries].
        drawn: Token sampled after each token of the step, [rows, queries].
        state: Grammar state (index in the `TableMemory`) after the last output token, [rows]. None: no sequence has a
            grammar.
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
    """Return the drafts of an EAGLE-3 head: the most likely tokens after the last output token of each sequence.

    Every sequence gets `on.many` drafts, so a draft may be an end token or a disallowed token. The drafts after this
    token have no meaning. The head writes keys and values into its KV cache.

    Args:
        on: The head.
        tables: Automata of grammars on the device.
        verified: Results of the current step, after the verification of its drafts.
        kv_length: Number of positions, from 0, that are read from each slot of the head's KV cache.

    Returns:
        Token IDs in the target's vocabulary, int64 [rows, many], in output order.
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
        # Beyond the end of the slot there is no valid draft; the host drops such drafts.
        slot = torch.where(position < on.pool.length, verified.written, on.pool.dummy_slot)[:, None]
        place = position.clamp(max=on.pool.length - 1)[:, None]
        output = _pass(on, proposed[-1], output, slot, place, verified.slot, kv_length)
        proposed.append(_likeliest(on, tables, output, state))
    return torch.stack(proposed, 1)


def _pass(
    on: DeviceHead, tokens: Tensor, features: Tensor, slot: Tensor, position: Tensor, read: Tensor, kv_length: int
) -> Tensor:
    """Run the head. `slot` and `position` are [rows, queries], `read` is [rows]. Return outputs [rows * queries, H]."""
    plan = static_plan(on.pool, slot, position, read, kv_length)
    return on.head.over_slots(tokens.flatten(), features, plan)


def _likeliest(on: DeviceHead, tables: TableMemory, outputs: Tensor, state: Tensor | None) -> Tensor:
    """Return the most likely token after each output [rows, H] that `state` allows, int64 [rows]."""
    logits = on.head.logits(outputs)
    if state is not None and on.masks:
        words = tables.rows[tables.places(state)[:, None], on.token_ids >> 5]
        allowed = (words >> (on.token_ids & 31)) & 1 != 0
        logits = logits.masked_fill(~allowed, -torch.inf)
    return on.token_ids[logits.argmax(-1)]
