"""One request through both tiers: at the same time, past dying replicas, and never beyond its client."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError
from ray.serve.exceptions import BackPressureError

from deployments.generation import Generation, Grammar
from deployments.http.errors import ApiError
from deployments.routing.retries import MAX_TRIES
from deployments.routing.tiers import Tiers
from tests.deployments.applications import NEW_GRAMMARS
from tests.deployments.fakes import ARTIFACT, FakeCompiler, FakeReplica, settled

pytestmark = pytest.mark.anyio

GRAMMAR = Grammar("k" * 64, {"type": "json_object"}, "response_format")
TENANT = "anonymous"
REFUSAL = {"code": "unsupported_grammar", "message": "`not` is not supported", "pointer": "/not", "position": None}
UNAVAILABLE = ActorUnavailableError("gone", None)


def request() -> dict[str, Any]:
    return {"request_id": "r", "prompt": "x", "emitted_token_ids": [], "grammar": None}


def unseen(tiers: Tiers, many: int) -> list[asyncio.Task[Generation]]:
    """So many generations of one tenant, each under a grammar of its own."""
    grammars = [dataclasses.replace(GRAMMAR, key=f"{number:064}") for number in range(many)]
    return [asyncio.create_task(tiers.start_generation(request(), grammar, TENANT)) for grammar in grammars]


async def text(generation: Generation) -> str:
    return "".join([event["text"] async for event in generation])


@pytest.fixture(autouse=True)
def no_head_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Generations begin with their compilations."""
    monkeypatch.setattr("deployments.routing.tiers.HEAD_START_S", 0.0)


@pytest.fixture
def tiers(compiler: FakeCompiler, replica: FakeReplica) -> Tiers:
    return Tiers(compiler.handle, replica.handle, new_grammars=NEW_GRAMMARS)


async def test_both_tiers_work_at_the_same_time(tiers: Tiers, compiler: FakeCompiler, replica: FakeReplica) -> None:
    compiler.release.clear()
    replica.release.clear()
    start = asyncio.create_task(tiers.start_generation(request(), GRAMMAR, TENANT))
    await asyncio.wait_for(asyncio.gather(compiler.started.wait(), replica.started.wait()), 200)
    assert not start.done()
    compiler.release.set()
    replica.release.set()
    assert await text(await start) == "0 1 2 3 4 "
    assert replica.requests[0]["grammar"] == {
        "key": GRAMMAR.key,
        "specification": GRAMMAR.specification,
        "tenant": TENANT,
        "artifact": None,
    }


