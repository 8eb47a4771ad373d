"""Life and death in the engine: every request ends exactly once, every slot comes back, one failure stays one."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from gpu_workers.engine.engine import Engine
from gpu_workers.output import GenerationOutput
from gpu_workers.request import GenerationRequest, GrammarReference, RequestError
from gpu_workers.sequence.sequence import Sequence
from gpu_workers.transfers import HostCopy
from grammar_workers.errors import LimitExceededError
from tests.gpu_workers.support import (
    END,
    MAX_LENGTH,
    TableFSM,
    collect,
    engine_config,
    grammars,
    loaded,
    no_grammars,
    repeat_fsm,
    request,
    run,
    running_engine,
    text_fsm,
)


async def eventually(condition: Any) -> None:
    async with asyncio.timeout(200):
        while not condition():
            await asyncio.sleep(0.002)


# -- grammars --------------------------------------------------------------------------------------------------------


def test_output_obeys_its_grammar() -> None:
    texts = ("yes", "no", "maybe, who knows")
    with running_engine(fetch=grammars(texts=text_fsm(*texts), a=repeat_fsm("ab"))) as engine:
        results = run(
            engine,
            *(request(f"p{i}", grammar="texts", seed=i) for i in range(8)),
            *(request(f"q{i}", grammar="a", seed=i, max_tokens=30) for i in range(4)),
        )
    assert {result.text for result in results[:8]} <= set(texts)
    assert all(result.finish_reason == "stop" for result in results[:8])
    assert all(set(result.text) <= {"a", "b"} for result in results[8:])


def test_steps_that_wait_for_no_mask_give_the_same_output() -> None:
    texts = []
    for mask_timeout_ms in (0, 1000):
        config = engine_config(mask_timeout_ms=mask_timeout_ms)
        with running_engine(config=config, fetch=grammars(a=repeat_fsm("ab"))) as engine:
            texts.append([one.text for one in run(engine, *(request("x", grammar="a", seed=i) for i in range(3)))])
    assert texts[0] == texts[1]


def test_tokens_without_a_choice_need_no_forward_pass() -> None:
    """Four letters with no choice: at most the prompt's own step runs, and no logits are computed."""
    with running_engine(
        config=engine_config(long_prefill_token_threshold=64, max_num_batched_tokens=64),
        fetch=grammars(t=text_fsm("true")),
    ) as engine:
        (result,) = run(engine, request("is it", grammar="t"))
        assert engine.statistics.steps <= 1
        assert (engine.statistics.forced_tokens, engine.statistics.sampled_tokens) == (4, 0)
        assert engine.step_loop.sampler.counts["dense"] == engine.step_loop.sampler.counts["sparse"] == 0
    assert (result.text, result.finish_reason) == ("true", "stop")
    assert result.token_ids == list(b"true")


def test_without_forced_text_every_token_is_a_step_and_the_last_needs_no_other() -> None:
    config = engine_config(
        long_prefill_token_threshold=64, max_num_batched_tokens=64, forced_text=False, prompt_lookup_max=0
    )
    with running_engine(config=config, fetch=grammars(t=text_fsm("true"))) as engine:
        (result,) = run(engine, request("is it", grammar="t"))
        assert engine.statistics.steps == 4
        assert engine.step_loop.sampler.counts["forced"] == 4
        assert engine.step_loop.sampler.counts["dense"] == engine.step_loop.sampler.counts["sparse"] == 0
    assert result.token_ids == list(b"true")


def test_a_grammar_of_the_empty_text_ends_at_once() -> None:
    with running_engine(fetch=grammars(empty=text_fsm(""))) as engine:
        (result,) = run(engine, request("abc", grammar="empty"))
    assert (result.token_ids, result.text, result.finish_reason) == ([], "", "stop")


@pytest.mark.parametrize(("max_tokens", "reason"), [(3, "length"), (4, "stop"), (5, "stop")])
def test_length_means_that_the_output_is_not_complete(max_tokens: int, reason: str) -> None:
    with running_engine(fetch=grammars(t=text_fsm("true"))) as engine:
        (result,) = run(engine, request("x", grammar="t", max_tokens=max_tokens))
    assert result.finish_reason == reason
    assert result.text == "true"[:max_tokens]


