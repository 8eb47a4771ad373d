"""Any settings at once give the plain engine's tokens; memory of automata and of heads stays within its bounds."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import numpy as np
import pytest
import torch

from gpu_workers.device_step import plan, tables
from gpu_workers.device_step.tables import DeviceAutomata, TableMemory
from gpu_workers.engine.engine import Engine
from gpu_workers.model.loader import prepare
from gpu_workers.speculative.eagle_drafter import EagleDrafter
from grammar_workers import TokenFSM, Vocabulary, compile_grammar
from grammar_workers.matching.export import DeviceTables
from grammar_workers.options import Limits
from tests.gpu_workers.eagle_heads import random_head
from tests.gpu_workers.support import (
    CONFIGS,
    END,
    WIDTH,
    byte_tokenizer,
    byte_vocabulary,
    closed,
    engine_config,
    grammars,
    request,
    run,
    running_engine,
    tiny_model,
)

SPECIFICATIONS: dict[str, Any] = {
    "letters": {"type": "regex", "pattern": "([a-d]{2,6}|x[0-9]*y)( [a-d]+)*"},
    "count": {"type": "regex", "pattern": "[a-h]{20,40}"},
    "texts": {"type": "choice", "choices": ["abcdefghijklmnop", "abcdefgxyz", "b"]},
    "any": {"type": "json_object"},
}
CPU = torch.device("cpu")


def generated(seed: int, device: bool, requests: list[Any], **settings: Any) -> list[Any]:
    """Outputs; two end tokens, and a vocabulary wider than the model's tokens."""
    vocabulary = Vocabulary([*(bytes([byte]) for byte in range(256)), None], [END, ord("z")], size=300)
    fsms = {name: compile_grammar(one, vocabulary) for name, one in SPECIFICATIONS.items()}
    config = engine_config(**settings)
    target = prepare(tiny_model(CONFIGS["llama"]()), byte_tokenizer(), vocabulary, config)
    head = EagleDrafter(random_head(target, seed), target, config) if device else None
    with closed(Engine(target, config, grammars(**fsms), head), config) as engine:
        results = run(engine, *requests, stagger=int(device))
        return [(one.token_ids, one.text, one.finish_reason) for one in results]


