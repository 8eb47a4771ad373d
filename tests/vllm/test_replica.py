"""A model replica on vLLM beside one on the native engine, in this process: the same requests, the same events."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import jsonschema
import pytest
from ray.serve import Deployment

from deployments.vllm.replica import VllmReplica
from gpu_workers.replica import ModelReplica
from models.variants import adapter
from tests.gpu_workers.test_replica import BEGINNINGS, MODEL, PERSON, SCHEMAS, CompilerHandle, body, continuing
from tests.vllm.exactness import differences, requests

pytestmark = pytest.mark.timeout(900)  # the first start on a machine compiles kernels

ENGINE_ARGS = {
    "dtype": "float32",
    "max_model_len": 512,
    "max_num_seqs": 16,
    "enforce_eager": True,
    "kv_cache_memory_bytes": 1 << 28,
    "enable_lora": True,
    "max_lora_rank": 8,
}
NATIVE = {"max_num_seqs": 16, "threads": 1, "max_model_len": 512, "dtype": "float32"}


class Replicas:
    """Both on one event loop, which vLLM's client belongs to."""

    def __init__(self, folder: Path) -> None:
        self.loop = asyncio.new_event_loop()
        self.compiler = CompilerHandle()
        self._store = f"file://{folder}/store"
        self.merged = folder / "merged"
        adapter(folder / "adapter", self.merged)
        self.native = self.native_of(MODEL)
        self.vllm: Any = self.run(self._start(folder / "adapter"))

    def native_of(self, model: str) -> Any:
        return cast(Deployment, ModelReplica).func_or_class(model, self._store, self.compiler, engine=NATIVE)

    def run(self, coroutine: Any) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(coroutine, 240))

    def close(self) -> None:
        self.vllm.__del__()
        self.native.__del__()

    async def _start(self, tuned: Path) -> Any:
        engine = {"kind": "vllm", "engine_args": ENGINE_ARGS, "lora_adapters": {"tuned": str(tuned)}}
        replica: Any = cast(Deployment, VllmReplica).func_or_class(MODEL, self._store, self.compiler, engine=engine)
        await replica.reconfigure({"precompile": []})
        return replica


@pytest.fixture(scope="module")
def replicas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replicas]:
    both = Replicas(tmp_path_factory.mktemp("store"))
    yield both
    both.close()


async def items(replica: Any, request: dict[str, Any]) -> list[dict[str, Any]]:
    """Everything that a replica yields, which must be plain data with one end."""
    found = [item async for item in replica.generate(request)]
    assert json.loads(json.dumps(found)) == found
    assert all("error" not in item and item["finish_reason"] is None for item in found[:-1])
    return found


def tokens(found: list[dict[str, Any]]) -> list[int]:
    return [token for item in found for token in item.get("token_ids", ())]


def text(found: list[dict[str, Any]]) -> str:
    return "".join(item.get("text", "") for item in found)


def test_both_engines_draw_the_same_tokens(replicas: Replicas) -> None:
    """Fifty prompts and schemas at temperature 0; each difference there is must be one of rounding."""
    found = replicas.run(differences(replicas.native, replicas.vllm, requests(50)))
    assert [one for one in found if not one.is_rounding] == []
    assert len(found) <= 2, found


def test_an_adapter_says_what_the_model_says_into_which_it_is_merged(replicas: Replicas) -> None:
    merged = replicas.native_of(str(replicas.merged))
    try:
        asked = requests(16)
        tuned = [{**request, "adapter": "tuned"} for request in asked]
        found = replicas.run(differences(merged, replicas.vllm, asked, tuned))
        assert [one for one in found if not one.is_rounding] == []
        assert len(replicas.run(differences(replicas.native, replicas.vllm, asked, tuned))) >= 3
    finally:
        merged.__del__()
    (refused,) = replicas.run(items(replicas.vllm, {**body(), "adapter": "another"}))
    assert (refused["error"]["status"], refused["error"]["code"]) == (404, "model_not_found")
    (refused,) = replicas.run(items(replicas.native, {**body(), "adapter": "tuned"}))
    assert (refused["error"]["status"], refused["error"]["code"]) == (404, "model_not_found")


def test_schemas_in_valid_json_out(replicas: Replicas) -> None:
    async def scenario() -> int:
        jobs = [(schema, seed) for schema in SCHEMAS for seed in range(8)]
        answers = await asyncio.gather(*(items(replicas.vllm, body(schema, seed=seed)) for schema, seed in jobs))
        finished = 0
        for (schema, _), answer in zip(jobs, answers, strict=True):
            if answer[-1]["finish_reason"] == "stop":
                jsonschema.validate(json.loads(text(answer)), schema)
                finished += 1
        return finished

    assert replicas.run(scenario()) > 16


