"""Host work while the model runs: it happens then, it changes no token, and a request may change meanwhile."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from gpu_workers.engine.engine import Engine
from gpu_workers.engine.messages import End
from gpu_workers.engine.overlap import launching
from gpu_workers.inference_engine import too_late
from gpu_workers.output import GenerationOutput, Outbox, OutputStream
from gpu_workers.sequence.sequence import Sequence
from tests.gpu_workers.support import (
    byte_vocabulary,
    collect,
    engine_config,
    grammars,
    repeat_fsm,
    request,
    run,
    running_engine,
)

OVERLAPPED = {"overlap": True, "prompt_lookup_max": 0}


def during_forward(monkeypatch: pytest.MonkeyPatch, engine: Engine, action: Callable[[int], None]) -> None:
    """Calls `action(number of the step)` on the model's thread when its forward pass is done but not committed."""
    forward = type(engine.step_loop._runner).forward

    def acting(*args: Any) -> Tensor:
        hidden_states = forward(*args)
        action(engine.statistics.steps)
        return hidden_states

    monkeypatch.setattr(type(engine.step_loop._runner), "forward", acting)


@pytest.mark.parametrize("overlap", [True, False, None])
def test_a_launch_returns_what_the_pass_returns_and_raises_what_it_raises(overlap: bool | None) -> None:
    threads: list[threading.Thread] = []

    def forward() -> Tensor:
        threads.append(threading.current_thread())
        return torch.ones(2)

    def failing() -> Tensor:
        raise RuntimeError("device lost")

    with launching(torch.device("cpu"), overlap) as launch:
        assert torch.equal(launch(forward)(), torch.ones(2))
        with pytest.raises(RuntimeError, match="device lost"):
            launch(failing)()
    assert (threads[0] is not threading.current_thread()) == bool(overlap)


def test_a_token_reaches_its_reader_while_the_next_pass_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every pass waits until the reader has the token of the pass before: without overlap, nobody would go on."""
    received: list[int] = []
    waited: list[bool] = []

    async def scenario(engine: Engine) -> None:
        async for output in engine.generate(request("abc", max_tokens=8, temperature=0)):
            received.extend(output.token_ids)
            told.set()

    with running_engine(config=engine_config(**OVERLAPPED)) as engine:
        told = threading.Event()

        def wait(step: int) -> None:
            if step:
                waited.append(told.wait(200) and len(received) == step)
                told.clear()

        during_forward(monkeypatch, engine, wait)
        asyncio.run(scenario(engine))
    assert waited == [True] * 7


def test_the_next_draw_is_prepared_while_the_pass_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every pass that has something to draw from waits until its draws are prepared: afterwards would be too late."""
    prepared = threading.Event()
    waited: list[bool] = []
    with running_engine(config=engine_config(**OVERLAPPED), fetch=grammars(a=repeat_fsm("ab"))) as engine:
        prepare, launch = engine.step_loop.sampler.prepare, engine.step_loop._launch

        def preparing(draws: Any) -> Any:
            made = prepare(draws)
            if draws:
                prepared.set()
            return made

        def launching_pass(plan: Any) -> Any:
            prepared.clear()
            return launch(plan)

        def wait(step: int) -> None:
            if step and all(waited):
                waited.append(prepared.wait(200))

        monkeypatch.setattr(type(engine.step_loop.sampler), "prepare", lambda _, draws: preparing(draws))
        monkeypatch.setattr(engine.step_loop, "_launch", launching_pass)
        during_forward(monkeypatch, engine, wait)
        (result,) = run(engine, request("abc", grammar="a", min_tokens=12, max_tokens=12))
    assert len(result.token_ids) == 12 and len(waited) > 8 and all(waited)