def test_a_grammar_that_may_go_on_ends_by_its_end_token_or_by_length() -> None:
    letters = "abcdefghijklmnopqrstuvwxyz"
    with running_engine(fetch=grammars(letters=repeat_fsm(letters))) as engine:
        results = run(engine, *(request([i], grammar="letters", max_tokens=6, seed=i) for i in range(30)))
    for result in results:
        ended = result.token_ids[-1:] == [END]
        assert result.finish_reason == ("stop" if ended else "length")
        assert len(result.token_ids) == 6 or ended
        assert len(result.text) == len(result.token_ids) - ended
        assert set(result.text) <= set(letters)
    assert {result.finish_reason for result in results} == {"stop", "length"}


def test_under_a_grammar_a_stop_string_counts_only_where_the_output_is_complete() -> None:
    """After `a` a line end may be cut off, what is left matches. Inside braces it would not: no stop there."""
    lines = TableFSM({0: {ord("a"): 1}, 1: {ord("\n"): 0}}, [1])
    braces = text_fsm("{\n}")
    with running_engine(fetch=grammars(lines=lines, braces=braces)) as engine:
        stopped, whole = run(
            engine,
            request("x", grammar="lines", stop=["\n"], temperature=0, max_tokens=40),
            request("x", grammar="braces", stop=["\n"]),
        )
    assert (stopped.text, stopped.finish_reason) == ("a", "stop")
    assert (whole.text, whole.finish_reason) == ("{\n}", "stop")


def test_a_stop_string_ends_free_text_where_it_begins() -> None:
    with running_engine() as engine:
        (whole,) = run(engine, request("abc", max_tokens=30, seed=3))
        stop = whole.text[10:13]
        (stopped,) = run(engine, request("abc", max_tokens=30, seed=3, stop=[stop]))
    assert stopped.text == whole.text[: whole.text.index(stop)]
    assert stopped.finish_reason == "stop"


def test_prefill_does_not_wait_for_the_grammar_and_others_do_not_wait_at_all() -> None:
    """While one grammar is missing its prompt is computed, another request runs to its end, and then it goes on."""
    arrived = asyncio.Event()
    fsm = text_fsm("late")

    async def fetch(grammar: GrammarReference) -> TableFSM:
        await arrived.wait()
        return fsm

    async def scenario(engine: Engine) -> None:
        late = asyncio.create_task(collect(engine, request("p" * 30, grammar="late")))
        await eventually(lambda: engine.statistics.fed_tokens == 30)
        steps = engine.statistics.steps
        other = await collect(engine, request("q", max_tokens=20, temperature=0))
        assert len(other.token_ids) == 20
        assert engine.statistics.steps == steps + 20
        arrived.set()
        assert (await late).text == "late"
        assert engine.statistics.fed_tokens == 30 + 20  # the late text leaves no choice

    with running_engine(config=engine_config(prompt_lookup_max=0), fetch=fetch) as engine:
        asyncio.run(scenario(engine))


def test_the_prompt_is_computed_when_the_device_has_computed_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until then, a late grammar delays nothing: only the wait after that counts as one for the grammar."""
    read: list[float] = []

    class OfASlowDevice(HostCopy):
        def read(self) -> torch.Tensor:
            time.sleep(0.05)
            read.append(time.monotonic())
            return super().read()

    monkeypatch.setattr("gpu_workers.engine.step_loop.HostCopy", OfASlowDevice)
    with running_engine() as engine:
        (result,) = run(engine, request("p", max_tokens=2))
    (prefilled,) = (ended for name, _, ended in result.outputs[-1].spans if name == "prefill")
    assert prefilled >= read[0]


def test_a_prompt_waits_a_moment_for_its_grammar(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the grammar forces is in the pass that computes the prompt. Who leaves meanwhile leaves nothing behind."""
    monkeypatch.setattr("gpu_workers.engine.engine.GRAMMAR_HEAD_START_S", 30.0)
    wanted = asyncio.Event()

    async def fetch(grammar: GrammarReference) -> TableFSM:
        wanted.set()
        await asyncio.sleep(0.01)
        return text_fsm("forced, a", "forced, b")

    async def scenario(engine: Engine) -> None:
        leaving = asyncio.create_task(collect(engine, request("p", grammar="soon")))
        await wanted.wait()
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        result = await collect(engine, request("p", grammar="soon"))
        assert result.text in ("forced, a", "forced, b")
        assert (engine.statistics.steps, engine.statistics.fed_tokens) == (1, 1 + len("forced, "))

    with running_engine(
        config=engine_config(long_prefill_token_threshold=64, max_num_batched_tokens=64), fetch=fetch
    ) as engine:
        asyncio.run(scenario(engine))


