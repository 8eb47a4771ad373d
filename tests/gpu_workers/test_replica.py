"""The deployment class without Ray: a saved model, real grammars, a compiler behind a handle that may fail."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import re
import threading
from collections import Counter as Counts
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any, cast

import jsonschema
import pytest
import ray.serve.metrics
from ray.exceptions import RayActorError
from ray.serve import Deployment

import gpu_workers
from gpu_workers.replica import ModelReplica
from gpu_workers.request import GrammarReference
from grammar_workers import GrammarError, compile_grammar, grammar_key
from grammar_workers.vocabulary.vocabulary import load_vocabulary
from tests.trace_collector import Collector

MODEL = str(Path(__file__).resolve().parents[2] / "models" / "turnstile-tiny")
COMPILATIONS = "turnstile_grammar_compilations"
STORED = {"turnstile_grammar_store_entries", "turnstile_grammar_store_bytes"}
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
SCHEMAS: list[dict[str, Any]] = [
    PERSON,
    {"type": "array", "items": {"enum": ["red", "green", 3]}, "minItems": 2, "maxItems": 5},
    {
        "type": "object",
        "properties": {
            "ok": {"type": "boolean"},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 3}, "maxItems": 2},
        },
        "required": ["ok"],
        "additionalProperties": False,
    },
    {"anyOf": [{"type": "null"}, {"type": "number", "minimum": 1, "maximum": 9}]},
]


class CompilerHandle:
    """Compiles where it stands. `failures` calls die like a killed replica first."""

    def __init__(self, failures: int = 0) -> None:
        self.vocabulary = load_vocabulary(MODEL)
        self.failures = failures
        self.sessions: list[str] = []
        self.get = self
        self.info = self

    def options(self, *, session_id: str) -> CompilerHandle:
        self.sessions.append(session_id)
        return self

    async def remote(
        self, key: str = "", specification: Any = None, tenant: str = "", anew: bool = False
    ) -> bytes | dict[str, Any]:
        if not key:
            return {"options": {}}
        self.failures -= 1
        if self.failures >= 0:
            raise RayActorError
        try:
            return (await asyncio.to_thread(compile_grammar, specification, self.vocabulary)).to_bytes()
        except GrammarError as error:
            return {"status": "refused", "error": error.to_dict()}


@contextlib.contextmanager
def running_replica(handle: CompilerHandle | None = None) -> Iterator[Any]:
    replica = cast(Deployment, ModelReplica).func_or_class(
        MODEL, "memory://", handle or CompilerHandle(), engine={"max_num_seqs": 8, "threads": 1, "max_model_len": 512}
    )
    yield replica
    replica.__del__()


@pytest.fixture(scope="module")
def replica() -> Iterator[Any]:
    with running_replica() as one:
        yield one


def body(schema: dict[str, Any] | None = None, **settings: Any) -> dict[str, Any]:
    specification = {"type": "json_schema", "schema": schema}
    key = "" if schema is None else grammar_key(specification, load_vocabulary(MODEL).fingerprint)
    return {
        "request_id": "r",
        "prompt": None,
        "messages": [{"role": "user", "content": "Extract the person: Alice Moore is 34 years old."}],
        "sampling": {
            "max_tokens": 200,
            "temperature": 1.0,
            "top_p": 1.0,
            "top_k": 0,
            "seed": 0,
            "stop": [],
            **settings,
        },
        "choice_index": 0,
        "grammar": None if schema is None else {"key": key, "specification": specification},
        "emitted_token_ids": [],
    }


async def answer(replica: Any, request: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The whole text and the last item, which must be plain data."""
    items = [item async for item in replica.generate(request)]
    assert json.loads(json.dumps(items)) == items
    assert all("error" not in item and item["finish_reason"] is None for item in items[:-1])
    return "".join(item.get("text", "") for item in items), items[-1]


