"""Steps that draw on the device give the tokens that the host would have drawn."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from gpu_workers.device_step import tables
from gpu_workers.device_step.plan import CompiledStep
from gpu_workers.device_step.step import (
    MOST_SHAPES,
    StaticResult,
    StaticRow,
    StaticShape,
    captured_shapes,
    pack,
    shape_of,
    static_step,
)
from gpu_workers.device_step.tables import DeviceAutomata, TableMemory
from gpu_workers.request import GenerationRequest, SamplingParameters
from gpu_workers.sampling.masked_scores import unpacked
from grammar_workers import TokenFSM, compile_grammar
from tests.gpu_workers.support import (
    WIDTH,
    byte_vocabulary,
    engine_config,
    grammars,
    loaded,
    random_fsm,
    request,
    run,
    running_engine,
)

RECORD = {
    "type": "object",
    "properties": {"size": {"enum": ["small", "large"]}, "ok": {"type": "boolean"}},
    "required": ["size", "ok"],
    "additionalProperties": False,
}


@functools.cache
def automata() -> dict[str, TokenFSM]:
    """Two that fit the device and one without end of states."""
    specifications: dict[str, dict[str, Any]] = {
        "letters": {"type": "regex", "pattern": "([a-d]{2,6}|x[0-9]*y)( [a-d]+)*"},
        "record": {"type": "json_schema", "schema": RECORD},
        "any": {"type": "json_object"},
    }
    return {name: compile_grammar(one, byte_vocabulary()) for name, one in specifications.items()}


def requests_of(rng: np.random.Generator, names: list[str | None], many: int) -> list[GenerationRequest]:
    """Settings that the device knows and some that it does not."""
    requests = []
    for i in range(many):
        settings: dict[str, Any] = {
            "temperature": float(rng.choice([0, 1, 0.7])),
            "max_tokens": int(rng.integers(5, 40)),
            "seed": int(rng.integers(2**60)),
            "top_p": float(rng.choice([1, 0.9])),
            "top_k": int(rng.choice([0, 7])),
            "min_p": float(rng.choice([0, 0.05])),
        }
        if i % 6 == 5:
            settings |= ({"frequency_penalty": 1.0}, {"min_tokens": 5}, {"logprobs": 1})[i // 6 % 3]
        requests.append(request(rng.integers(97, 105, int(rng.choice([1, 6, 20]))).tolist(), **settings))
        if (name := names[i % len(names)]) is not None:
            requests[-1] = requests[-1].model_copy(update={"grammar": request("x", grammar=name).grammar})
    return requests


def outputs(config: Any, fsms: Any, requests: list[GenerationRequest], **steps: int) -> tuple[list[Any], Any]:
    with running_engine(config=config, fetch=grammars(**fsms)) as engine:
        results = run(engine, *requests, **steps)
        return [(one.token_ids, one.text, one.finish_reason) for one in results], engine


def test_no_token_differs() -> None:
    """Automata on the device and on the host, rows without one, drafts, all settings, together in one batch."""
    rng = np.random.default_rng(1)
    fsms = {**automata(), "hand-made": random_fsm(rng)}
    requests = requests_of(rng, [None, "letters", "record", "letters", "any", "hand-made"], 40)
    expected, host = outputs(engine_config(max_num_batched_tokens=40, draft_cost=0.05), fsms, requests)
    config = engine_config(max_num_batched_tokens=40, draft_cost=0.05, device_step="eager", rejection_mass_interval=8)
    actual, engine = outputs(config, fsms, requests, stagger=1)
    assert actual == expected
    assert engine.statistics.accepted_tokens > 0
    drawn = [
        counts["forced"] + counts["sparse"] + counts["dense"]
        for counts in (host.step_loop.sampler.counts, engine.step_loop.sampler.counts)
    ]
    assert drawn[0] == host.statistics.sampled_tokens
    assert 0 < drawn[1] < drawn[0] / 1.5
    assert engine.rejection_masses


def test_rows_that_leave_the_device_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few states alone are there at first, and more each time that somebody has been elsewhere."""
    export = TokenFSM.device_tables
    monkeypatch.setattr(TokenFSM, "device_tables", lambda self, **limits: export(self, ahead=3, **limits))
    monkeypatch.setattr(tables, "_LEAST_NEW", 5)
    bring = DeviceAutomata.bring

    def bring_and_wait(self: DeviceAutomata, fsms: Iterable[TokenFSM]) -> None:
        bring(self, fsms)
        self.wait()  # so that the next step has them, whatever else the machine does

    monkeypatch.setattr(DeviceAutomata, "bring", bring_and_wait)
    rng = np.random.default_rng(4)
    texts = {"type": "choice", "choices": ["".join(map(chr, rng.integers(97, 101, 25))) for _ in range(12)]}
    fsms = {**automata(), "texts": compile_grammar(texts, byte_vocabulary())}
    requests = requests_of(rng, ["any", "texts", "record"], 40)
    expected, _ = outputs(engine_config(max_num_batched_tokens=40, draft_cost=0.05), fsms, requests)
    config = engine_config(max_num_batched_tokens=40, draft_cost=0.05, device_step="eager")
    actual, engine = outputs(config, fsms, requests, stagger=1)
    assert actual == expected
    assert engine.statistics.accepted_tokens > 0
    on_host = engine.step_loop.sampler.counts
    share = (on_host["forced"] + on_host["sparse"] + on_host["dense"]) / engine.statistics.sampled_tokens
    assert 0.05 < share < 0.9


