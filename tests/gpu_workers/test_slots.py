"""Who gets a slot: prefixes that are there already, preemption of those held up, the queue's end, deadlines."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import numpy as np
import pytest
import torch

from gpu_workers.engine.engine import Engine
from gpu_workers.sequence.sequence import Sequence
from tests.gpu_workers.support import (
    TableFSM,
    collect,
    engine_config,
    grammars,
    repeat_fsm,
    request,
    run,
    running_engine,
    text_fsm,
)

NEVER = 10**6


async def eventually(condition: Any) -> None:
    async with asyncio.timeout(200):
        while not condition():
            await asyncio.sleep(0.002)


@pytest.mark.parametrize("seed", range(4))
def test_a_prefix_computed_before_is_not_computed_again_and_changes_nothing(seed: int) -> None:
    """Prompts that begin alike, one after another and together; half of them run while the others are there."""
    rng = np.random.default_rng(seed)
    beginnings = [rng.integers(0, 256, 30).tolist() for _ in range(2)]
    prompts = []
    for _ in range(12):
        beginning = beginnings[int(rng.integers(2))][: int(rng.choice([20, 30]))]
        prompts.append(beginning + rng.integers(0, 256, int(rng.integers(1, 20))).tolist())
    requests = [request(prompt, max_tokens=8, temperature=i % 2, seed=i) for i, prompt in enumerate(prompts)]
    outputs, fed = [], []
    for shortest in (NEVER, 4):
        with running_engine(config=engine_config(min_prefix_tokens=shortest, prompt_lookup_max=0)) as engine:
            results = [run(engine, one)[0] for one in requests[:4]] + run(engine, *requests[4:], stagger=2)
            outputs.append([result.token_ids for result in results])
            fed.append(engine.statistics.fed_tokens)
            reused = engine.scheduler.reused_tokens
            assert (reused > 0) == (shortest == 4)
    assert outputs[0] == outputs[1]
    assert fed[0] - fed[1] == reused


def test_the_next_turn_of_a_conversation_continues_in_its_slot() -> None:
    with running_engine(config=engine_config(prompt_lookup_max=0)) as engine:
        (first,) = run(engine, request([7] * 20, max_tokens=10, temperature=0))
        before = engine.statistics.fed_tokens
        run(engine, request([7] * 20 + first.token_ids + [9, 9], max_tokens=1))
        # The last token of the first turn was never fed, and the two new ones.
        assert engine.statistics.fed_tokens - before == 3


def test_an_overflow_is_not_handed_on() -> None:

    async def scenario(engine: Engine) -> None:
        stream = engine.generate(request([1] * 20, max_tokens=60, temperature=0))
        await anext(stream)
        (running,) = engine.scheduler.running
        engine.pool.keys[0][running.slot, :, 3] = torch.nan
        assert [output async for output in stream][-1].error is not None
        again = await collect(engine, request([1] * 20, max_tokens=5, temperature=0))
        assert again.error is None and len(again.token_ids) == 5

    with running_engine() as engine:
        asyncio.run(scenario(engine))


def test_those_held_up_by_a_slow_mask_lend_their_slots_and_come_back() -> None:
    """Every slot sleeps on a mask; others pass through the slots meanwhile; then the sleepers finish as if alone."""
    sleepers = {f"s{i}": text_fsm("abcd", "abxy", "q", sleeping=[2]) for i in range(2)}
    fsms = grammars(free=repeat_fsm("xy"), **sleepers)
    config = engine_config(max_num_seqs=2, forced_text=False, prompt_lookup_max=0, min_prefix_tokens=NEVER)
    requests = [request([i] * 9, grammar=f"s{i}", seed=i, logit_bias={ord("q"): -100}) for i in range(2)]
    awake = grammars(s0=text_fsm("abcd", "abxy", "q"), s1=text_fsm("abcd", "abxy", "q"))
    with running_engine(config=config, fetch=awake) as engine:
        alone = [run(engine, one)[0].text for one in requests]

    async def scenario(engine: Engine) -> None:
        waiting = [asyncio.create_task(collect(engine, one)) for one in requests]
        await eventually(lambda: all(2 in fsm.read_states for fsm in sleepers.values()))
        others = await asyncio.gather(*(collect(engine, request("p", max_tokens=5)) for _ in range(5)))
        assert not any(other.error for other in others)
        assert engine.scheduler.preemptions >= 2
        assert not any(task.done() for task in waiting)
        for fsm in sleepers.values():
            fsm.release.set()
        assert [(await task).text for task in waiting] == alone

    with running_engine(config=config, fetch=fsms) as engine:
        asyncio.run(scenario(engine))


def test_a_grammar_whose_every_mask_is_slow_costs_others_no_steps() -> None:
    """Its rows come one at a time, each after the others have gone on: they take one step per token throughout."""

    async def scenario(engine: Engine) -> None:
        slow = asyncio.create_task(collect(engine, request("x", grammar="slow")))
        for state in range(4):
            await eventually(lambda state=state: state in gates.read_states)
            steps = engine.statistics.steps
            # One alone: two might begin in different steps.
            result = await collect(engine, request([1], max_tokens=20, temperature=0))
            assert len(result.token_ids) == 20 and engine.statistics.steps - steps <= 22
            gates.open(state)
        assert len((await slow).token_ids) == 4

    class Gates(TableFSM):
        """Each row has a gate of its own."""

        def __init__(self) -> None:
            super().__init__({i: {97: i + 1, 98: i + 1} for i in range(4)} | {4: {}}, [4])
            self._opened: set[int] = set()

        def open(self, state: int) -> None:
            self._opened.add(state)

        def allowed_mask(self, state: int) -> Any:
            mask = super().allowed_mask(state)
            while state < 4 and state not in self._opened:
                time.sleep(0.002)
            return mask

    gates = Gates()
    with running_engine(
        config=engine_config(prompt_lookup_max=0, forced_text=False), fetch=grammars(slow=gates)
    ) as engine:
        asyncio.run(scenario(engine))


def test_when_the_queue_is_full_a_request_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = threading.Semaphore(0)

    async def scenario(engine: Engine) -> None:
        forward, enter, entered = engine.step_loop._runner.forward, engine._enter, list[Sequence]()

        def one_at_a_time(*arguments: Any) -> torch.Tensor:
            assert passes.acquire(timeout=200)
            return forward(*arguments)

        monkeypatch.setattr(engine.step_loop._runner, "forward", one_at_a_time)
        monkeypatch.setattr(engine, "_enter", lambda sequence: (enter(sequence), entered.append(sequence)))
        first = asyncio.create_task(collect(engine, request("x", max_tokens=60, temperature=0)))
        passes.release()
        await eventually(lambda: engine.statistics.sampled_tokens > 0)
        second = asyncio.create_task(collect(engine, request("y", max_tokens=3)))
        await eventually(lambda: len(entered) == 2)
        passes.release()
        await eventually(lambda: engine.scheduler.waiting)
        refused = await collect(engine, request("z", max_tokens=3))
        passes.release(1000)
        assert refused.error is not None
        assert (refused.error["status"], refused.error["code"]) == (429, "server_full")
        assert (await first).error is None and (await second).error is None

    with running_engine(config=engine_config(max_num_seqs=1, max_waiting=1, prompt_lookup_max=0)) as engine:
        asyncio.run(scenario(engine))


def test_a_deadline_ends_a_generation_wherever_it_is() -> None:
    sleeper = text_fsm("ab", "ac", sleeping=[1])
    with running_engine(config=engine_config(max_num_seqs=1), fetch=grammars(sleeper=sleeper)) as engine:
        held, waiting, fine = run(
            engine,
            request("x", grammar="sleeper", timeout_s=0.2),
            request("y", grammar="sleeper", timeout_s=0.2),
            request("z", max_tokens=3),
        )
        sleeper.release.set()
    for result in (held, waiting):
        assert result.error is not None and result.finish_reason == "error"
        assert (result.error["status"], result.error["code"]) == (408, "deadline_exceeded")
    assert len(fine.token_ids) == 3
