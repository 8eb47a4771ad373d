"""Samples one token per sequence: mask --> bias and penalties --> sampling settings (`distribution`) --> inverse CDF.

Sequences are grouped by the number of tokens that their mask allows, cheapest group first:

  forced    one allowed token             no logits
  sparse    at most `sparse_limit`        only the allowed columns of the output projection
  dense     more, or no grammar           the whole projection; at temperature 0 the largest logit

Weights are added up in float64, in the order of token IDs. Disallowed tokens add exact zeros, so sparse and dense
sampling agree. Random numbers depend only on (seed, choice, position, attempt), not on the batch.

For forced and sparse sequences, the sampler reads the list of allowed tokens (`AllowedTokens.token_ids`), not the bits
of the mask. For dense sequences, it reads the bits. On a CPU, `forbid_unmasked` reads them and changes float32 logits
in place. On a GPU, masks are kept in device memory (`device_rows`), and `masked_scores` reads the bits there and
applies the mask together with the temperature.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpu_workers.model.output_head import OutputHead
from gpu_workers.request import SamplingParameters
from gpu_workers.sampling.allowed_tokens import AllowedTokens
from gpu_workers.sampling.device_rows import DeviceRows
from gpu_workers.sampling.distribution import DrawSettings, draw_settings, draw_weights, filtered, inverse_cdf
from gpu_workers.sampling.masked_scores import masked_scores
from gpu_workers.sampling.penalties import Adjustment, History, adjust, adjustment
from gpu_workers.sampling.randomness import Stream, uniforms
from gpu_workers.sampling.verification import Proposal, Verification
from gpu_workers.transfers import HostCopy, to_device
from grammar_workers.matching.apply_masks import forbid_unmasked

# Number of cumulative sums that `inverse_cdf` computes at once on a CPU: 1 MiB.
_CACHED_SUMS = 1 << 17
_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Draw:
    """Inputs for sampling one token of one sequence.

    Attributes:
        sampling: Sampling settings of the request.
        choice_index: Index of the sequence among the `n` outputs of its client request.
        position: Position of the token in the output, from 0.
        allowed: Mask of the sequence; None without a grammar.
        history: Tokens on which penalties depend; None without logit bias and penalties.
        excluded: Tokens that a sequence without a grammar must not have at this position.
        attempt: Number that selects other random numbers (see `uniforms`) when a position is sampled again after a
            rollback.
        proposal: Draft for this position, and its distribution; None unless the draft was sampled at random.
    """

    sampling: SamplingParameters
    choice_index: int
    position: int
    allowed: AllowedTokens | None = None
    history: History | None = None
    excluded: frozenset[int] = frozenset()
    attempt: int = 0
    proposal: Proposal | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """Settings and random numbers to select one column (index in the second dimension of the logits) per sequence.

    Attributes:
        adjustments: Pairs (index in [0, n), changes to the logits) of the sequences with logit bias or penalties.
        many: Number of *drawn* sequences, which have a temperature above 0. The others take the largest logit.
        drawn: Indices in [0, n) of the drawn sequences, int64 [many] on the device; None if all or none are drawn.
        settings: Sampling settings of the drawn sequences.
        uniform: Random number in [0, 1) of each drawn sequence, float64 [many].
        verification: Randomly sampled drafts to verify, by index among the drawn sequences; None if there are none.
    """

    adjustments: list[tuple[int, Adjustment]]
    many: int
    drawn: Tensor | None
    settings: DrawSettings
    uniform: Tensor
    verification: Verification | None


@dataclass(frozen=True, slots=True)
class SparseRows:
    """The n sequences of a batch whose masks allow few tokens. Only the logits of these tokens are computed.

    For example, two sequences allow the tokens [3, 7] and [7]. Then `union` is [3, 7], `columns` is [[0, 1], [1, 0]],
    and `padding` is true only for the last column of the second sequence.

    Attributes:
        rows: Indices of the sequences in the batch, ascending.
        index: `rows` as int64 [n] on the device; None if they are the whole batch.
        choice: Settings and random numbers to select a column per sequence.
        allowed: Allowed tokens of each sequence, ascending.
        union: All tokens that any sequence allows, int64 [U].
        columns: Index in `union` of each allowed token, int64 [n, K], padded at the end; None for a single sequence.
        padding: True for padding in `columns`, bool [n, K]; None for a single sequence.
    """

    rows: list[int]
    index: Tensor | None
    choice: Choice
    allowed: list[NDArray[np.int64]]
    union: Tensor
    columns: Tensor | None
    padding: Tensor | None


@dataclass(frozen=True, slots=True)
class DenseRows:
    """The n sequences of a batch that need the logits of all tokens.

    Attributes:
        rows: Indices of the sequences in the batch, ascending.
        index: `rows` as int64 [n] on the device; None if they are the whole batch.
        choice: Settings and random numbers to select a column per sequence.
        masked: Sequences with a mask, as indices in [0, n).
        allowed: Masks of the sequences in `masked`.
        excluded: Pairs (sequence, token) of further disallowed tokens, int64 [2, m]; None if there are none.
        places: Index of each sequence's mask in the device's table, int64 [n]; None on a CPU, or without any mask.
        temperature: Temperature of each sequence, float64 [n]; 1 instead of 0.
    """

    rows: list[int]
    index: Tensor | None
    choice: Choice
    masked: list[int]
    allowed: list[AllowedTokens]
    excluded: Tensor | None
    places: Tensor | None
    temperature: Tensor


@dataclass(frozen=True, slots=True)
class Prepared:
    """All inputs for sampling one token for each sequence of a batch, except the model's output.

    Attributes:
        many: Number of sequences.
        forced: The only allowed token of each sequence whose mask allows one token, by index of the sequence.
        sparse: Sequences whose masks allow few tokens; None if there are none.
        dense: All other sequences; None if there are none.
    """

    many: int
    forced: dict[int, int]
    sparse: SparseRows | None
    dense: DenseRows | None


@dataclass(frozen=True, slots=True)
class Drawn:
    """Sampled tokens of a batch, which the device may still be computing.

    Attributes:
        prepared: Inputs of the sampling.
        columns: Copy to the host of an int64 tensor with one number per sequence. For the sequences of
            `prepared.sparse`, which come first, it is an index in the allowed tokens of the sequence. For the sequences
            of `prepared.dense`, it is a token ID. None if all tokens are forced.
    """

    prepared: Prepared
    columns: HostCopy | None

    def token_ids(self) -> list[int]:
        """Wait for the device, and return the sampled token of each sequence, in the order of the batch."""
        columns = [] if self.columns is None else self.columns.read().tolist()
        tokens, sparse, dense = dict(self.prepared.forced), self.prepared.sparse, self.prepared.dense
        if sparse is not None:
            chosen = zip(sparse.rows, sparse.allowed, columns, strict=False)
            tokens.update((row, int(allowed[column])) for row, allowed, column in chosen)
        if dense is not None:
            tokens.update(zip(dense.rows, columns[-len(dense.rows) :], strict=True))
        return [tokens[i] for i in range(self.prepared.many)]


class Sampler:
    """Samples one token for each sequence of a batch. Sequences may have different settings.

    Sampling has three parts: the host prepares (`prepare`), the device samples (`draw`), and the host reads the tokens
    (`Drawn.token_ids`). Only the last part waits for the device.

    Attributes:
        head: Output head of the model: hidden states to logits.
        device: Device of the hidden states.
        counts: Numbers of sampled tokens so far, by the number of allowed tokens: `forced` (one token), `sparse`
            (few, so only their logits were computed) and `dense` (many, or there was no mask).
    """

    def __init__(self, head: OutputHead, device: torch.device = _CPU) -> None:
        self.head = head
        self.device = device
        self.counts: Counter[str] = Counter()
        self._device_rows = DeviceRows(head.token_limit, device)

    def sample(self, hidden_states: Tensor, draws: Sequence[Draw]) -> list[int]:
        """Sample one token per sequence, and wait for the device.

        Args:
            hidden_states: Hidden state of the last token of each sequence, [n, H], in the order of `draws`.
            draws: Sampling inputs of each sequence.

        Returns:
            n token IDs. Each is allowed by the mask of its sequence.
        """
        return self.draw(hidden_states, self.prepare(draws)).token_ids()

    def prepare(self, draws: Sequence[Draw]) -> Prepared:
        """Prepare sampling on the host: all work that does not need the model's output, such as random numbers.

        Args:
            draws: Sampling inputs of each sequence of the batch.

        Returns:
            The prepared inputs, for `draw`.
        """
        forced: dict[int, int] = {}
        sparse: list[int] = []
        dense: list[int] = []
        for i, draw in enumerate(draws):
            allowed = draw.allowed
            if allowed is None or allowed.token_ids is None:
                dense.append(i)
            elif allowed.count == 1:
                forced[i] = int(allowed.token_ids[0])
            else:
                sparse.append(i)
        return Prepared(
            len(draws),
            forced,
            self._prepare_sparse(sparse, draws) if sparse else None,
            self._prepare_dense(dense, draws) if dense else None,
        )

    @torch.inference_mode()
    def draw(self, hidden_states: Tensor, prepared: Prepared) -> Drawn:
        """Start to sample one token per sequence on the device. The call does not wait for the tokens.

        Args:
            hidden_states: Hidden state of the last token of each sequence, [n, H], in the order of the batch.
            prepared: Result of `prepare` for this batch.

        Returns:
            The sampled tokens, which the device may still be computing.
        """
        columns = []
        if (sparse := prepared.sparse) is not None:
            columns.append(self._sparse(_rows(hidden_states, sparse.index), sparse))
        if (dense := prepared.dense) is not None:
            columns.append(self._dense(_rows(hidden_states, dense.index), dense))
        self.counts["forced"] += len(prepared.forced)
        self.counts["sparse"] += 0 if sparse is None else len(sparse.rows)
        self.counts["dense"] += 0 if dense is None else len(dense.rows)
        return Drawn(prepared, HostCopy(torch.cat(columns)) if columns else None)

    def _prepare_sparse(self, rows: list[int], batch: Sequence[Draw]) -> SparseRows:
        """Prepare sparse sequences: the union of their columns is projected once; then each gathers its own."""
        draws, index = [batch[i] for i in rows], self._index(rows, len(batch))
        allowed = [draw.allowed.token_ids for draw in draws if draw.allowed and draw.allowed.token_ids is not None]
        counts = np.array([len(token_ids) for token_ids in allowed])
        choice = self._choice(draws, allowed, int(counts.max()))
        if len(rows) == 1:
            return SparseRows(rows, index, choice, allowed, to_device(allowed[0], self.device), None, None)
        union, place = np.unique(np.concatenate(allowed), return_inverse=True)
        real = np.arange(counts.max()) < counts[:, None]
        columns = np.zeros(real.shape, dtype=np.int64)
        columns[real] = place
        tensors = (to_device(array, self.device) for array in (union, columns, ~real))
        return SparseRows(rows, index, choice, allowed, *tensors)

    def _sparse(self, hidden_states: Tensor, group: SparseRows) -> Tensor:
        """Return the column of each sequence, an index in its `group.allowed`, int64 [n]."""
        logits = self.head.columns(hidden_states, group.union)
        if group.columns is not None and group.padding is not None:
            logits = logits.gather(1, group.columns).masked_fill(group.padding, -torch.inf)
        return choose_columns(logits, group.choice, group.allowed)

    def _prepare_dense(self, rows: list[int], batch: Sequence[Draw]) -> DenseRows:
        draws = [batch[i] for i in rows]
        excluded = [(i, token_id) for i, draw in enumerate(draws) for token_id in draw.excluded]
        masked = [i for i, draw in enumerate(draws) if draw.allowed is not None]
        allowed = [draw.allowed for draw in draws if draw.allowed is not None]
        temperature = torch.tensor([draw.sampling.temperature or 1.0 for draw in draws], dtype=torch.float64)
        return DenseRows(
            rows,
            self._index(rows, len(batch)),
            self._choice(draws, None, self.head.token_limit),
            masked,
            allowed,
            to_device(torch.tensor(excluded), self.device).T if excluded else None,
            None if self.device.type == "cpu" or not masked else self._device_rows.places(len(rows), masked, allowed),
            to_device(temperature, self.device),
        )

    def _index(self, rows: list[int], many: int) -> Tensor | None:
        """Return ascending indices in a batch of `many` sequences; None if they are all of them."""
        return None if len(rows) == many else to_device(torch.tensor(rows), self.device)

    def _dense(self, hidden_states: Tensor, group: DenseRows) -> Tensor:
        """Return the column of each sequence, which is its token ID, int64 [n]."""
        logits = self.head.logits(hidden_states)
        if logits.device.type == "cpu" and logits.dtype == torch.float32:
            return choose_columns(self._masked(logits, group), group.choice)
        scores = self._scores(logits, group)
        return _choose(scores, group.choice, lambda drawn: filtered(drawn.exp_(), group.choice.settings))

    def _masked(self, logits: Tensor, group: DenseRows) -> Tensor:
        """Return logits [n, V] on a CPU with disallowed tokens at -inf; may change `logits` in place."""
        if group.masked:
            if not self.head.separable:
                logits = logits.clone()  # these are the step's hidden states, which other code reads too
            forbid_unmasked(logits.numpy(), [row.mask for row in group.allowed], group.masked)
        return _excluded(logits, group)

    def _scores(self, logits: Tensor, group: DenseRows) -> Tensor:
        """Return the scores of `masked_scores` [n, V]; bias and penalties come before the mask."""
        if group.choice.adjustments:
            logits = adjust(logits, group.choice.adjustments)
        logits, places = _excluded(logits, group), group.places
        if places is None and group.masked:
            places = self._device_rows.places(len(logits), group.masked, group.allowed)
        rows = None if places is None else self._device_rows.table
        return masked_scores(logits, rows, places, group.temperature)

    def _choice(self, draws: list[Draw], columns: Sequence[NDArray[np.int64]] | None, width: int) -> Choice:
        """Return how sequences choose among `width` columns. `columns` is as in `choose_columns`."""
        drawn = [i for i, draw in enumerate(draws) if draw.sampling.temperature > 0]
        rows = [draws[i] for i in drawn]
        return Choice(
            [(i, adjustment(draw.sampling, draw.history)) for i, draw in enumerate(draws) if draw.history is not None],
            len(drawn),
            self._index(drawn, len(draws)) if drawn else None,
            draw_settings([draw.sampling for draw in rows], self.device),
            self._uniforms(rows, Stream.SAMPLE),
            self._verification(draws, drawn, columns, width),
        )

    def _verification(
        self, draws: list[Draw], drawn: list[int], columns: Sequence[NDArray[np.int64]] | None, width: int
    ) -> Verification | None:
        rows = [(row, i, proposal) for row, i in enumerate(drawn) if (proposal := draws[i].proposal) is not None]
        if not rows:
            return None
        placed = [proposal.over(None if columns is None else columns[i], width) for _, i, proposal in rows]
        return Verification(
            to_device(torch.tensor([row for row, _, _ in rows]), self.device),
            to_device(np.stack([probabilities for probabilities, _ in placed]), self.device),
            to_device(torch.tensor([column for _, column in placed]), self.device),
            self._uniforms([draws[i] for _, i, _ in rows], Stream.ACCEPT),
        )

    def _uniforms(self, draws: list[Draw], stream: Stream) -> Tensor:
        numbers = uniforms(
            [draw.sampling.seed for draw in draws],
            [draw.choice_index for draw in draws],
            [draw.position for draw in draws],
            stream,
            [draw.attempt for draw in draws],
        )
        return to_device(numbers, self.device)


def _rows(hidden_states: Tensor, index: Tensor | None) -> Tensor:
    """Return some sequences of a batch; no copy if `index` is None."""
    return hidden_states if index is None else hidden_states[index]


def _excluded(logits: Tensor, group: DenseRows) -> Tensor:
    """Return logits [n, V] with `group.excluded` at -inf; the same tensor if it is None."""
    if group.excluded is None:
        return logits
    return logits.index_put((group.excluded[0], group.excluded[1]), logits.new_tensor(-torch.inf))


def choose_columns(logits: Tensor, choice: Choice, columns: Sequence[NDArray[np.int64]] | None = None) -> Tensor:
    """Select one column (index in the second dimension of the logits) per sequence, after logit bias and penalties.

    Args:
        logits: Masked logits [n, K].
        choice: Settings and random numbers. At temperature 0, the column of the largest logit is chosen.
        columns: Token IDs of the columns of each sequence, before padding. None: the token ID is the column.

    Returns:
        Columns, int64 [n].
    """
    if choice.adjustments:
        logits = adjust(logits, choice.adjustments, columns)
    if logits.dtype in (torch.bfloat16, torch.float16):
        logits = logits.float()
    return _choose(logits, choice, lambda drawn: draw_weights(drawn, choice.settings))


def _choose(scores: Tensor, choice: Choice, weights_of: Callable[[Tensor], Tensor]) -> Tensor:
    """Return a column per sequence of scores [n, K]: the largest, or sampled by the result of `weights_of`."""
    if not choice.many:
        return scores.argmax(-1)
    if choice.drawn is None:
        return _draw(weights_of(scores), choice)
    return scores.argmax(-1).index_copy(0, choice.drawn, _draw(weights_of(scores[choice.drawn]), choice))


def _draw(weights: Tensor, choice: Choice) -> Tensor:
    if choice.verification is not None:
        weights = choice.verification.apply(weights)
    if weights.device.type != "cpu":
        return inverse_cdf(weights, choice.uniform)
    # A few sequences at a time, so that their sums reuse the same memory and stay in the cache.
    rows = max(1, _CACHED_SUMS // weights.shape[1])
    parts = zip(weights.split(rows), choice.uniform.split(rows), strict=True)
    return torch.cat([inverse_cdf(some, uniform) for some, uniform in parts])
