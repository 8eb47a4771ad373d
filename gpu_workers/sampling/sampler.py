"""Draws one token per row: mask -> bias and penalties -> settings of the draw (`distribution`) -> inverse CDF.

Rows are split by what their mask leaves to decide, cheapest first:

  forced    one token is allowed          no logits
  sparse    a few hundred at most         only those columns of the output projection
  dense     many, or no grammar           the whole projection; greedy rows stop at the largest logit

The draw walks the cumulative weights in token-id order up to `uniform * total`. Forbidden tokens add exact zeros to
that float64 sum, so the sparse and the dense way agree, and the uniform number depends on (seed, choice, position,
attempt) alone: the same request gives the same tokens in any batch.

Dense rows are masked in place on a CPU, word by word; on a device mask rows lie packed in its memory (`device_rows`)
and are applied together with the temperature (`masked_scores`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

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
from grammar_workers.matching.masks import forbid_unmasked

_CACHED_SUMS = 1 << 17
"""Numbers that `inverse_cdf` sums up at once on a CPU: 1 MiB."""


@dataclass(frozen=True, slots=True)
class Draw:
    """One token to draw. `allowed` is None for a row without a grammar; `position` counts output tokens from 0.

    `history` is what penalties look at, None where there are none; `excluded`: ids that a row without a grammar may
    not have here; `attempt`: numbers apart what may be drawn at this position more than once; `proposal`: the draft for
    this position, if it was drawn at random.
    """

    sampling: SamplingParameters
    choice_index: int
    position: int
    allowed: AllowedTokens | None = None
    history: History | None = None
    excluded: frozenset[int] = frozenset()
    attempt: int = 0
    proposal: Proposal | None = None


@dataclass(slots=True)
class RowCounts:
    """How many rows went each way."""

    forced: int = 0
    sparse: int = 0
    dense: int = 0


@dataclass(frozen=True, slots=True)
class Choice:
    """How rows [n] choose among their columns, but for the logits.

    `many` of them are drawn, `drawn` int64 [many] on the device, None: all or none; the others take the largest.
    `settings` and `uniform` (float64 [many]) are of those drawn; `verification` numbers its rows among them.
    """

    adjustments: list[tuple[int, Adjustment]]
    many: int
    drawn: Tensor | None
    settings: DrawSettings
    uniform: Tensor
    verification: Verification | None


@dataclass(frozen=True, slots=True)
class SparseRows:
    """Rows `rows` of a batch that need the columns `union` int64 [U] alone; `index`: the same, int64 [n], None: all.

    Row i has `columns[i]` of them, int64 [n, K] padded at the end, and `padding` bool [n, K]; both are None where there
    is one row, which needs all of them.
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
    """Rows `rows` of a batch that need all columns; `index` int64 [n]: the same, None: all rows.

    `excluded` int64 [2, m]: places that are forbidden as well. `places` int64 [n]: where the mask rows of all are on a
    device, None on a CPU and where no row has one; `temperature` float64 [n], 1 for greedy rows.
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
    """Everything about `many` draws that does not depend on the model. `forced`: the tokens of rows without choice."""

    many: int
    forced: dict[int, int]
    sparse: SparseRows | None
    dense: DenseRows | None


@dataclass(frozen=True, slots=True)
class Drawn:
    """Draws that the device has been given. `columns` int64: of the sparse rows, then of the dense ones."""

    prepared: Prepared
    columns: HostCopy | None

    def token_ids(self) -> list[int]:
        """The token of each row; waits for the device."""
        columns = [] if self.columns is None else self.columns.read().tolist()
        tokens, sparse, dense = dict(self.prepared.forced), self.prepared.sparse, self.prepared.dense
        if sparse is not None:
            chosen = zip(sparse.rows, sparse.allowed, columns, strict=False)
            tokens.update((row, int(allowed[column])) for row, allowed, column in chosen)
        if dense is not None:
            tokens.update(zip(dense.rows, columns[-len(dense.rows) :], strict=True))
        return [tokens[i] for i in range(self.prepared.many)]


@dataclass(slots=True)
class Sampler:
    """Batched sampling over rows with different settings, in three parts: what the host prepares, what the device is
    given, and the tokens that it has drawn, which alone are waited for.
    """

    head: OutputHead
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    counts: RowCounts = field(default_factory=RowCounts)
    _device_rows: DeviceRows = field(init=False)

    def __post_init__(self) -> None:
        self._device_rows = DeviceRows(self.head.token_limit, self.device)

    def sample(self, hidden_states: Tensor, draws: Sequence[Draw]) -> list[int]:
        """hidden_states [n, H] in the order of `draws`. Returns n token ids; each is allowed by its row."""
        return self.draw(hidden_states, self.prepare(draws)).token_ids()

    def prepare(self, draws: Sequence[Draw]) -> Prepared:
        """The host's part: rows by kind, columns, penalties, random numbers."""
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
        """The device's part, hidden_states [n, H] of all rows; nothing is waited for."""
        columns = []
        if (sparse := prepared.sparse) is not None:
            columns.append(self._sparse(_rows(hidden_states, sparse.index), sparse))
        if (dense := prepared.dense) is not None:
            columns.append(self._dense(_rows(hidden_states, dense.index), dense))
        self.counts.forced += len(prepared.forced)
        self.counts.sparse += 0 if sparse is None else len(sparse.rows)
        self.counts.dense += 0 if dense is None else len(dense.rows)
        return Drawn(prepared, HostCopy(torch.cat(columns)) if columns else None)

    def _prepare_sparse(self, rows: list[int], batch: Sequence[Draw]) -> SparseRows:
        """The union of the allowed columns is projected once; then each row gathers its own."""
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
        """Columns int64 [n], numbered as in `group.allowed`."""
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
        """Some rows of a batch of `many`, ascending; None where it is all of them."""
        return None if len(rows) == many else to_device(torch.tensor(rows), self.device)

    def _dense(self, hidden_states: Tensor, group: DenseRows) -> Tensor:
        """Columns int64 [n], which are token ids."""
        logits = self.head.logits(hidden_states)
        if logits.device.type == "cpu" and logits.dtype == torch.float32:
            return choose_columns(self._masked(logits, group), group.choice)
        scores = self._scores(logits, group)
        return _choose(scores, group.choice, lambda drawn: filtered(drawn.exp_(), group.choice.settings))

    def _masked(self, logits: Tensor, group: DenseRows) -> Tensor:
        """Logits [n, V] on a CPU with what is forbidden at -inf; may be the same."""
        if group.masked:
            if not self.head.separable:
                logits = logits.clone()  # they are the hidden states, which others read, too
            forbid_unmasked(logits.numpy(), [row.mask for row in group.allowed], group.masked)
        return _excluded(logits, group)

    def _scores(self, logits: Tensor, group: DenseRows) -> Tensor:
        """As `masked_scores`.

        Bias and penalties touch a few tokens and come first: what they make of a forbidden one, the mask undoes.
        """
        if group.choice.adjustments:
            logits = adjust(logits, group.choice.adjustments)
        logits, places = _excluded(logits, group), group.places
        if places is None and group.masked:
            places = self._device_rows.places(len(logits), group.masked, group.allowed)
        rows = None if places is None else self._device_rows.table
        return masked_scores(logits, rows, places, group.temperature)

    def _choice(self, draws: list[Draw], columns: Sequence[NDArray[np.int64]] | None, width: int) -> Choice:
        """`columns[row]`: the token ids of the row's first columns, of `width`; None: column = token id."""
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
        """A number in [0, 1) for each draw, float64 [n]."""
        numbers = uniforms(
            [draw.sampling.seed for draw in draws],
            [draw.choice_index for draw in draws],
            [draw.position for draw in draws],
            stream,
            [draw.attempt for draw in draws],
        )
        return to_device(numbers, self.device)