def test_slow_grammars_do_not_take_every_slot() -> None:
    """More requests than slots wait for a grammar that does not come; requests behind them are served."""
    arrived = asyncio.Event()

    async def fetch(grammar: GrammarReference) -> TableFSM:
        await arrived.wait()
        return text_fsm("at last")

    async def scenario(engine: Engine) -> None:
        waiting = [asyncio.create_task(collect(engine, request("p" * 9, grammar="late"))) for _ in range(6)]
        await eventually(lambda: len(engine.scheduler.running) + len(engine.scheduler.waiting) == 6)
        results = await asyncio.gather(*(collect(engine, request("q", max_tokens=9)) for _ in range(6)))
        assert not any(result.error for result in results)
        arrived.set()
        assert {result.text for result in await asyncio.gather(*waiting)} == {"at last"}

    with running_engine(fetch=fetch) as engine:
        asyncio.run(scenario(engine))


def test_an_automaton_that_outgrows_its_budget_is_the_requests_error() -> None:
    class Growing(TableFSM):
        def next_state(self, state: int, token_id: int) -> int:
            if state == 2:
                raise LimitExceededError("too many states")
            return super().next_state(state, token_id)

    with running_engine(fetch=grammars(growing=Growing({i: {97: i + 1} for i in range(9)}, [9]))) as engine:
        fine, failed = run(engine, request("a", max_tokens=20, temperature=0), request("b", grammar="growing"))
    assert len(fine.token_ids) == 20
    assert failed.error is not None
    assert (failed.error["status"], failed.error["code"]) == (400, "grammar_limit_exceeded")


def test_an_automaton_without_room_for_a_draft_is_the_requests_error(monkeypatch: pytest.MonkeyPatch) -> None:
    propose = Sequence.propose

    def outgrown(sequence: Sequence) -> None:
        if sequence.constraint is not None:
            raise LimitExceededError("too many states")
        propose(sequence)

    monkeypatch.setattr(Sequence, "propose", outgrown)
    with running_engine(fetch=grammars(any=TableFSM({0: {97: 0, 98: 0}}, []))) as engine:
        fine, failed = run(
            engine, request("a", max_tokens=20, temperature=0), request("b", grammar="any", max_tokens=20)
        )
    assert len(fine.token_ids) == 20
    assert failed.error is not None
    assert (failed.error["status"], failed.error["code"]) == (400, "grammar_limit_exceeded")


def test_a_slow_mask_stops_its_own_row_only() -> None:
    """The third state's row sleeps: others take a step per token meanwhile, and the row goes on when it wakes."""
    sleeper = text_fsm("slow", "sl0w", sleeping=[2])

    async def scenario(engine: Engine) -> None:
        slow = asyncio.create_task(collect(engine, request("x", grammar="sleeper")))
        await eventually(lambda: 2 in sleeper.read_states)
        for other in (request("y", max_tokens=30, temperature=0), request("z", grammar="fast", max_tokens=30)):
            steps = engine.statistics.steps
            assert len((await collect(engine, other)).token_ids) == 30
            # One for each token, and the sleeping row's one forward pass.
            assert engine.statistics.steps - steps <= 31
        assert not slow.done()
        sleeper.release.set()
        assert (await slow).text in ("slow", "sl0w")

    fast = TableFSM({0: {ord("f"): 0}}, [])
    with running_engine(fetch=grammars(sleeper=sleeper, fast=fast)) as engine:
        asyncio.run(scenario(engine))


def test_many_sleeping_rows_do_not_keep_another_row_from_being_read() -> None:
    sleepers = {f"s{i}": text_fsm("ab", "ac", sleeping=[0]) for i in range(3)}

    async def scenario(engine: Engine) -> None:
        waiting = [asyncio.create_task(collect(engine, request("x", grammar=name))) for name in sleepers]
        await eventually(lambda: all(0 in fsm.read_states for fsm in sleepers.values()))
        assert (await collect(engine, request("y", grammar="quick"))).text == "quick"
        for fsm in sleepers.values():
            fsm.release.set()
        assert {result.text for result in await asyncio.gather(*waiting)} <= {"ab", "ac"}

    with running_engine(fetch=grammars(quick=text_fsm("quick"), **sleepers)) as engine:
        asyncio.run(scenario(engine))


# -- failures --------------------------------------------------------------------------------------------------------


