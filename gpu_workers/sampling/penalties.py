"""Logit bias and penalties, which change the logits of single tokens before the temperature is applied.

Only the logits of biased tokens, and of tokens in prompt or output, change. One gather and one scatter apply the
changes of all sequences of a step. The changes have this order:

    logit += bias                                           OpenAI's `logit_bias`
    logit  = logit / r if logit > 0 else logit * r          tokens of prompt and output (Keskar et al. 2019, CTRL)
    logit -= presence * (count > 0) + frequency * count     tokens of the output (OpenAI)

r is the repetition penalty, and `count` is the number of times that the token is in the output.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpu_workers.request import SamplingParameters
from gpu_workers.transfers import to_device


@dataclass(frozen=True, slots=True)
class History:
    """Tokens of one sequence on which its penalties depend.

    Attributes:
        prompt: Distinct tokens of the prompt, int64, ascending.
        output: Tokens of the output, in order.
    """

    prompt: NDArray[np.int64]
    output: Sequence[int]


@dataclass(frozen=True, slots=True)
class Adjustment:
    """Changes to the logits of m tokens of one sequence, from logit bias and penalties.

    Attributes:
        token_ids: The tokens, int64 [m], ascending.
        numbers: Three numbers for each token, float64 [3, m]. Logit bias: added before the penalties; 0 for tokens
            without a bias. Repetition penalty: divides positive logits and multiplies negative ones; 1 for tokens
            without this penalty. Sum of presence and frequency penalty: subtracted; 0 for tokens that are not in the
            output.
    """

    token_ids: NDArray[np.int64]
    numbers: NDArray[np.float64]


def adjustment(sampling: SamplingParameters, history: History) -> Adjustment:
    """Return the changes to the logits of one sequence, for its next token, by logit bias and penalties.

    Args:
        sampling: Settings of the request. Only logit bias and penalties are used.
        history: Tokens of prompt and output of the sequence so far.
    """
    drawn, counts = np.unique(np.asarray(history.output, dtype=np.int64), return_counts=True)
    biased = np.array(sorted(sampling.logit_bias), dtype=np.int64)
    repeated = np.union1d(history.prompt, drawn) if sampling.repetition_penalty != 1 else drawn
    token_ids = np.union1d(repeated, biased)
    bias, repetition, subtracted = numbers = np.zeros((3, len(token_ids)))
    bias[np.searchsorted(token_ids, biased)] = [sampling.logit_bias[token_id] for token_id in biased.tolist()]
    repetition[:] = 1
    repetition[np.searchsorted(token_ids, repeated)] = sampling.repetition_penalty
    subtracted[np.searchsorted(token_ids, drawn)] = sampling.presence_penalty + sampling.frequency_penalty * counts
    return Adjustment(token_ids, numbers)


def adjust(
    logits: Tensor,
    adjustments: Sequence[tuple[int, Adjustment]],
    columns: Sequence[NDArray[np.int64]] | None = None,
) -> Tensor:
    """Apply logit bias and penalties to the logits of some sequences. Logits of -inf (disallowed tokens) stay -inf.

    A *column* is an index in the second dimension of the logits.

    Args:
        logits: Logits of n sequences, masked or not, [n, K]. Not changed.
        adjustments: Pairs (index of the sequence in [0, n), changes to its logits), at least one. Sequences that are
            left out do not change.
        columns: `columns[i]` has the token IDs, ascending, of the first columns of sequence i; further columns are
            padding. None: the token ID is the column.

    Returns:
        Changed logits [n, K] in a new tensor, of the type of `logits`.
    """
    places, numbers = [], []
    for row, one in adjustments:
        if columns is None:
            place, present = one.token_ids, one.token_ids < logits.shape[1]
        else:
            place = np.searchsorted(columns[row], one.token_ids)
            present = np.isin(one.token_ids, columns[row], assume_unique=True)
        places.append(np.stack([np.full(int(present.sum()), row), place[present]]))
        numbers.append(one.numbers[:, present])
    index = to_device(np.concatenate(places, 1), logits.device)
    bias, repetition, subtracted = to_device(np.concatenate(numbers, 1), logits.device, logits.dtype)
    values = logits[index[0], index[1]] + bias
    limits = torch.finfo(logits.dtype)
    repetition = repetition.clamp(min=limits.tiny)  # a penalty that rounds to 0 would turn -inf into NaN
    favoured = (values / repetition).clamp(max=limits.max / 2)  # two infinite logits would make the softmax NaN
    values = torch.where(values > 0, favoured, values * repetition) - subtracted
    return logits.index_put((index[0], index[1]), values)
