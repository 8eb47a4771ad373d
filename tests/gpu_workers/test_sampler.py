"""Masked sampling: against transformers' logits processors, exact distributions, and its own slower way."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from gpu_workers.model.output_head import OutputHead
from gpu_workers.request import SamplingParameters
from gpu_workers.sampling.allowed_tokens import AllowedTokens, read_row, unpack
from gpu_workers.sampling.distribution import column_at, inverse_cdf, scaled
from gpu_workers.sampling.penalties import History, adjust, adjustment
from gpu_workers.sampling.sampler import Draw, Sampler
from gpu_workers.sampling.truncation import drop_unlikely, truncate, truncate_by_sorting

CPU = torch.device("cpu")
LIMIT = 1000
WIDTH = 1024
HIDDEN = 16


def make_head(separable: bool = True, seed: int = 0) -> OutputHead:
    torch.manual_seed(seed)
    projection = nn.Linear(HIDDEN, WIDTH, dtype=torch.float64)
    nn.init.normal_(projection.weight)
    return OutputHead(projection, LIMIT, separable=separable)


def allow(token_ids: list[int] | np.ndarray, sparse_limit: int = 100) -> AllowedTokens:
    bits = np.zeros(WIDTH, np.uint8)
    bits[token_ids] = 1
    return read_row(np.packbits(bits, bitorder="little").view(np.uint32), [2], sparse_limit)


def hidden_states(rows: int, seed: int = 1) -> Tensor:
    return torch.randn(rows, HIDDEN, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def draw(position: int = 0, allowed: AllowedTokens | None = None, **sampling: object) -> Draw:
    return Draw(SamplingParameters.model_validate(sampling), 0, position, allowed)


@given(st.sets(st.integers(0, WIDTH - 1)), st.integers(1, 64))
def test_a_row_is_read_exactly(token_ids: set[int], sparse_limit: int) -> None:
    row = allow(sorted(token_ids), sparse_limit)
    assert row.count == len(token_ids)
    assert set(np.flatnonzero(unpack([row], WIDTH, CPU)[0]).tolist()) == token_ids
    if len(token_ids) > sparse_limit:
        assert row.token_ids is None and not row.only_end
    else:
        assert row.token_ids is not None and row.token_ids.tolist() == sorted(token_ids)
        assert row.only_end == (token_ids == {2})


@settings(max_examples=60)
@given(
    st.integers(0, 10**6),
    st.sampled_from([0, 1, 5, 64, 1500]),
    st.sampled_from([1.0, 0.99, 0.9, 0.5, 0.01]),
    st.sampled_from([0.1, 0.7, 1.0, 3.0]),
)
def test_truncation_equals_transformers(seed: int, top_k: int, top_p: float, temperature: float) -> None:
    """The tokens left by temperature, top-k, top-p in transformers' own processors are the ones left here."""
    logits = torch.randn(3, 2500, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * 2
    processors = LogitsProcessorList([TemperatureLogitsWarper(temperature)])
    if top_k:
        processors.append(TopKLogitsWarper(top_k))
    if top_p < 1:
        processors.append(TopPLogitsWarper(top_p))
    expected = processors(torch.zeros(3, 1, dtype=torch.int64), logits.clone()).softmax(-1)
    weights = ((logits - logits.amax(-1, keepdim=True)) / temperature).exp()
    # The middle row has no truncation: settings of one row must not reach another.
    actual = truncate(weights, torch.tensor([top_k, 0, top_k]), torch.tensor([top_p, 1, top_p], dtype=torch.float64))
    assert torch.equal(actual[1], weights[1])
    for row in (0, 2):
        torch.testing.assert_close(actual[row] / actual[row].sum(), expected[row])


@settings(max_examples=60)
@given(st.integers(0, 10**6), st.floats(0.001, 0.999), st.sampled_from([0.05, 1.0, 20.0]), st.booleans())
def test_without_sorting_is_kept_what_sorting_keeps(seed: int, top_p: float, scale: float, single: bool) -> None:
    """From one likely token to a nearly flat row; columns that a mask has zeroed change nothing."""
    logits = torch.randn(2, 3000, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * scale
    weights = (logits - logits.amax(-1, keepdim=True)).exp().to(torch.float32 if single else torch.float64)
    weights[:, ::3] = 0
    for top_k in (0, 40):
        limits = torch.tensor([top_k, 0]), torch.tensor([top_p, 0.5], dtype=torch.float64)
        kept = truncate(weights, *limits)
        assert torch.equal(kept, truncate_by_sorting(weights, *limits))
        narrow = torch.cat([weights[:, 1::3], weights[:, 2::3]], dim=1)
        assert torch.equal(torch.cat([kept[:, 1::3], kept[:, 2::3]], dim=1), truncate(narrow, *limits))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=50).filter(any), st.floats(0, 1, exclude_max=True))