def test_a_grammar_that_cannot_be_had_ends_its_request_alone() -> None:
    async def fetch(grammar: GrammarReference) -> TableFSM:
        match grammar.specification["name"]:
            case "refused":
                raise RequestError("no such keyword", code="unsupported_grammar", param="/x")
            case "crashed":
                raise ConnectionError("gone")
            case _:
                await asyncio.sleep(3600)
        raise AssertionError

    fine = request("a", max_tokens=40, temperature=0)
    with running_engine(fetch=fetch) as engine:
        beside, refused, crashed = run(engine, fine, request("b", grammar="refused"), request("c", grammar="crashed"))
    with running_engine(config=engine_config(grammar_timeout_s=0.2), fetch=fetch) as engine:
        beside_slow, slow = run(engine, fine, request("d", grammar="slow"))
    assert len(beside.token_ids) == len(beside_slow.token_ids) == 40
    assert refused.error == {
        "status": 400,
        "code": "unsupported_grammar",
        "message": "no such keyword",
        "param": "/x",
    }
    assert crashed.error is not None and crashed.error["status"] == 500
    assert slow.error is not None and slow.error["code"] == "grammar_timeout"


def test_an_exception_in_a_row_ends_that_row_only() -> None:
    broken = text_fsm("broken", broken=[3])
    dead_end = TableFSM({0: {ord("d"): 1}, 1: {}}, [])
    with running_engine(fetch=grammars(broken=broken, dead_end=dead_end)) as engine:
        fine, failed, stuck = run(
            engine,
            request("a", max_tokens=30, temperature=0),
            request("b", grammar="broken"),
            request("c", grammar="dead_end"),
        )
        engine.check_health()
    assert len(fine.token_ids) == 30
    assert failed.token_ids == list(b"bro") and failed.error is not None and failed.error["status"] == 500
    assert stuck.token_ids == [ord("d")] and stuck.error is not None


def test_a_failed_step_ends_all_it_carried_and_the_engine_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    with running_engine() as engine:
        forward = engine.step_loop._runner.forward

        def failing(*args: Any) -> torch.Tensor:
            forward(*args)
            if engine.statistics.steps >= 3:
                raise RuntimeError("device lost")
            return forward(*args)

        monkeypatch.setattr(type(engine.step_loop._runner), "forward", lambda self, *args: failing(*args))
        results = run(engine, *(request("abc", max_tokens=30) for _ in range(6)))
        assert [result.error["message"] for result in results if result.error] == ["the engine step failed"] * 6
        monkeypatch.undo()
        (fine,) = run(engine, request("abc", max_tokens=3, temperature=0))
        assert len(fine.token_ids) == 3
        engine.check_health()


def test_steps_that_keep_failing_make_the_engine_unhealthy(monkeypatch: pytest.MonkeyPatch) -> None:
    with running_engine() as engine:

        def failing(*_: Any) -> torch.Tensor:
            raise RuntimeError("device lost")

        monkeypatch.setattr(type(engine.step_loop._runner), "forward", failing)
        for _ in range(3):
            run(engine, request("abc", max_tokens=3))
        with pytest.raises(RuntimeError, match="steps"):
            engine.check_health()


def test_values_that_are_not_finite_end_their_sequence_and_leave_nothing_behind() -> None:
    """NaN in one slot of the cache: its owner fails, its neighbours and the slot's next owner never notice."""
    prompt, settings = [7] * 20, {"max_tokens": 40, "temperature": 0}

    async def scenario(engine: Engine) -> None:
        clean = await collect(engine, request(prompt, **settings))
        victim, neighbour = (engine.generate(request([i] * 20, **settings)) for i in (1, 2))
        await anext(victim)
        running = next(sequence for sequence in engine.scheduler.running if sequence.token_ids[0] == 1)
        assert running.slot is not None
        for layer in engine.pool.keys:
            layer[running.slot, :, 3] = torch.nan
        ended = [output async for output in victim][-1]
        assert ended.error is not None and ended.error["code"] == "not_finite"
        outputs = [output async for output in neighbour]
        assert outputs[-1].finish_reason == "length"
        # More of them than slots: one has the victim's.
        for result in await asyncio.gather(*(collect(engine, request(prompt, **settings)) for _ in range(5))):
            assert result.token_ids == clean.token_ids

    with running_engine() as engine:
        asyncio.run(scenario(engine))


@pytest.mark.parametrize(
    ("prompt", "code"),
    [
        ([], "invalid_prompt"),
        ([END + 1], "invalid_prompt"),
        ([-1], "invalid_prompt"),
        ([1] * MAX_LENGTH, "context_length_exceeded"),
    ],
)
def test_prompts_that_cannot_be_served_are_refused(prompt: list[int], code: str) -> None:
    with running_engine() as engine:
        (result,) = run(engine, request(prompt))
    assert result.error is not None
    assert (result.error["status"], result.error["code"], result.error["param"]) == (400, code, "prompt")