@pytest.mark.parametrize("seed", range(3))
def test_any_settings_give_the_plain_engines_tokens(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(seed)
    ends: list[dict[str, Any]] = [{}, {"stop": ("a", "cd")}, {"stop_token_ids": (97, 44)}, {"min_tokens": 5}]
    requests = [
        request(
            rng.integers(97, 105, int(rng.choice([1, 20, 80, 95]))).tolist(),
            grammar=[None, *SPECIFICATIONS][i % 5],
            choice_index=int(rng.integers(3)),
            temperature=float(rng.choice([0, 0.7])),
            max_tokens=int(rng.integers(1, 40)),
            seed=int(rng.integers(2**60)),
            **ends[int(rng.integers(len(ends)))],
        )
        for i in range(10)
    ]
    expected = generated(
        seed, False, requests, max_num_seqs=1, num_speculative_tokens=0, prompt_lookup_max=0, forced_text=False
    )
    export, nbytes, ahead = TokenFSM.device_tables, int(rng.choice([8000, 1 << 18])), int(rng.choice([1, 20]))
    monkeypatch.setattr(TokenFSM, "device_tables", lambda self, **limits: export(self, ahead=ahead, **limits))
    monkeypatch.setattr(plan, "TableMemory", lambda tokens, _, device: TableMemory(tokens, nbytes, device))
    for name, choices in {"_IDLE_STEPS": [1, 20], "_LEAST_NEW": [1, 5], "_SHARE": [1, 8]}.items():
        monkeypatch.setattr(tables, name, int(rng.choice(choices)))
    switches = {name: bool(rng.integers(2)) for name in ("draft_masks", "overlap", "forced_text")}
    numbers = {
        "max_num_seqs": (2, 4),
        "num_speculative_tokens": (2, 15),
        "prompt_lookup_max": (0, 3),
        "long_prefill_token_threshold": (1, 7),
        "max_num_batched_tokens": (6, 40),
    }
    drawn = {name: int(rng.choice(choices)) for name, choices in numbers.items()}
    assert generated(seed, True, requests, device_step="eager", draft_cost=1e-9, **switches, **drawn) == expected


def test_exports_leave_memory_to_requests() -> None:
    """Nobody is refused a state because a device looked further ahead than anybody has been."""
    nbytes = compile_grammar(SPECIFICATIONS["any"], byte_vocabulary()).nbytes
    fsm = compile_grammar(SPECIFICATIONS["any"], byte_vocabulary(), limits=Limits(max_fsm_bytes=2 * nbytes + 20_000))
    with running_engine(config=engine_config(device_step="eager"), fetch=grammars(any=fsm)) as engine:
        for seed in range(6):
            (result,) = run(engine, request([40 + seed] * 3, grammar="any", max_tokens=40, seed=seed))
            engine.step_loop._device_step.automata.wait()  # type: ignore[union-attr]
            assert result.error is None
    assert fsm.state_count > 10 and fsm.nbytes < 1.5 * nbytes + 20_000


def test_waiting_exports_keep_no_automaton() -> None:
    automata, busy = DeviceAutomata(TableMemory(WIDTH, 1 << 16, CPU)), threading.Event()
    automata._exports.submit(busy.wait)
    fsm = compile_grammar(SPECIFICATIONS["letters"], byte_vocabulary())
    automata.bring([fsm])
    alive = weakref.ref(fsm)
    del fsm
    gc.collect()
    assert alive() is None
    busy.set()
    automata.close()


class GrowingFSM:
    """A TokenFSM with this many states on the device, each with ten classes."""

    def __init__(self, states: int) -> None:
        self.state_count = states

    def device_tables(self, **_: int) -> DeviceTables:
        following, zeros = np.full((self.state_count, 10), -1, np.int32), np.zeros(self.state_count, np.int32)
        rows = np.zeros((1, -(-WIDTH // 32)), np.uint32)
        return DeviceTables(np.zeros(WIDTH, np.int16), following, zeros, rows, complete=False)


def test_what_has_no_room_to_grow_stays_as_it_was() -> None:
    memory = TableMemory(WIDTH, 1 << 16, CPU)
    automata, room = DeviceAutomata(memory), len(memory.next) // 10
    one: Any = GrowingFSM(room // 2)
    other: Any = GrowingFSM(room // 4)
    for states in (room // 4, room):
        other.state_count = states
        for _ in range(4):
            automata.bring([one, other])
            automata.wait()
        assert automata.base(one, room // 4) is not None and automata.base(other, room // 4 - 1) is not None
    assert automata.base(other, room // 4) is None
    automata.close()


@pytest.mark.parametrize("device_step", ["off", "eager"])
def test_an_overflow_does_not_stay_in_the_heads_pool(device_step: str) -> None:
    config = engine_config(device_step=device_step, max_num_seqs=1, draft_cost=1e-9, max_num_batched_tokens=40)
    target = prepare(tiny_model(CONFIGS["llama"]()), byte_tokenizer(), byte_vocabulary(), config)
    embeddings = target.model.get_input_embeddings().weight
    head = random_head(target)
    head.use_embeddings(embeddings.detach().clone())
    drafter = EagleDrafter(head, target, config)
    with torch.no_grad():
        embeddings[5] = torch.nan
    with closed(Engine(target, config, grammars(), drafter), config) as engine:
        (result,) = run(engine, request([1, 2, 3, 4, 6, 5, *range(7, 25)], max_tokens=12, temperature=0))
        assert result.error is not None and result.error["code"] == "not_finite"
    assert all(layer.isfinite().all() for layer in (*drafter.pool.keys, *drafter.pool.values))
