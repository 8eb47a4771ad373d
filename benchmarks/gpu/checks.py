"""Correctness checks on a GPU: equal tokens for every kind of decode step, and equal bits of masked scores.

The model is small, and its weights are equal on all devices. In float64, the results of two devices differ too little
to change a sampled token. The device kernels need float32, so requests at temperature 0 are also compared in float32.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.models import SHAPES, loaded, made_vocabulary, random_eagle, random_llama
from benchmarks.gpu.workload import Workload, automata
from gpu_workers.config import EngineConfig
from gpu_workers.device_step.plan import DeviceStep
from gpu_workers.device_step.step import StaticRow, captured_shapes, pack
from gpu_workers.engine.scheduler import GROUP_TOKENS
from gpu_workers.request import GenerationRequest, SamplingParameters
from gpu_workers.sampling.allowed_tokens import AllowedTokens, read_row
from gpu_workers.sampling.device_rows import DeviceRows
from gpu_workers.sampling.masked_scores import masked_scores

_TOKENS = 1 << 10
_LENGTH = 96
_ROWS = 8


@dataclass(frozen=True, slots=True)
class Check:
    """Result of one comparison.

    Attributes:
        name: Description of the comparison.
        compared: Number of compared numbers or tokens.
        differing: Number of numbers or tokens that differ.
    """

    name: str
    compared: int
    differing: int


def masks(device: torch.device) -> Check:
    """Compare masked scores of random masks and logits with the results of numpy, bit for bit.

    Args:
        device: Device that computes the masked scores.

    Returns:
        The check, over all scores.
    """
    rng = np.random.default_rng(0)
    compared = differing = 0
    for width in (31, 1000, 32_768, 131_072 + 5):
        device_rows = DeviceRows(width, device)
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            logits = torch.from_numpy(4 * rng.normal(size=(6, width))).to(dtype)
            temperature = torch.from_numpy(rng.choice([1.0, 0.7, 0.01, 3.0], 6))
            allowed = [_mask_row(rng, width, share) for share in (0.0, 0.01, 0.5, 0.99)]
            lines = [0, 2, 3, 5]
            places = device_rows.places(6, lines, allowed)
            actual = masked_scores(logits.to(device), device_rows.table, places, temperature.to(device)).cpu().numpy()
            expected = logits.float().numpy().copy()
            for line, row in zip(lines, allowed, strict=True):
                bits = np.unpackbits(row.mask.view(np.uint8), count=width, bitorder="little")
                expected[line, bits == 0] = -np.inf
            expected = (expected - expected.max(1, keepdims=True)) / temperature.float().numpy()[:, None]
            compared += expected.size
            differing += int((actual.view(np.int32) != expected.view(np.int32)).sum())
    return Check("masked scores, bit for bit: numbers", compared, differing)


def _mask_row(rng: np.random.Generator, width: int, share: float) -> AllowedTokens:
    """Return a mask of about `share` of the tokens, at least the first, and of no token beyond `width`."""
    bits = np.zeros(-(-width // 32) * 32, np.uint8)
    bits[:width] = rng.random(width) < share
    bits[0] = 1
    return read_row(np.packbits(bits, bitorder="little").view(np.uint32), [], 0)


def tokens(device: torch.device, many: int, dtype: torch.dtype) -> Iterator[Check]:
    """Compare the tokens of requests for each kind of decode step and each draft setting.

    Args:
        device: Device of the steps. The reference are steps on a CPU that the host samples.
        many: Number of requests.
        dtype: Type of the weights. With float64, the requests have all sampling settings. With other types, all
            requests are greedy.

    Yields:
        One check per kind of step and draft setting. It counts the tokens of the reference.
    """
    named = made_vocabulary(_TOKENS)
    model = random_llama(SHAPES["toy"], _TOKENS, _LENGTH, dtype, torch.device("cpu"))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(8)  # outputs of freshly made weights hardly depend on the prompt
    fsms = automata(named.vocabulary)
    greedy = dtype != torch.float64

    def run(way: dict[str, Any], *, eagle: bool = False) -> list[list[int]]:
        config = EngineConfig(
            max_num_seqs=_ROWS, max_model_len=_LENGTH, long_prefill_token_threshold=16, max_num_batched_tokens=64, **way
        )
        ready = loaded(copy.deepcopy(model), named, config)
        drafter = random_eagle(ready, config) if eagle else None
        with contextlib.closing(Workload(ready, config, fsms, drafter)) as workload:
            return workload.run(_requests(workload.request, many, greedy=greedy))

    expected = run({"device": "cpu"})
    settings = "greedy" if greedy else "all settings"
    for way, eagle in [*((way, False) for way in ways(device)), *((way, True) for way in eagle_ways(device))]:
        actual = run(way, eagle=eagle)
        told = f"overlap {way['overlap']}" if "overlap" in way else f"step {way['device_step']}"
        yield Check(
            f"tokens, {dtype}, {settings}, {told}{', EAGLE' if eagle else ''}".replace("torch.", ""),
            sum(map(len, expected)),
            sum(_differing(one, other) for one, other in zip(expected, actual, strict=True)),
        )


def static_steps(device: torch.device, how: str) -> Check:
    """Compare captured or compiled decode steps with steps that run operation by operation, on random sequences.

    CUDA graphs are replayed in every captured size. Compilation takes long, so only two sizes are compiled.

    Args:
        device: Device of the model.
        how: Value of the engine setting `device_step`, such as `cuda_graph`.

    Returns:
        The check, over all numbers that the steps return to the host.
    """
    named = made_vocabulary(_TOKENS)
    model = random_llama(SHAPES["toy"], _TOKENS, _LENGTH, torch.float32, device)
    sizes = {
        "max_num_seqs": _ROWS,
        "max_model_len": _LENGTH,
        "long_prefill_token_threshold": 16,
        "max_num_batched_tokens": 64,
    }
    config = EngineConfig.model_validate({"device": str(device), "device_step": how, **sizes})
    ready = loaded(model, named, config)
    step = DeviceStep(ready, config, GROUP_TOKENS, None)
    shapes = captured_shapes(ready.pool, GROUP_TOKENS, drafts=False)
    rng = np.random.default_rng(0)
    compared = differing = 0
    for shape in shapes if how == "cuda_graph" else shapes[-2:]:
        rows = [
            StaticRow(slot, 8, rng.integers(3, _TOKENS, shape.queries).tolist(), first=0, sampling=_sampling(slot))
            for slot in range(int(rng.integers(1, shape.rows + 1)))
        ]
        packed = pack(rows, shape, ready.pool).to(device)
        with torch.no_grad():
            expected, actual = (run(packed, shape).told for run in (step.uncaptured, step.step))
        compared += expected.numel()
        differing += int((expected != actual).sum())
    step.close()
    return Check(f"steps by {how}: numbers told", compared, differing)


def _sampling(row: int) -> SamplingParameters:
    return SamplingParameters(seed=row, temperature=float(row % 3 > 0), top_p=0.9 if row % 2 else 1.0)


def ways(device: torch.device) -> list[dict[str, Any]]:
    """Return the kinds of decode steps that are compared, as engine settings.

    Args:
        device: Device of the steps.

    Returns:
        Settings for sampling on the host (with overlap, and without drafts) and on the device.
    """
    where = {"device": str(device)}
    return [
        {**where, "overlap": True},
        {**where, "overlap": False, "forced_text": False, "num_speculative_tokens": 0, "sparse_limit": 1},
        *({**where, "device_step": step} for step in _device_steps(device)),
    ]


def eagle_ways(device: torch.device) -> list[dict[str, Any]]:
    """Return engine settings for steps with an EAGLE-3 head, which drafts outside or inside the device step.

    Args:
        device: Device of the steps.

    Returns:
        Settings with a `draft_cost` near 0, so that a random head drafts.
    """
    settings = {
        "device": str(device),
        "draft_cost": 1e-9,
        "num_speculative_tokens": 4,
        "prompt_lookup_max": 0,
        "forced_text": False,
    }
    return [{**settings, "device_step": step} for step in ("off", *_device_steps(device))]


def _device_steps(device: torch.device) -> list[str]:
    return ["eager", "cuda_graph"] if device.type == "cuda" else ["eager"]


def _requests(make: Callable[..., GenerationRequest], many: int, *, greedy: bool) -> list[GenerationRequest]:
    """Return guided and unguided requests with all settings, also those that the device step does not support."""
    rng = np.random.default_rng(1)
    kinds: list[dict[str, Any]] = [
        {},
        {"top_p": 0.9, "top_k": 40},
        {"min_p": 0.02},
        {"frequency_penalty": 0.5, "logit_bias": {300: 5.0, 301: -100.0}},
        {"logprobs": 2},
        {"repetition_penalty": 1.3, "min_tokens": 4},
    ]
    return [
        make(
            row,
            int(rng.integers(4, 24)),
            guided=row % 4 != 3,
            temperature=0.0 if greedy or row % 5 == 0 else 0.8,
            max_tokens=int(rng.integers(16, 40)),
            **kinds[row % len(kinds)],
        )
        for row in range(many)
    ]


def _differing(expected: list[int], actual: list[int]) -> int:
    """Return the number of positions where two outputs differ, including the rest of the longer one."""
    return sum(a != b for a, b in zip(expected, actual, strict=False)) + abs(len(expected) - len(actual))