def test_a_generation_and_its_parts_are_spans_of_the_trace(replica: Any, collector: Collector) -> None:
    for client, request in {"1": body(SCHEMAS[3]), "2": body()}.items():
        asyncio.run(answer(replica, {**request, "traceparent": f"00-{client * 32}-{'a' * 16}-01"}))
    names = {"queue", "prefill", "load", "first mask", "decode"}
    collector.wait_for("2" * 32, len(names))
    spans = {span.name: span for span in collector.spans if span.trace == "1" * 32}
    assert spans.keys() == {"generate", *names}
    whole = spans["generate"]
    assert (whole.parent, whole.tier, whole.attributes["turnstile.finish_reason"]) == ("a" * 16, "replica", "stop")
    for name in names:
        assert spans[name].parent == whole.id
        assert whole.began <= spans[name].began <= spans[name].ended <= whole.ended
    assert spans["queue"].ended == spans["prefill"].began
    assert spans["first mask"].began >= max(spans["prefill"].ended, spans["load"].ended)
    assert spans["first mask"].ended == spans["decode"].began
    free = {span.name for span in collector.spans if span.trace == "2" * 32}
    assert free == {"generate", *names} - {"load"}


@contextlib.contextmanager
def held_up(replica: Any) -> Iterator[None]:
    """A generation that begins in the block does not end in it, however fast the engine is beside a slow reader."""
    runner, may_go_on = replica._engine.step_loop._runner, threading.Event()
    forward, passes = runner.forward, itertools.count()

    def waiting(*arguments: Any) -> Any:
        if next(passes) >= 10:
            assert may_go_on.wait(200)
        return forward(*arguments)

    runner.forward = waiting
    try:
        yield
    finally:
        del runner.forward
        may_go_on.set()


def test_a_generation_that_is_cancelled_is_an_error_of_its_span(replica: Any, collector: Collector) -> None:
    async def leave() -> None:
        with held_up(replica):
            outputs = replica.generate({**body(max_tokens=400), "traceparent": f"00-{'4' * 32}-{'a' * 16}-01"})
            await anext(outputs)
            await outputs.aclose()

    asyncio.run(leave())
    collector.wait_for("4" * 32, 1)
    assert [(span.name, span.is_error) for span in collector.spans] == [("generate", True)]


def test_schemas_in_valid_json_out(replica: Any) -> None:
    async def scenario() -> None:
        jobs = [(schema, seed) for schema in SCHEMAS for seed in range(12)]
        answers = await asyncio.gather(*(answer(replica, body(schema, seed=seed)) for schema, seed in jobs))
        finished = 0
        for (schema, _), (text, last) in zip(jobs, answers, strict=True):
            assert last["finish_reason"] in ("stop", "length")
            if last["finish_reason"] == "stop":
                jsonschema.validate(json.loads(text), schema)
                finished += 1
        assert finished > len(jobs) / 2

    asyncio.run(scenario())


def test_a_resumed_structured_output_is_the_same(replica: Any) -> None:
    async def scenario() -> None:
        items = [item async for item in replica.generate(body(PERSON, seed=5))]
        tokens = [token for item in items for token in item["token_ids"]]
        for cut in range(0, len(tokens), 3):
            request = {**body(PERSON, seed=5), "emitted_token_ids": tokens[:cut]}
            rest = [token async for item in replica.generate(request) for token in item["token_ids"]]
            assert tokens[:cut] + rest == tokens

    asyncio.run(scenario())


def continuing(text: str, schema: dict[str, Any] | None, **settings: Any) -> dict[str, Any]:
    """A request whose last message is the beginning of an answer."""
    request = body(schema, **settings)
    request["messages"] = [*request["messages"], {"role": "assistant", "content": text}]
    return {**request, "continue_final_message": True}


BEGINNINGS = ["", '{"name"', '{"name": "Al', '{"name": "é', '{"name": "Alice", "age": 3', '{"name": "A", "age": 34}']


@pytest.mark.parametrize("budget", [False, True])
@pytest.mark.parametrize("begun", BEGINNINGS)
def test_a_constraint_holds_for_the_text_that_is_continued(replica: Any, begun: str, budget: bool) -> None:
    """And a resumed output goes on in it."""

    async def scenario() -> None:
        request = continuing(begun, PERSON, seed=3, finish_within_budget=budget, max_tokens=40)
        text, last = await answer(replica, request)
        assert last["finish_reason"] == "stop" or not budget
        if last["finish_reason"] == "stop":
            jsonschema.validate(json.loads(begun + text), PERSON)
        items = [item async for item in replica.generate(request)]
        tokens = [token for item in items for token in item["token_ids"]]
        rest = [item async for item in replica.generate({**request, "emitted_token_ids": tokens[:2]})]
        assert tokens[:2] + [token for item in rest for token in item["token_ids"]] == tokens

    asyncio.run(scenario())