def test_a_resume_that_contradicts_its_grammar_is_refused() -> None:
    with running_engine(fetch=grammars(t=text_fsm("true"))) as engine:
        (result,) = run(engine, request("x", grammar="t", emitted_token_ids=list(b"tx")))
    assert result.error is not None and result.error["code"] == "invalid_resume"


# -- cancellation and the end ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_cancelling_anywhere_leaks_nothing(seed: int) -> None:
    """Waiting, prefilling, decoding, waiting for a grammar or a mask: closing the iterator frees everything."""
    rng = random.Random(seed)
    sleeper = text_fsm("ab", "ac", sleeping=[1])
    never = asyncio.Event()

    async def fetch(grammar: GrammarReference) -> TableFSM:
        if grammar.specification["name"] == "never":
            await never.wait()
        return sleeper if grammar.specification["name"] == "sleeper" else repeat_fsm("xyz")

    async def one(engine: Engine, one: GenerationRequest) -> int:
        """Reads some outputs, then leaves by closing, by cancellation, or by reading to the end."""
        patience = rng.random() * 0.2
        outputs: list[GenerationOutput] = []
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience), contextlib.aclosing(engine.generate(one)) as stream:
                async for output in stream:
                    outputs.append(output)
                    if rng.random() < 0.1:
                        break
        return sum(output.finish_reason is not None for output in outputs)

    async def scenario(engine: Engine) -> None:
        requests = [
            request(
                [rng.randrange(256)] * rng.choice([1, 10, 60]),
                grammar=rng.choice([None, "free", "sleeper", "never"]),
                max_tokens=rng.randrange(1, 30),
            )
            for _ in range(40)
        ]
        ends = await asyncio.gather(*(one(engine, each) for each in requests))
        assert max(ends) <= 1
        sleeper.release.set()
        await eventually(lambda: not engine.scheduler.running and not engine.scheduler.waiting)

    with running_engine(fetch=fetch) as engine:
        asyncio.run(scenario(engine))


def test_closing_the_engine_ends_everything_with_an_error() -> None:
    config = engine_config(max_num_seqs=3)  # slots are not freed by closing: an engine's pool of its own
    engine = Engine(loaded("llama", config), config, no_grammars)

    async def scenario() -> None:
        streams = [asyncio.create_task(collect(engine, request("x" * 20))) for _ in range(8)]
        await eventually(lambda: engine.statistics.sampled_tokens > 0)
        await asyncio.to_thread(engine.close)
        for result in await asyncio.gather(*streams):
            assert result.error is not None and result.error["status"] == 503
        after = await collect(engine, request("y"))
        assert after.error is not None and after.error["code"] == "unavailable"
        with pytest.raises(RuntimeError, match="ended"):
            engine.check_health()

    asyncio.run(scenario())


def test_a_slow_consumer_gets_merged_outputs() -> None:
    async def scenario(engine: Engine) -> None:
        outputs = []
        async for output in engine.generate(request("abc", max_tokens=30, temperature=0)):
            outputs.append(output)
            if len(outputs) == 1:
                await eventually(lambda: not engine.scheduler.running)
        assert len(outputs) <= 3, "the last token may leave after its row"
        assert sum(len(output.token_ids) for output in outputs) == 30

    with running_engine() as engine:
        asyncio.run(scenario(engine))


def test_no_grammar_code_runs_for_rows_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("grammar code entered")

    names = ("read_row", "advance", "MaskReader.start", "MaskReader.table", "Constraint.__init__")
    for name in (*(f"guided.masks.{name}" for name in names), "sampling.device_rows.DeviceRows.places"):
        monkeypatch.setattr(f"gpu_workers.{name}", never)
    with running_engine() as engine:
        results = run(engine, *(request("abc", max_tokens=10, temperature=i % 2) for i in range(6)))
    assert all(result.error is None for result in results)


def test_the_smallest_settings() -> None:
    smallest = {"max_num_seqs": 1, "max_model_len": 2, "max_num_batched_tokens": 2, "long_prefill_token_threshold": 1}
    smallest |= {"min_prefix_tokens": 1, "sparse_limit": 1, "automaton_cache_mb": 1, "device_table_mb": 1}
    with running_engine(config=engine_config(**smallest)) as engine:
        (result,) = run(engine, request([5], max_tokens=9))
    assert len(result.token_ids) == 1 and result.finish_reason == "length"
    for name, value in smallest.items():
        with pytest.raises(ValidationError, match=name):
            engine_config(**{name: value - 1})