def test_inverse_cdf_chooses_a_column_with_weight(weights: list[float], uniform: float) -> None:
    row = torch.tensor([weights], dtype=torch.float64)
    chosen = int(inverse_cdf(row, torch.tensor([uniform], dtype=torch.float64)))
    assert weights[chosen] > 0
    before = sum(weights[:chosen])
    assert before <= uniform * sum(weights) * (1 + 1e-12) or before == 0


def test_the_largest_uniform_stays_inside() -> None:
    row = torch.full((1, 3), 0.1, dtype=torch.float32)
    row[0, 2] = 0
    assert int(inverse_cdf(row, torch.tensor([1 - 2**-53], dtype=torch.float64))) == 1


def test_no_column_without_weight_is_drawn_whatever_the_sums_are() -> None:
    """A parallel sum rises by an ulp where the weight is 0; sums of what is not a number find no column at all."""
    weights = torch.tensor([[0.25, 0.0, 0.5, 0.25]]).expand(3, 4).clone()
    cumulative = weights.double().cumsum(-1)
    above = cumulative[0, 1].nextafter(torch.tensor(1.0, dtype=torch.float64))
    cumulative[:, 1] = above
    uniform = torch.tensor([0.25, 0.1, 0.9], dtype=torch.float64)
    assert column_at(weights, cumulative, uniform).tolist() == [2, 0, 3]
    weights[0] = torch.nan
    assert 0 <= int(inverse_cdf(weights, uniform)[0]) < 4


@pytest.mark.parametrize("allowed", [[3, 40, 41, 900, 999], list(range(0, 1000, 7)), None])
@pytest.mark.parametrize("sampling", [{"temperature": 1.0}, {"temperature": 0.6, "top_k": 4}, {"top_p": 0.7}])
def test_distribution_is_the_masked_truncated_softmax(allowed: list[int] | None, sampling: dict[str, float]) -> None:
    """Chi-square of 20,000 draws against: mask, then temperature, then truncation, by transformers' processors."""
    head, many = make_head(), 20_000
    hidden = hidden_states(1) / 2
    logits = head.logits(hidden).clone()
    if allowed is not None:
        keep = torch.zeros(LIMIT, dtype=torch.bool)
        keep[allowed] = True
        logits[0, ~keep] = -torch.inf
    processors = LogitsProcessorList([TemperatureLogitsWarper(float(sampling.get("temperature", 1.0)))])
    if "top_k" in sampling:
        processors.append(TopKLogitsWarper(int(sampling["top_k"])))
    if "top_p" in sampling:
        processors.append(TopPLogitsWarper(sampling["top_p"]))
    expected = processors(torch.zeros(1, 1, dtype=torch.int64), logits).softmax(-1)[0].detach().numpy() * many
    row = None if allowed is None else allow(allowed)
    sampler = Sampler(head)
    tokens: list[int] = []
    for start in range(0, many, 2000):
        draws = [draw(start + i, row, seed=11, **sampling) for i in range(2000)]
        tokens += sampler.sample(hidden.expand(2000, -1), draws)
    observed = np.bincount(tokens, minlength=LIMIT)
    assert not observed[expected == 0].any()
    assert chi_square(observed, expected) > 1e-4


def chi_square(observed: np.ndarray, expected: np.ndarray) -> float:
    """p-value of Pearson's test; cells that expect less than 8 count as one."""
    rare = expected < 8
    seen = np.append(observed[~rare], observed[rare].sum())
    wanted = np.append(expected[~rare], expected[rare].sum())
    seen, wanted = seen[wanted > 0], wanted[wanted > 0]
    statistic = ((seen - wanted) ** 2 / wanted).sum()
    return float(torch.special.gammaincc(torch.tensor((len(seen) - 1) / 2), torch.tensor(statistic / 2).float()))


def random_draws(seed: int, sparse_limit: int) -> list[Draw]:
    """Rows of all kinds with all sorts of settings; the same rows whatever the limit."""
    rng = np.random.default_rng(seed)
    draws = []
    for i in range(int(rng.integers(1, 20))):
        many = int(rng.choice([0, 1, 2, 30, 300, 900]))
        row = None if many == 0 else allow(rng.choice(LIMIT, many, replace=False), sparse_limit)
        sampling = {
            "temperature": float(rng.choice([0, 0.5, 1, 2])),
            "top_k": int(rng.choice([0, 1, 20])),
            "top_p": float(rng.choice([1, 0.8, 0.3])),
            "min_p": float(rng.choice([0, 0.1])),
            "repetition_penalty": float(rng.choice([1, 1.5])),
            "frequency_penalty": float(rng.choice([0, 1])),
            "logit_bias": {int(rng.integers(0, LIMIT)): 3.0},
            "seed": i,
        }
        history = History(np.arange(0, LIMIT, 3), rng.integers(0, LIMIT, 50).tolist())
        draws.append(replace(draw(i, row, **sampling), history=history if rng.random() < 0.5 else None))
    return draws