async def test_the_artifact_of_a_new_grammar_travels_with_its_generation(
    tiers: Tiers, compiler: FakeCompiler, replica: FakeReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also to the replica that goes on. Of a known one it is not asked for: a replica has it, or knows where it is."""
    monkeypatch.setattr("deployments.routing.tiers.HEAD_START_S", 30.0)
    replica.faults = [None, (2, ActorDiedError())]
    generation = await tiers.start_generation(request(), GRAMMAR, TENANT, choices=2)
    assert generation.grammar is not None and "artifact" not in generation.grammar
    assert [event async for event in generation]
    await text(await tiers.start_generation(request(), GRAMMAR, TENANT))
    assert [call["grammar"]["artifact"] for call in replica.requests] == [ARTIFACT] * 3 + [None]


async def test_a_refusal_in_time_reaches_no_replica(
    tiers: Tiers, compiler: FakeCompiler, replica: FakeReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deployments.routing.tiers.HEAD_START_S", 30.0)
    compiler.answers = [{"status": "refused", "error": REFUSAL}]
    with pytest.raises(ApiError):
        await tiers.start_generation(request(), GRAMMAR, TENANT)
    assert not replica.requests


async def test_nothing_is_answered_before_the_grammar_is_ready(tiers: Tiers, compiler: FakeCompiler) -> None:
    compiler.release.clear()
    start = asyncio.create_task(tiers.start_generation(request(), GRAMMAR, TENANT))
    await compiler.started.wait()
    await settled()
    assert not start.done()
    compiler.release.set()
    assert (await start).grammar is not None


async def test_one_tenants_new_grammars_take_turns_and_others_do_not_wait(
    tiers: Tiers, compiler: FakeCompiler, replica: FakeReplica
) -> None:
    compiler.release.clear()
    flood = unseen(tiers, 10)
    await settled()
    assert len(compiler.calls) == len(replica.requests) == NEW_GRAMMARS
    other = asyncio.create_task(tiers.start_generation(request(), GRAMMAR, "other"))
    free = asyncio.create_task(tiers.start_generation(request(), None, TENANT))
    await settled()
    assert len(replica.requests) == NEW_GRAMMARS + 2
    assert await text(await free) == "0 1 2 3 4 "
    flood.pop().cancel()
    compiler.release.set()
    assert {await text(await one) for one in [*flood, other]} == {"0 1 2 3 4 "}
    assert len(replica.requests) == 11


async def test_compilers_hear_how_many_new_grammars_wait_for_a_turn(tiers: Tiers, compiler: FakeCompiler) -> None:
    compiler.release.clear()
    await tiers.report_held_back()
    assert compiler.held_back == []
    asking = unseen(tiers, NEW_GRAMMARS + 3)
    await settled()
    await tiers.report_held_back()
    ((_, waiting),) = compiler.held_back
    assert waiting == 3
    compiler.release.set()
    for one in asking:
        await text(await one)
    await tiers.report_held_back()
    assert len(compiler.held_back) == 1


async def test_a_busy_model_keeps_no_new_grammar_waiting(
    tiers: Tiers, compiler: FakeCompiler, replica: FakeReplica
) -> None:
    replica.release.clear()
    asked = unseen(tiers, 10)
    await settled()
    assert len(compiler.calls) == 10
    replica.release.set()
    assert {await text(await one) for one in asked} == {"0 1 2 3 4 "}


async def test_what_is_generated_for_others_halves_the_turns(
    tiers: Tiers, compiler: FakeCompiler, replica: FakeReplica
) -> None:
    stream = await tiers.start_generation(request(), None, "other")
    compiler.release.clear()
    flood = unseen(tiers, 10)
    await settled()
    assert len(compiler.calls) == NEW_GRAMMARS // 2
    compiler.release.set()
    assert await text(stream) == "0 1 2 3 4 "
    assert {await text(await one) for one in flood} == {"0 1 2 3 4 "}


async def test_time_spent_waiting_for_a_turn_counts(tiers: Tiers, compiler: FakeCompiler) -> None:
    compiler.release.clear()
    ahead = unseen(tiers, NEW_GRAMMARS)
    await settled()
    with pytest.raises(ApiError) as caught:
        await tiers.start_generation({**request(), "timeout_s": 0.01}, GRAMMAR, TENANT)
    assert (caught.value.status, caught.value.detail.param) == (408, "timeout_s")
    compiler.release.set()
    await asyncio.gather(*ahead)


async def test_the_key_chooses_the_compiler(tiers: Tiers, compiler: FakeCompiler) -> None:
    await tiers.start_generation(request(), GRAMMAR, TENANT)
    assert compiler.calls == [(GRAMMAR.key, GRAMMAR.specification, {"session_id": GRAMMAR.key})]


async def test_without_a_grammar_no_compiler_is_asked(tiers: Tiers, compiler: FakeCompiler) -> None:
    generation = await tiers.start_generation(request(), None, TENANT)
    assert generation.grammar is None and not compiler.calls
    assert await text(generation) == "0 1 2 3 4 "


async def test_a_refused_grammar_cancels_the_prefill(
    tiers: Tiers, compiler: FakeCompiler, replica: FakeReplica
) -> None:
    replica.release.clear()
    compiler.answers = [{"status": "refused", "error": REFUSAL}]
    with pytest.raises(ApiError) as caught:
        await tiers.start_generation(request(), GRAMMAR, TENANT)
    assert caught.value.status == 400
    assert caught.value.detail.pointer == "/not"
    assert caught.value.detail.param == "response_format"
    await settled()
    assert replica.running == 0


async def test_a_replica_that_hears_of_a_refusal_first_does_not_answer_for_the_compiler(
    tiers: Tiers, compiler: FakeCompiler, replica: FakeReplica
) -> None:
    compiler.release.clear()
    compiler.answers = [{"status": "refused", "error": REFUSAL}]
    replica.faults = [(0, {"status": 400, "code": REFUSAL["code"], "message": REFUSAL["message"], "param": "/not"})]
    start = asyncio.create_task(tiers.start_generation(request(), GRAMMAR, TENANT))
    await settled()
    assert not start.done()
    compiler.release.set()
    with pytest.raises(ApiError) as caught:
        await asyncio.wait_for(start, 200)
    assert (caught.value.detail.param, caught.value.detail.pointer) == ("response_format", "/not")


async def test_a_refused_prompt_does_not_wait_for_the_grammar(
    tiers: Tiers, compiler: FakeCompiler, replica: FakeReplica
) -> None:
    compiler.release.clear()
    replica.faults = [(0, {"status": 400, "code": "too_long", "message": "too long", "param": "messages"})]
    with pytest.raises(ApiError, match="too long"):
        await asyncio.wait_for(tiers.start_generation(request(), GRAMMAR, TENANT), 200)


async def test_a_stream_resumes_after_its_replica_died(tiers: Tiers, replica: FakeReplica) -> None:
    replica.faults = [(0, UNAVAILABLE), (2, ActorDiedError()), (0, UNAVAILABLE), (1, ActorDiedError())]
    assert await text(await tiers.start_generation(request(), GRAMMAR, TENANT)) == "0 1 2 3 4 "
    assert [call["emitted_token_ids"] for call in replica.requests] == [[], [], [0, 1], [0, 1], [0, 1, 2]]


async def test_the_next_replica_has_what_is_left_of_the_time(tiers: Tiers, replica: FakeReplica) -> None:
    replica.faults = [(1, UNAVAILABLE)]
    await text(await tiers.start_generation({**request(), "timeout_s": 60.0}, None, TENANT))
    first, second = (asked["timeout_s"] for asked in replica.requests)
    assert 0 < second < first <= 60


async def test_a_replica_that_shuts_down_is_left_for_another(tiers: Tiers, replica: FakeReplica) -> None:
    closing = {"status": 503, "code": "unavailable", "message": "the engine has shut down", "param": None}
    replica.faults = [(3, closing)]
    assert await text(await tiers.start_generation(request(), GRAMMAR, TENANT)) == "0 1 2 3 4 "


async def test_a_replica_that_dies_after_its_last_event_is_not_missed(tiers: Tiers, replica: FakeReplica) -> None:
    replica.length = 2
    generation = await tiers.start_generation(request(), None, TENANT)
    replica.faults = [(3, ActorDiedError())]
    assert await text(generation) == "0 1 "
    assert len(replica.requests) == 1


async def test_a_dead_compiler_is_left_for_another(tiers: Tiers, compiler: FakeCompiler) -> None:
    compiler.answers = [ActorDiedError(), UNAVAILABLE, *compiler.answers]
    generation = await tiers.start_generation(request(), GRAMMAR, TENANT)
    assert generation.grammar is not None and generation.grammar["source"] == "compiled"
    assert len(compiler.calls) == 3


@pytest.mark.parametrize("tier", ["compiler", "replica"])
async def test_tries_are_bounded(tiers: Tiers, compiler: FakeCompiler, replica: FakeReplica, tier: str) -> None:
    if tier == "compiler":
        compiler.answers = [UNAVAILABLE]
    else:
        replica.faults = [(0, UNAVAILABLE)] * 100
    with pytest.raises(ActorUnavailableError):
        await tiers.start_generation(request(), GRAMMAR, TENANT)
    assert len(compiler.calls if tier == "compiler" else replica.requests) == MAX_TRIES


@pytest.mark.parametrize("tier", ["compiler", "replica"])
async def test_a_full_tier_is_a_429(tiers: Tiers, compiler: FakeCompiler, replica: FakeReplica, tier: str) -> None:
    full = BackPressureError(10, 10, 429, 2.0)
    if tier == "compiler":
        compiler.answers = [full]
    else:
        replica.faults = [(0, full)]
    with pytest.raises(ApiError) as caught:
        await tiers.start_generation(request(), GRAMMAR, TENANT)
    assert caught.value.status == 429 and caught.value.headers == {"Retry-After": "2"}


@pytest.mark.parametrize("waiting", ["compiler", "replica"])
async def test_a_client_that_leaves_before_the_answer_stops_the_work(
    tiers: Tiers, compiler: FakeCompiler, replica: FakeReplica, waiting: str
) -> None:
    (compiler if waiting == "compiler" else replica).release.clear()
    start = asyncio.create_task(tiers.start_generation(request(), GRAMMAR, TENANT))
    await asyncio.gather(compiler.started.wait(), replica.started.wait())
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    await settled()
    assert replica.running == 0


async def test_a_client_that_leaves_in_the_middle_stops_the_work(tiers: Tiers, replica: FakeReplica) -> None:
    generation = await tiers.start_generation(request(), GRAMMAR, TENANT)
    await generation.aclose()
    await settled()
    assert replica.running == 0