@pytest.mark.parametrize("begun", ['{"age": 3, "city"', "Sure: ", '{"name": "A", "age": 34} '])
def test_a_beginning_that_no_output_has_is_refused(replica: Any, begun: str) -> None:
    (refused,) = asyncio.run(_items(replica, continuing(begun, PERSON)))
    error = refused["error"]
    assert (error["status"], error["code"], error["param"]) == (400, "invalid_prefix", "messages")


async def _items(replica: Any, request: dict[str, Any]) -> list[dict[str, Any]]:
    return [item async for item in replica.generate(request)]


def test_a_message_is_continued_in_the_prompt(replica: Any) -> None:
    async def scenario() -> int:
        _, closed = await answer(replica, body(max_tokens=1))
        _, opened = await answer(replica, continuing("Alice", None, max_tokens=1))
        expected = replica._engine.tokenizer("Alice", add_special_tokens=False)["input_ids"]
        return opened["prompt_tokens"] - closed["prompt_tokens"] - len(expected)

    assert asyncio.run(scenario()) == 0


def test_info_names_what_callers_need(replica: Any) -> None:
    info = asyncio.run(replica.info())
    assert info["max_model_len"] == 512
    assert "add_generation_prompt" in info["chat_template"]


@pytest.mark.parametrize(("wanted", "text"), [(False, "7"), (True, "<|user|>7<|user|>")])
def test_special_tokens_are_text_where_that_is_wanted(replica: Any, wanted: bool, text: str) -> None:
    tag = {"type": "tag", "begin": "<|user|>", "content": {"type": "const_string", "value": "7"}, "end": "<|user|>"}
    specification = {"type": "structural_tag", "format": tag}
    key = grammar_key(specification, load_vocabulary(MODEL).fingerprint)
    request = {**body(), "grammar": {"key": key, "specification": specification}, "special_token_text": wanted}
    generated, last = asyncio.run(answer(replica, request))
    assert (generated, last["finish_reason"]) == (text, "stop")


def test_refusals_are_items_not_exceptions(replica: Any) -> None:
    async def scenario() -> None:
        unsupported = {"type": "string", "pattern": r"(a)\1"}
        _, refused = await answer(replica, body(unsupported))
        assert refused["error"]["status"] == 400
        assert refused["error"]["code"] == "unsupported_grammar"
        assert refused["error"]["param"] == "/pattern"
        _, malformed = await answer(replica, {**body(), "prompts": "x"})
        assert malformed["error"]["status"] == 400 and malformed["error"]["param"] == "prompts"
        _, both = await answer(replica, {**body(), "prompt": "x"})
        assert both["error"]["status"] == 400
        _, long = await answer(replica, {**body(), "messages": None, "prompt": "x " * 2000})
        assert long["error"]["code"] == "context_length_exceeded" and long["error"]["param"] == "prompt"

    asyncio.run(scenario())


def test_a_compiler_that_dies_is_asked_again() -> None:
    handle = CompilerHandle(failures=3)
    request = body(PERSON)
    with running_replica(handle) as one:
        text, last = asyncio.run(answer(one, request))
        assert last["finish_reason"] in ("stop", "length") and text
        asyncio.run(one.check_health())
    assert handle.sessions == [request["grammar"]["key"]]


def test_grammars_known_beforehand_are_in_memory_before_the_first_request() -> None:
    handle = CompilerHandle()
    specification = {"type": "json_schema", "schema": PERSON}
    key = body(PERSON)["grammar"]["key"]
    with running_replica(handle) as one:
        asyncio.run(one.reconfigure({"precompile": [specification]}))
        assert handle.sessions == [key]
        fsm = asyncio.run(one._grammars.fetch(GrammarReference(key=key, specification=None)))
        assert fsm.prefetch_masks(0) > 10 and handle.sessions == [key]