@pytest.mark.parametrize("seed", range(40))
def test_every_way_gives_the_same_tokens(seed: int) -> None:
    """Forced, sparse and dense rows, separable head or not, together or alone: the same tokens, each allowed."""
    head = make_head()
    many = len(random_draws(seed, 100))
    hidden = hidden_states(many, seed)
    split = Sampler(head)
    tokens = split.sample(hidden, random_draws(seed, 100))
    all_dense = Sampler(head).sample(hidden, random_draws(seed, 0))
    whole_logits = nn.functional.linear(hidden, head._projection.weight, head._projection.bias)  # type: ignore[arg-type]
    not_separable = Sampler(make_head(separable=False)).sample(whole_logits, random_draws(seed, 100))
    alone = [Sampler(head).sample(hidden[i : i + 1], [row])[0] for i, row in enumerate(random_draws(seed, 100))]
    assert tokens == all_dense == not_separable == alone
    for token_id, row in zip(tokens, random_draws(seed, LIMIT), strict=True):
        assert 0 <= token_id < LIMIT
        assert row.allowed is None or token_id in row.allowed.token_ids  # type: ignore[operator]
    counts = split.counts
    assert counts["forced"] + counts["sparse"] + counts["dense"] == many


def test_the_compiled_masks_of_float32_equal_the_others_and_leave_features_alone() -> None:
    logits = make_head().logits(hidden_states(6)).detach()
    allowed = [allow(np.arange(i * 3, 900, i + 2)) for i in range(4)]
    draws = [draw(i, allowed[i] if i < 4 else None, temperature=0) for i in range(6)]
    sampler = Sampler(OutputHead(torch.nn.Identity(), LIMIT, separable=False))
    single = logits.float()
    before = single.clone()
    assert sampler.sample(single, draws) == sampler.sample(logits, draws)
    assert torch.equal(single, before)


def test_forced_rows_compute_no_logits() -> None:
    """A row with one allowed token never meets the output projection."""

    class Untouchable(nn.Module):
        def forward(self, hidden: Tensor) -> Tensor:
            raise AssertionError("projected")

    sampler = Sampler(OutputHead(Untouchable(), LIMIT, separable=True))
    assert sampler.sample(hidden_states(2), [draw(0, allow([5])), draw(0, allow([999]))]) == [5, 999]
    assert sampler.counts["forced"] == 2


def test_padding_ids_are_never_sampled() -> None:
    """Columns past the vocabulary are the likeliest here; no row may have them."""
    head = make_head()
    with torch.no_grad():
        head._projection.bias[LIMIT:] = 1e6  # type: ignore[index]
    draws = [draw(i, None, temperature=float(i % 3)) for i in range(60)]
    assert max(Sampler(head).sample(hidden_states(60), draws)) < LIMIT


def test_rows_without_a_grammar_read_no_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("mask code entered")

    monkeypatch.setattr("gpu_workers.sampling.device_rows.DeviceRows.places", never)
    monkeypatch.setattr("gpu_workers.sampling.sampler.forbid_unmasked", never)
    Sampler(make_head()).sample(hidden_states(4), [draw(i, None, temperature=i % 2) for i in range(4)])


def test_a_tiny_temperature_is_the_largest_logit() -> None:
    head = make_head()
    hidden = hidden_states(8).float()
    head._projection.float()
    greedy = Sampler(head).sample(hidden, [draw(0, None, temperature=0)] * 8)
    for temperature in (1e-30, 5e-324):
        assert Sampler(head).sample(hidden, [draw(0, None, temperature=temperature, top_p=0.9)] * 8) == greedy