def test_requests_that_end_while_a_pass_runs_end_once_and_keep_their_slots_until_it_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One is cancelled and one expires while a pass writes to their slots; neighbours and heirs are as when alone."""
    settings = {"max_tokens": 12, "temperature": 0}
    with running_engine(config=engine_config(**OVERLAPPED)) as engine:
        alone = [run(engine, request([i] * 9, **settings))[0].token_ids for i in range(6)]
    victims: list[Sequence] = []
    kept: list[bool] = []

    async def scenario(engine: Engine) -> None:
        long = {"max_tokens": 60, "temperature": 0}
        doomed = [collect(engine, request([50 + i] * 9, timeout_s=3600, **long)) for i in range(2)]
        neighbours = [collect(engine, request([i] * 9, **settings)) for i in range(6)]
        cancelled, expired, *others = await asyncio.gather(*doomed, *neighbours)
        assert cancelled.finish_reason == "cancelled"
        assert expired.error is not None and expired.error["code"] == "deadline_exceeded"
        assert [other.token_ids for other in others] == alone

    with running_engine(config=engine_config(**OVERLAPPED)) as engine:
        deliver = engine.step_loop.outbox.deliver
        delivered = threading.Event()

        def deliver_and_end() -> None:
            """What the engine does first once a pass is running; messages come next."""
            deliver()
            if not engine.step_loop._pass_running:
                return
            doomed = [one for one in engine.scheduler.running if one.token_ids[0] >= 50 and one.output_length > 3]
            if len(doomed) == 2 and not victims:
                victims.extend(sorted(doomed, key=lambda one: one.token_ids[0]))
                engine._tell(End(victims[0]))
                engine._tell(End(victims[1], too_late(victims[1].request)))
            delivered.set()

        def watch(step: int) -> None:
            """The pass goes on until the engine has ended both."""
            assert delivered.wait(200)
            delivered.clear()
            if victims and not kept:
                deadline = time.monotonic() + 200
                while len(engine.step_loop._ended_meanwhile) < 2 and time.monotonic() < deadline:
                    time.sleep(0.001)
                kept.append(all(one.slot is not None and one.slot not in engine.pool._free for one in victims))

        monkeypatch.setattr(engine.step_loop.outbox, "deliver", deliver_and_end)
        during_forward(monkeypatch, engine, watch)
        asyncio.run(asyncio.wait_for(scenario(engine), 250))
    assert kept == [True]


def test_what_is_told_and_drawn_does_not_change_with_the_request() -> None:
    """Text and draws are fixed when they are made; then the sequence goes on, is taken off its slot, and ends."""

    async def scenario() -> None:
        outbox = Outbox()
        stream = OutputStream(3, outbox)
        one = request("abc", max_tokens=9, frequency_penalty=1.0)
        sequence = Sequence(one, list(b"abc"), byte_vocabulary(), 64, stream)
        sequence.settle()
        sequence.append(ord("x"))
        sequence.settle()
        draw = sequence.draw()
        assert draw is not None and draw.history is not None
        for byte in "yé".encode():
            sequence.append(byte)
        sequence.suspend()
        sequence.token_ids[-1] = 0
        stream.end(GenerationOutput(finish_reason="stop"), sequence.text.rest)
        outbox.deliver()
        output = await stream.next()
        assert (output.text, output.token_ids) == ("xyé", list("xyé".encode()))
        assert output.finish_reason == "stop"
        assert draw.position == 1 and list(draw.history.output) == [ord("x")]

    asyncio.run(scenario())


def test_a_pass_that_fails_while_the_host_works_ends_its_requests_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    with running_engine(config=engine_config(**OVERLAPPED), fetch=grammars(a=repeat_fsm("ab"))) as engine:

        def fail(step: int) -> None:
            if step >= 2:
                raise RuntimeError("device lost")

        during_forward(monkeypatch, engine, fail)
        results = run(engine, *(request("abc", grammar="a", min_tokens=30, max_tokens=30) for _ in range(5)))
        assert all(result.error is not None for result in results)
        monkeypatch.undo()
        (fine,) = run(engine, request("abc", max_tokens=3, temperature=0))
        assert len(fine.token_ids) == 3