def test_a_resumed_output_repeats_and_loses_nothing(replicas: Replicas) -> None:
    """From every third token on; under a grammar, freely, with stop strings and with a budget."""

    async def scenario(request: dict[str, Any]) -> None:
        whole = await items(replicas.vllm, request)
        ids = tokens(whole)
        for cut in range(0, len(ids) + 1, 3):
            rest = await items(replicas.vllm, {**request, "emitted_token_ids": ids[:cut]})
            assert ids[:cut] + tokens(rest) == ids, cut
            assert text(whole).endswith(text(rest)) and rest[-1]["finish_reason"] == whole[-1]["finish_reason"]

    for request in (
        body(PERSON, temperature=0.0),
        body(temperature=0.0, max_tokens=40),
        body(temperature=0.0, max_tokens=40, stop=["Paris", "34"]),
        body(SCHEMAS[1], temperature=0.0, max_tokens=24, finish_within_budget=True, min_tokens=4),
        body(temperature=0.0, max_tokens=20, ignore_eos=True),
    ):
        replicas.run(scenario(request))


@pytest.mark.parametrize("begun", BEGINNINGS)
def test_a_text_is_continued_as_the_native_engine_does(replicas: Replicas, begun: str) -> None:
    for settings in ({}, {"finish_within_budget": True, "max_tokens": 24}, {"min_tokens": 5}):
        request = continuing(begun, PERSON, **{"temperature": 0.0, **settings})
        ours, theirs = (replicas.run(items(one, request)) for one in (replicas.native, replicas.vllm))
        assert text(ours) == text(theirs) and ours[-1]["finish_reason"] == theirs[-1]["finish_reason"]
        jsonschema.validate(json.loads(begun + text(theirs)), PERSON)
        rest = replicas.run(items(replicas.vllm, {**request, "emitted_token_ids": tokens(theirs)[:2]}))
        assert tokens(theirs)[:2] + tokens(rest) == tokens(theirs)


@pytest.mark.parametrize(
    "settings",
    [
        {"stop": ["Moore"]},
        {"stop": ["e", "Alice M"], "min_tokens": 6},
        {"stop_token_ids": [300, 301, 302, 34, 35]},
        {"ignore_eos": True, "max_tokens": 60},
        {"min_tokens": 40, "max_tokens": 44},
        {"repetition_penalty": 1.3},
        {"presence_penalty": 1.0, "frequency_penalty": 0.5},
        {"logit_bias": {"300": 5.0, "301": -100.0}},
        {"max_tokens": 1},
        {"max_tokens": 16, "finish_within_budget": True},
    ],
)
@pytest.mark.parametrize("schema", [None, PERSON])
def test_settings_mean_the_same(replicas: Replicas, settings: dict[str, Any], schema: dict[str, Any] | None) -> None:
    if schema is None:
        settings = {name: value for name, value in settings.items() if name != "finish_within_budget"}
    request = body(schema, **{"temperature": 0.0, "max_tokens": 60, **settings})
    ours, theirs = replicas.run(items(replicas.native, request)), replicas.run(items(replicas.vllm, request))
    assert text(ours) == text(theirs)
    assert ours[-1]["finish_reason"] == theirs[-1]["finish_reason"]


def test_seeds_repeat_and_choices_differ(replicas: Replicas) -> None:
    async def drawn(**fields: Any) -> list[int]:
        return tokens(await items(replicas.vllm, {**body(temperature=1.0, max_tokens=20, seed=7), **fields}))

    async def scenario() -> None:
        first, again, other = await asyncio.gather(drawn(), drawn(), drawn(choice_index=1))
        assert first == again != other

    replicas.run(scenario())


def test_log_probabilities_are_those_of_the_native_engine(replicas: Replicas) -> None:
    request = body(PERSON, temperature=0.0, max_tokens=12, logprobs=3)
    ours, theirs = (
        [report for item in replicas.run(items(one, request)) for report in item.get("reports", ())]
        for one in (replicas.native, replicas.vllm)
    )
    assert len(ours) == len(theirs) == 12
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.keys() == other.keys()
        assert [one["token_id"] for one in mine["top"]] == [one["token_id"] for one in other["top"]]
        assert [one["bytes"] for one in mine["top"]] == [one["bytes"] for one in other["top"]]
        pairs = zip((mine, *mine["top"]), (other, *other["top"]), strict=True)
        assert all(abs(a["logprob"] - b["logprob"]) < 1e-2 for a, b in pairs)


@pytest.mark.parametrize("wanted", [0, 2])
def test_a_drawn_token_that_is_unlikely_is_not_among_the_likely(replicas: Replicas, wanted: int) -> None:
    request = body(temperature=2.0, max_tokens=40, logprobs=wanted, ignore_eos=True, seed=3)
    reports = [report for item in replicas.run(items(replicas.vllm, request)) for report in item.get("reports", ())]
    assert len(reports) == 40 and all(len(report["top"]) == wanted for report in reports)
    ranked = [[choice["token_id"] for choice in report["top"]] for report in reports]
    assert any(report["token_id"] not in top for report, top in zip(reports, ranked, strict=True))


