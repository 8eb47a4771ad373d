"""Between the launch of a pass and what was drawn from it, the host waits for nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gpu_workers.device_step import plan
from gpu_workers.engine import step_loop
from gpu_workers.model import attention, model_runner
from gpu_workers.request import GenerationRequest
from gpu_workers.sampling import distribution, sampler
from gpu_workers.transfers import HostCopy
from tests.gpu_workers.other_device import DEVICE, engine_there
from tests.gpu_workers.support import engine_config, grammars, run
from tests.gpu_workers.test_device_step import automata, outputs, requests_of

WAYS: dict[str, dict[str, Any]] = {
    "host": {},
    "dense rows alone": {"sparse_limit": 1, "forced_text": False},
    "device": {"device_step": "eager"},
}


def requests(many: int) -> list[GenerationRequest]:
    """Of all kinds, less those for log-probabilities, which are read of a token that was drawn: one wait more."""
    made = requests_of(np.random.default_rng(1), [None, "letters", "record", "letters"], many)
    return [one for one in made if not one.sampling.reports]


def tokens_there(many: int, **settings: Any) -> tuple[list[list[int]], list[str]]:
    """The tokens of requests of all kinds on a device that is not the host's, and what waited for it."""
    config = engine_config(max_num_batched_tokens=40, overlap=False, rejection_mass_interval=0, **settings)
    with engine_there("llama", config, grammars(**automata())) as (engine, device):
        found = [result.token_ids for result in run(engine, *requests(many), stagger=1)]
        return found, device.waits


@pytest.mark.parametrize("settings", WAYS.values(), ids=WAYS)
def test_nothing_waits_and_tokens_are_the_hosts(settings: dict[str, Any]) -> None:
    found, waits = tokens_there(12, **settings)
    assert waits == []
    expected, _ = outputs(engine_config(max_num_batched_tokens=40), automata(), requests(12))
    assert found == [token_ids for token_ids, _, _ in expected]


def blocking(values: Any, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """As `to_device`, but as it is written without thinking of it."""
    return torch.as_tensor(values).to(device, dtype)


class ReadAtOnce(HostCopy):
    def __init__(self, values: Tensor) -> None:
        super().__init__(values.cpu())


PLACES: dict[str, tuple[Any, str, Any]] = {
    "masks of attention": (attention, "to_device", blocking),
    "a step's layout": (model_runner, "to_device", blocking),
    "settings of draws": (distribution, "to_device", blocking),
    "random numbers": (sampler, "to_device", blocking),
    "rows that overflowed": (step_loop, "HostCopy", ReadAtOnce),
    "rows that the device draws": (plan, "to_device", blocking),
}


@pytest.mark.parametrize("place", PLACES)
def test_copies_that_are_waited_for_are_seen(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each was there once."""
    module, name, wrong = PLACES[place]
    monkeypatch.setattr(module, name, wrong)
    _, waits = tokens_there(3, device_step="eager" if module is plan else "off")
    assert waits


PLANTED: dict[str, Callable[[Tensor], object]] = {
    "item": lambda hidden_states: hidden_states[0, 0].item(),
    "a boolean index": lambda hidden_states: hidden_states[hidden_states > 0],
    "an unpinned copy": lambda hidden_states: torch.zeros(3).to(DEVICE),
    "an index on the host": lambda hidden_states: hidden_states[torch.tensor([0])],
    "a list": lambda hidden_states: hidden_states[[0]],
}


@pytest.mark.parametrize("planted", PLANTED)
def test_planted_waits_are_seen(planted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = sampler.Sampler.draw

    def waiting(self: sampler.Sampler, hidden_states: Tensor, prepared: sampler.Prepared) -> sampler.Drawn:
        PLANTED[planted](hidden_states)
        return draw(self, hidden_states, prepared)

    monkeypatch.setattr(sampler.Sampler, "draw", waiting)
    _, waits = tokens_there(3)
    assert waits and "test_waits.py" in waits[0]