def _rows(hidden_states: Tensor, index: Tensor | None) -> Tensor:
    """Some rows of a batch; no copy where it is all of them."""
    return hidden_states if index is None else hidden_states[index]


def _excluded(logits: Tensor, group: DenseRows) -> Tensor:
    """Logits [n, V] with what is forbidden beside masks at -inf; the same where nothing is."""
    if group.excluded is None:
        return logits
    return logits.index_put((group.excluded[0], group.excluded[1]), logits.new_tensor(-torch.inf))


def choose_columns(logits: Tensor, choice: Choice, columns: Sequence[NDArray[np.int64]] | None = None) -> Tensor:
    """One column per row of masked logits [n, K]: after bias and penalties the largest for temperature 0, else drawn.

    int64 [n]. `columns[row]`: the token ids that the row's first columns stand for; None when column = token id.
    """
    if choice.adjustments:
        logits = adjust(logits, choice.adjustments, columns)
    if logits.dtype in (torch.bfloat16, torch.float16):
        logits = logits.float()
    return _choose(logits, choice, lambda drawn: draw_weights(drawn, choice.settings))


def _choose(scores: Tensor, choice: Choice, weights_of: Callable[[Tensor], Tensor]) -> Tensor:
    """The column of each row of scores [n, K]: the largest, or drawn by what `weights_of` makes of the rows drawn."""
    if not choice.many:
        return scores.argmax(-1)
    if choice.drawn is None:
        return _draw(weights_of(scores), choice)
    return scores.argmax(-1).index_copy(0, choice.drawn, _draw(weights_of(scores[choice.drawn]), choice))


def _draw(weights: Tensor, choice: Choice) -> Tensor:
    """Columns int64 [n] of the rows that are drawn, by their weights [n, K]."""
    if choice.verification is not None:
        weights = choice.verification.apply(weights)
    if weights.device.type != "cpu":
        return inverse_cdf(weights, choice.uniform)
    # A few rows at a time: their sums use the same memory again and stay in the cache.
    rows = max(1, _CACHED_SUMS // weights.shape[1])
    parts = zip(weights.split(rows), choice.uniform.split(rows), strict=True)
    return torch.cat([inverse_cdf(some, uniform) for some, uniform in parts])