def test_what_is_over_already_ends_at_once(replicas: Replicas) -> None:
    whole = tokens(replicas.run(items(replicas.vllm, body(PERSON, temperature=0.0))))
    for request, reason in (
        ({**body(temperature=0.0, max_tokens=4), "emitted_token_ids": [30] * 4}, "length"),
        ({**body(temperature=0.0, max_tokens=4), "emitted_token_ids": [30] * 9}, "length"),
        ({**body(PERSON, temperature=0.0), "emitted_token_ids": whole}, "stop"),
    ):
        found = replicas.run(items(replicas.vllm, request))
        assert tokens(found) == [] and found[-1]["finish_reason"] == reason


@pytest.mark.parametrize(
    ("request_", "code", "param"),
    [
        (body(diagnostics=True), "unsupported_by_engine", "diagnostics"),
        (body(PERSON, raw_logprobs=True, logprobs=1), "unsupported_by_engine", "raw_logprobs"),
        (body(banned_words={"words": ["x"]}), "unsupported_by_engine", "banned_words"),
        (body(stop_token_ids=[99_999]), "invalid_token_id", "stop_token_ids"),
        (body(logit_bias={"-1": 1.0}), "invalid_token_id", "logit_bias"),
        (body(logprobs=200), "invalid_value", "logprobs"),
        (body(temperature=50.0), "invalid_value", "temperature"),
        (body({"type": "string", "pattern": r"(a)\1"}), "unsupported_grammar", "/pattern"),
        (body(PERSON, max_tokens=3, finish_within_budget=True), "budget_too_small", "max_tokens"),
        ({**body(), "messages": None, "prompt": "x " * 2000}, "context_length_exceeded", "prompt"),
        ({**body(), "messages": None, "prompt": []}, "invalid_prompt", "prompt"),
        ({**body(PERSON), "emitted_token_ids": [0, 0]}, "invalid_resume", None),
        (continuing("Sure: ", PERSON), "invalid_prefix", "messages"),
        ({**body(), "emitted_token_ids": [99_999]}, "invalid_prompt", "messages"),
        ({**body(), "emitted_token_ids": [-1]}, "invalid_prompt", "messages"),
        ({**body(), "timeout_s": 1e-6}, "deadline_exceeded", "timeout_s"),
        ({**body(), "prompts": "x"}, "invalid_request", "prompts"),
    ],
)
def test_refusals_are_items_that_name_the_field(
    replicas: Replicas, request_: dict[str, Any], code: str, param: str | None
) -> None:
    (only,) = replicas.run(items(replicas.vllm, request_))
    assert only["error"]["code"] == code and only["error"]["param"] == param
    assert 400 <= only["error"]["status"] < 500


def test_leaving_early_ends_the_work(replicas: Replicas) -> None:
    engine = replicas.vllm._engine

    async def leave() -> None:
        async with contextlib.aclosing(replicas.vllm.generate(body(ignore_eos=True, max_tokens=400))) as found:
            await anext(found)

    async def scenario() -> None:
        before = engine.statistics.ended["cancelled"]
        await asyncio.gather(*(leave() for _ in range(8)))
        assert engine.statistics.ended["cancelled"] == before + 8
        assert engine.running == engine.waiting == 0
        # vLLM has forgotten them, too: it goes on with nothing.
        assert not engine._llm.output_processor.has_unfinished_requests()
        steps = engine.statistics.steps
        await asyncio.sleep(1)
        assert engine.statistics.steps <= steps + 2

    replicas.run(scenario())


def test_an_artifact_that_made_room_for_others_is_stored_again(replicas: Replicas, tmp_path: Path) -> None:
    """The replica still has its automaton; the EngineCore has never seen it."""
    schema = {"enum": ["lost and found", 7]}
    request = body(schema, temperature=0.0)
    key = request["grammar"]["key"]

    async def scenario() -> None:
        from gpu_workers.request import GrammarReference

        await replicas.vllm._grammars.fetch(GrammarReference.model_validate(request["grammar"]))
        replicas.vllm._grammars.store.discard(key)
        found = await items(replicas.vllm, request)
        assert json.loads(text(found)) in schema["enum"]
        assert replicas.vllm._grammars.store.get(key) is not None

    replicas.run(scenario())


def test_nothing_compiles_and_the_engine_is_healthy(replicas: Replicas) -> None:
    async def scenario() -> None:
        info = await replicas.vllm.info([{}])
        assert info == await replicas.native.info([{}])
        await replicas.vllm.check_health()

    replicas.run(scenario())