def test_banned_words_are_the_hosts() -> None:
    """Before a word begins nothing is held back, and yet what was taken back there decides about the draw."""
    words = {"words": [chr(letter) for letter in range(32, 127, 3)]}
    requests = [request([97 + i] * 5, seed=i, max_tokens=24, banned_words=words) for i in range(4)]
    actual, engine = outputs(engine_config(device_step="eager"), {}, requests)
    assert actual == outputs(engine_config(), {}, requests)[0]
    assert engine.step_loop.sampler.counts["dense"] > sum(len(token_ids) for token_ids, _, _ in actual)


def test_the_step_is_captured_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """`fullgraph` allows no host read and no graph break; the backend has no part in that, and this one is quick."""
    compile_with = functools.partial(torch.compile, backend="eager")
    monkeypatch.setattr(torch, "compile", compile_with)
    settings = {"max_tokens": 24, "seed": 3, "temperature": 1.0, "top_p": 0.9}
    one = request("abab", grammar="letters", **settings)
    shape: dict[str, Any] = {
        "max_num_seqs": 1,
        "long_prefill_token_threshold": 16,
        "max_num_batched_tokens": 16,
        "num_speculative_tokens": 3,
        "draft_cost": 0.01,
    }
    expected, _ = outputs(engine_config(**shape), automata(), [one])
    config = engine_config(**shape, device_step="compile")
    with running_engine(config=config, fetch=grammars(**automata())) as engine:
        (actual,) = run(engine, one, limit_s=250)  # compiling takes long on a busy machine
    assert (actual.token_ids, actual.text, actual.finish_reason) == expected[0]
    assert (
        engine.step_loop.sampler.counts["sparse"] + engine.step_loop.sampler.counts["dense"]
        < engine.statistics.sampled_tokens
    )
    assert engine.statistics.accepted_tokens > 0