def test_leaving_early_frees_the_slot(replica: Any) -> None:
    async def scenario() -> None:
        async with contextlib.aclosing(cast(AsyncGenerator[Any, None], replica.generate(body()))) as items:
            await anext(items)
        async with asyncio.timeout(200):
            while replica._engine.pool.free_slots < 8:
                await asyncio.sleep(0.005)
        assert not replica._engine.scheduler.running

    asyncio.run(scenario())


def test_metrics_know_idleness_and_every_end(replica: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: Counts[str] = Counts()
    gauges: dict[str, float] = {}

    def count(metric: Any, value: float, tags: dict[str, str] | None = None) -> None:
        counted["/".join((tags or {"": metric.info["name"]}).values())] += int(value)

    def show(metric: Any, value: float, tags: dict[str, str] | None = None) -> None:
        gauges[metric.info["name"]] = value

    monkeypatch.setattr(ray.serve.metrics.Counter, "inc", count)
    monkeypatch.setattr(ray.serve.metrics.Gauge, "set", show)
    observed: list[tuple[str, float]] = []
    monkeypatch.setattr(
        ray.serve.metrics.Histogram, "observe", lambda metric, value: observed.append((metric.info["name"], value))
    )

    async def scenario() -> None:
        replica._engine.rejection_masses.append(0.25)
        await replica.check_health()
        assert ("turnstile_rejection_mass", 0.25) in observed and not replica._engine.rejection_masses
        counted.clear()
        await answer(replica, body(max_tokens=3))
        with held_up(replica):
            async with contextlib.aclosing(cast(AsyncGenerator[Any, None], replica.generate(body()))) as items:
                await anext(items)
                await replica.check_health()
                assert gauges["turnstile_running_sequences"] == 1
        async with asyncio.timeout(200):
            while replica._engine.scheduler.running:
                await asyncio.sleep(0.005)
        await replica.check_health()

    asyncio.run(scenario())
    assert set(gauges) - STORED == {
        "turnstile_running_sequences",
        "turnstile_waiting_sequences",
        COMPILATIONS,
    }
    # In this test the compiler is in the replica's process.
    assert not any(value for name, value in gauges.items() if name not in {*STORED, COMPILATIONS})
    assert counted["length"] == counted["cancelled"] == 1
    assert counted["sampled"] + counted["forced"] >= 4


def test_a_compilation_in_the_process_of_a_replica_shows(replica: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The metric counts what happens: answers under grammars add nothing to it, whoever compiles here does."""
    shown: list[float] = []

    def show(metric: Any, value: float, tags: dict[str, str] | None = None) -> None:
        if metric.info["name"] == COMPILATIONS:
            shown.append(value)

    monkeypatch.setattr(ray.serve.metrics.Gauge, "set", show)
    asyncio.run(replica.check_health())
    compile_grammar({"type": "regex", "pattern": "a"}, replica._engine.vocabulary)
    asyncio.run(replica.check_health())
    assert shown[1] == shown[0] + 1


def test_nothing_here_compiles() -> None:
    """A model replica never compiles: nobody in this package imports what does."""
    paths = list(Path(gpu_workers.__path__[0]).rglob("*.py"))
    assert len(paths) > 60
    for path in paths:
        assert not re.search(r"import [^\n]*\bcompile_grammar", path.read_text()), path


def test_tokens_of_a_chat_are_the_prompt_of_its_generation(replica: Any) -> None:
    settings = {"add_special_tokens": False, "add_generation_prompt": True, "continue_final_message": False}
    prompt = {"prompt": None, "messages": body()["messages"], "return_token_strs": False, **settings}

    async def scenario() -> None:
        tokenized = await replica.tokenize(prompt)
        _, last = await answer(replica, body(max_tokens=1))
        assert tokenized["count"] == last["prompt_tokens"] and tokenized["max_model_len"] == 512
        assert tokenized["token_strs"] is None
        assert "Alice Moore is 34" in (await replica.detokenize(tokenized["tokens"]))["prompt"]

    asyncio.run(scenario())