# -- bias and penalties ----------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(
    st.integers(0, 10**6),
    st.lists(st.integers(0, LIMIT - 1), min_size=1, max_size=30),
    st.floats(0.1, 3),
    st.floats(-2, 2),
    st.floats(-2, 2),
    st.dictionaries(st.integers(0, LIMIT - 1), st.floats(-100, 100), max_size=5),
)
def test_penalties_equal_their_definitions(
    seed: int, tokens: list[int], repetition: float, presence: float, frequency: float, bias: dict[int, float]
) -> None:
    """Repetition as transformers does it, over prompt and output; presence and frequency as OpenAI writes them."""
    split = len(tokens) // 2
    logits = torch.randn(1, LIMIT, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * 3
    expected = logits.clone()
    for token_id, value in bias.items():
        expected[0, token_id] += value
    expected = RepetitionPenaltyLogitsProcessor(repetition)(torch.tensor([tokens]), expected)
    for token_id in set(tokens[split:]):
        expected[0, token_id] -= presence + frequency * tokens[split:].count(token_id)
    parameters = SamplingParameters(
        repetition_penalty=repetition, presence_penalty=presence, frequency_penalty=frequency, logit_bias=bias
    )
    one = adjustment(parameters, History(np.unique(tokens[:split]).astype(np.int64), tokens[split:]))
    # A row that is not adjusted stands before it; of the columns every second is there in the other spelling.
    both = torch.cat([logits, logits])
    actual = adjust(both, [(1, one)])
    assert torch.equal(actual[0], logits[0])
    torch.testing.assert_close(actual[1:], expected)
    columns = np.arange(1, LIMIT, 2)
    torch.testing.assert_close(adjust(logits[:, 1::2], [(0, one)], [columns]), expected[:, 1::2])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("repetition", [5e-324, 1e-38, 100.0])
def test_no_repetition_penalty_makes_infinities(repetition: float, dtype: torch.dtype) -> None:
    logits = torch.tensor([[-torch.inf, -3.0, 0.0, 2.0, 40.0, 1.0]], dtype=dtype)
    parameters = SamplingParameters(repetition_penalty=repetition, presence_penalty=-2.0)
    one = adjustment(parameters, History(np.arange(3), [3, 4]))
    adjusted = adjust(logits, [(0, one)])
    assert adjusted.isfinite().tolist() == logits.isfinite().tolist()
    weights = scaled(adjusted, torch.ones(1, dtype=dtype)).exp_()
    assert weights.isfinite().all() and weights[0, 0] == 0 and weights.sum() >= 1


def test_forbidden_tokens_stay_forbidden_under_any_bias() -> None:
    row = allow([5, 6, 7])
    biased = Draw(
        SamplingParameters(temperature=0, logit_bias={8: 100.0, 6: 100.0}),
        0,
        0,
        row,
        History(np.zeros(0, np.int64), []),
    )
    head = make_head()
    assert Sampler(head).sample(hidden_states(1), [biased]) == [6]
    assert Sampler(head).sample(hidden_states(1), [replace(biased, allowed=allow([5, 6, 7], 0))]) == [6]


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.sampled_from([0.02, 0.2, 0.9, 1.0]), st.sampled_from([0.1, 1.0, 3.0]))
def test_min_p_equals_transformers(seed: int, min_p: float, temperature: float) -> None:
    logits = torch.randn(2, 500, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * 2
    processors = LogitsProcessorList(
        [TemperatureLogitsWarper(temperature), TopKLogitsWarper(50), TopPLogitsWarper(0.9), MinPLogitsWarper(min_p)]
    )
    expected = processors(torch.zeros(2, 1, dtype=torch.int64), logits.clone()).softmax(-1)
    weights = truncate(
        ((logits - logits.amax(-1, keepdim=True)) / temperature).exp(),
        torch.tensor([50, 0]),
        torch.tensor([0.9, 1.0], dtype=torch.float64),
    )
    actual = drop_unlikely(weights, torch.tensor([min_p, 0], dtype=torch.float64))
    assert torch.equal(actual[1], weights[1])
    torch.testing.assert_close(actual[0] / actual[0].sum(), expected[0])


def test_excluded_tokens_are_never_drawn() -> None:
    head = make_head()
    hidden = hidden_states(1).expand(40, -1)
    likely = set(Sampler(head).sample(hidden, [draw(i) for i in range(40)]))
    draws = [replace(draw(i, temperature=i % 2), excluded=frozenset(likely)) for i in range(40)]
    assert not likely & set(Sampler(head).sample(hidden, draws))


@given(st.sets(st.integers(0, WIDTH - 1)), st.sets(st.integers(0, WIDTH + 100)), st.integers(1, 64))
def test_a_row_without_some_tokens(token_ids: set[int], gone: set[int], sparse_limit: int) -> None:
    row = allow(sorted(token_ids), sparse_limit).without(gone)
    assert row.count == len(token_ids - gone)
    assert set(np.flatnonzero(unpack([row], WIDTH, CPU)[0]).tolist()) == token_ids - gone
    assert row.token_ids is None or row.token_ids.tolist() == sorted(token_ids - gone)


def test_a_second_attempt_draws_anew() -> None:
    head = make_head()
    draws = [replace(draw(0, temperature=3.0), attempt=i) for i in range(20)]
    assert len(set(Sampler(head).sample(hidden_states(1).expand(20, -1), draws))) > 5
