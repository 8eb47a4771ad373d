"""Logit bias and penalties: what is added to, scaled or subtracted from single logits before the temperature.

Per row a short list of tokens is touched, whatever the vocabulary's size; all rows of a step are changed by one gather
and one scatter.

    logit += bias                                            OpenAI's `logit_bias`
    logit  = logit / repetition if logit > 0 else * repetition   tokens of prompt and output (Keskar et al. 2019, CTRL)
    logit -= presence * [count > 0] + frequency * count      tokens of the output (OpenAI)
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
    """The tokens that penalties look at. `prompt`: its distinct ids, int64, ascending; `output`: ids as drawn."""

    prompt: NDArray[np.int64]
    output: Sequence[int]


@dataclass(frozen=True, slots=True)
class Adjustment:
    """What happens to one row's logits: arrays [m] over `token_ids` (int64, ascending), the others float64."""

    token_ids: NDArray[np.int64]
    bias: NDArray[np.float64]
    repetition: NDArray[np.float64]
    subtracted: NDArray[np.float64]


def adjustment(sampling: SamplingParameters, history: History) -> Adjustment:
    """The bias and penalties of one row after `history`."""
    drawn, counts = np.unique(np.asarray(history.output, dtype=np.int64), return_counts=True)
    biased = np.array(sorted(sampling.logit_bias), dtype=np.int64)
    repeated = np.union1d(history.prompt, drawn) if sampling.repetition_penalty != 1 else drawn
    token_ids = np.union1d(repeated, biased)
    bias = np.zeros(len(token_ids))
    bias[np.searchsorted(token_ids, biased)] = [sampling.logit_bias[token_id] for token_id in biased.tolist()]
    repetition = np.ones(len(token_ids))
    repetition[np.searchsorted(token_ids, repeated)] = sampling.repetition_penalty
    subtracted = np.zeros(len(token_ids))
    subtracted[np.searchsorted(token_ids, drawn)] = sampling.presence_penalty + sampling.frequency_penalty * counts
    return Adjustment(token_ids, bias, repetition, subtracted)


def adjust(
    logits: Tensor,
    adjustments: Sequence[tuple[int, Adjustment]],
    columns: Sequence[NDArray[np.int64]] | None = None,
) -> Tensor:
    """Masked logits [n, K] with the adjustments of some rows applied; forbidden tokens stay at -inf.

    `columns[row]`: the token ids (ascending) that the row's first columns stand for; None when column = token id.
    """
    rows, places, biases, repetitions, subtractions = [], [], [], [], []
    for row, one in adjustments:
        if columns is None:
            place, present = one.token_ids, one.token_ids < logits.shape[1]
        else:
            place = np.searchsorted(columns[row], one.token_ids)
            present = np.isin(one.token_ids, columns[row], assume_unique=True)
        rows.append(np.full(int(present.sum()), row))
        places.append(place[present])
        biases.append(one.bias[present])
        repetitions.append(one.repetition[present])
        subtractions.append(one.subtracted[present])
    index = to_device(np.stack([np.concatenate(rows), np.concatenate(places)]), logits.device)
    numbers = np.stack([np.concatenate(biases), np.concatenate(repetitions), np.concatenate(subtractions)])
    bias, repetition, subtracted = to_device(numbers, logits.device, logits.dtype)
    values = logits[index[0], index[1]] + bias
    limits = torch.finfo(logits.dtype)
    repetition = repetition.clamp(min=limits.tiny)  # rounded to 0 it would make NaN of a forbidden token's -inf
    favoured = (values / repetition).clamp(max=limits.max / 2)  # and of two infinities the softmax
    values = torch.where(values > 0, favoured, values * repetition) - subtracted
    return logits.index_put((index[0], index[1]), values)