def test_every_shape_is_compiled_whoever_runs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """More of them than the compiler allows for by itself, in another thread than the step was made in."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    step = CompiledStep(lambda packed, shape: StaticResult(packed * shape.rows, packed + shape.queries))
    packed = torch.arange(4)
    shapes = [StaticShape(rows, rows + 1, 64, masked=False, truncates=False) for rows in range(1, 16)]
    with ThreadPoolExecutor(1) as thread:
        results = list(thread.map(lambda shape: step(packed, shape), shapes))
    for shape, result in zip(shapes, results, strict=True):
        assert torch.equal(result.hidden_states, packed * shape.rows)
        assert torch.equal(result.told, packed + shape.queries)


def test_rows_without_a_grammar_enter_no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> None:
        raise AssertionError("grammar code entered")

    monkeypatch.setattr(TableMemory, "places", never)
    monkeypatch.setattr(TableMemory, "advance", never)
    requests = requests_of(np.random.default_rng(2), [None], 4)
    actual, engine = outputs(engine_config(device_step="eager"), {}, requests)
    assert actual == outputs(engine_config(), {}, requests)[0]
    assert not engine.step_loop.sampler.counts["dense"]


@given(st.integers(0, 10**6))
def test_a_captured_shape_holds_whatever_comes_up(seed: int) -> None:
    """Whatever rows come up, one of the shapes that are captured when the model is loaded has room for them."""
    rng = np.random.default_rng(seed)
    pool = Mock(slots=int(rng.choice([1, 3, 4, 16, 100, 128])), length=int(rng.choice([8, 96, 2048, 8192])))
    queries, fineness = int(rng.integers(1, min(20, pool.length))), int(rng.choice([2, 4]))
    rows = []
    many = int(rng.choice([0, 3]))
    for slot in range(int(rng.integers(1, pool.slots + 1))):
        fed = int(rng.integers(1, queries + 1))
        sampling = SamplingParameters(temperature=float(rng.choice([0, 1])), top_k=int(rng.choice([0, 5])))
        past = int(rng.integers(0, pool.length - fed + 1))
        drafts = bool(many and rng.integers(2))
        rows.append(StaticRow(slot, past, [1] * fed, 0, int(rng.integers(2)), sampling=sampling, drafts=drafts))
    shape = shape_of(rows, pool, queries, fineness, many)
    shapes = captured_shapes(pool, queries, drafts=many > 0)
    assert len(set(shapes)) == len(shapes) <= MOST_SHAPES == 40
    assert any(one.holds(shape) for one in shapes)
    assert max(one.rows * one.kv_length for one in shapes) == pool.slots * pool.length
    assert shape.rows >= len(rows) and max(len(row.token_ids) for row in rows) <= shape.queries <= queries
    assert max(row.past + len(row.token_ids) for row in rows) <= shape.kv_length <= pool.length


def test_every_shape_runs_on_padding_alone() -> None:
    """As it is captured: nothing but the dummy slot is written."""
    model = loaded("llama", engine_config())
    pool, memory = model.pool, TableMemory(model.head.token_limit, 1 << 16, torch.device("cpu"))
    before = [layer[: pool.slots].clone() for layer in (*pool.keys, *pool.values)]
    for shape in captured_shapes(pool, 8, drafts=False):
        with torch.no_grad():
            result = static_step(model, memory, None, pack([], shape, pool), shape)
        assert result.told.shape == (shape.rows, 1 + 2 * shape.queries)
        assert result.hidden_states.isfinite().all() and result.told[:, 0].eq(0).all()
    assert all(
        torch.equal(layer[: pool.slots], one) for layer, one in zip((*pool.keys, *pool.values), before, strict=True)
    )


def allowed_bits(memory: TableMemory, states: torch.Tensor) -> torch.Tensor:
    return unpacked(memory.rows[memory.places(states)], WIDTH)


def check_tables(memory: TableMemory, fsm: TokenFSM, base: int) -> None:
    for state in range(1, fsm.state_count):
        here = torch.tensor([base + state])
        allowed = allowed_bits(memory, here)[0].nonzero()[:, 0]
        assert set(allowed.tolist()) == fsm.allowed_tokens(state)
        after = memory.advance(here.expand(len(allowed)), allowed) - base
        assert after.tolist() == [fsm.next_state(state, token_id) for token_id in allowed.tolist()]


def test_automata_take_turns_on_a_small_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_IDLE_STEPS", 3)
    monkeypatch.setattr(tables, "_SHARE", 1)
    letters, record, endless = automata().values()
    memory = TableMemory(WIDTH, 14_400, torch.device("cpu"))
    assert allowed_bits(memory, torch.tensor([0])).all()
    on_device = DeviceAutomata(memory)
    on_device.bring([letters, endless])
    on_device.wait()
    on_device.bring([letters, endless])
    base = on_device.base(letters, 1)
    assert base is not None
    check_tables(memory, letters, base)
    assert on_device.base(endless, 1) is None
    on_device.bring([record])
    on_device.wait()
    placed = []
    for _ in range(4):
        on_device.bring([record])
        placed.append((on_device.base(letters, 1) is not None, on_device.base(record, 1) is not None))
    assert placed[0] == (True, False) and placed[-1] == (False, True)
    check_tables(memory, record, on_device.base(record, 1) or 0)
    on_device.close()


def test_cuda_graphs_need_a_gpu() -> None:
    with pytest.raises(ValidationError, match="cuda_graph needs a CUDA device"):
        engine_config(device_step="cuda_graph")
