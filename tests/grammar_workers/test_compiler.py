"""The deployment class of the grammar tier, without a cluster: its processes and its store are real."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections import Counter as Counts
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import ray.serve.metrics
import redis
from ray.serve.exceptions import BackPressureError

from grammar_workers import TokenFSM, grammar_key
from grammar_workers.artifacts import artifact
from grammar_workers.artifacts.store.redis_tier import PREFIX
from grammar_workers.errors import UnsatisfiableError
from grammar_workers.service import autoscaling, service
from grammar_workers.service import deployment as compiler
from grammar_workers.service.autoscaling import COMPILATION_BACKLOG, HELD_BACK
from grammar_workers.service.deployment import GrammarCompiler
from grammar_workers.service.job import job
from grammar_workers.service.pool import AbandonedError, CompileFailedError, CompilePool
from grammar_workers.vocabulary.vocabulary import load_vocabulary
from tests.grammar_workers import compile_jobs
from tests.trace_collector import Collector

MODEL = str(Path(__file__).parents[2] / "models" / "turnstile-tiny")
COMPILATIONS = "turnstile_grammar_compilations"
STORE_ENTRIES = "turnstile_grammar_store_entries"


@contextmanager
def running(store_url: str, **settings: Any) -> Iterator[GrammarCompiler]:
    deployed = GrammarCompiler("no model", store_url, **settings)
    try:
        yield deployed
    finally:
        deployed.__del__()


@pytest.fixture(scope="module", autouse=True)
def fake_compiler() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "LOAD_COMPILER", "tests.grammar_workers.compile_jobs:load")
        yield


@pytest.fixture(scope="module")
def shared(fake_compiler: None) -> Iterator[GrammarCompiler]:
    """One process, nothing stored outside."""
    with running("memory://", compile_timeout_s=600, compile_cpu_s=600, queue_timeout_s=600) as deployed:
        yield deployed


@pytest.fixture(autouse=True)
def slices_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """None is over before its test says so: on a busy machine whatever runs may take a second."""
    for name in ("SLICE_S", "LONGEST_SLICE_S"):
        monkeypatch.setattr(f"grammar_workers.service.pool.{name}", 1e9)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Gets a line for each compilation whose specification names it."""
    (tmp_path / "log").touch()
    return tmp_path / "log"


def new_key() -> str:
    return secrets.token_hex(32)


def compilations(log: Path) -> int:
    return len(log.read_text().split())


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(200):
        while not condition():
            await asyncio.sleep(0.01)


def test_compile_then_known(shared: GrammarCompiler, log: Path) -> None:
    key, specification = new_key(), {"do": "nothing", "log": str(log)}
    first = asyncio.run(shared.compile(key, specification))
    second = asyncio.run(shared.compile(key, specification))
    assert first.pop("seconds") > 0 and second.pop("seconds") > 0
    details = {"owner": "", "compile_seconds": 0.5, "automaton_states": 7, "notes": ["a note"], "unenforced": []}
    size = len(compile_jobs.behave(key, {"do": "nothing"}))
    assert first == {"key": key, "status": "ready", "source": "compiled", "artifact_bytes": size, **details}
    assert second == {**first, "source": "process"}
    assert asyncio.run(shared.get(key, specification)) == compile_jobs.behave(key, {"do": "nothing"})
    assert compilations(log) == 1


def test_what_is_stored_and_cannot_be_loaded_is_forgotten_and_compiled_anew(shared: GrammarCompiler, log: Path) -> None:
    key, specification = new_key(), {"do": "nothing", "log": str(log)}
    asyncio.run(shared.compile(key, specification))
    assert asyncio.run(shared.get(key, specification, "", True)) == compile_jobs.behave(key, {"do": "nothing"})
    assert compilations(log) == 2
    assert asyncio.run(shared.get(key, None, "", True)) == {"key": key, "status": "unknown"}


def test_a_small_artifact_comes_with_the_answer_where_that_is_wanted(
    shared: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, specification = new_key(), {"do": "nothing"}
    data = compile_jobs.behave(key, specification)
    monkeypatch.setattr(compiler, "MOST_SENT_ALONG", len(data))
    assert asyncio.run(shared.compile(key, specification, with_artifact=True))["artifact"] == data
    monkeypatch.setattr(compiler, "MOST_SENT_ALONG", len(data) - 1)
    assert "artifact" not in asyncio.run(shared.compile(key, specification, with_artifact=True))


def test_a_compilation_and_its_parts_are_spans_of_the_trace(
    shared: GrammarCompiler, log: Path, collector: Collector
) -> None:
    key, specification = new_key(), {"do": "nothing", "log": str(log)}
    for client in ("1", "2"):
        asyncio.run(shared.compile(key, specification, "", f"00-{client * 32}-{'a' * 16}-01"))
    refused = shared.compile(new_key(), {"do": "refuse"}, "", f"00-{'3' * 32}-{'a' * 16}-01")
    assert asyncio.run(refused)["status"] == "refused"
    collector.wait_for("3" * 32, 1)
    spans = [span for span in collector.spans if span.trace == "1" * 32]
    parts = sorted((span for span in spans if span.name != "grammar"), key=lambda span: span.began)
    assert [span.name for span in parts] == ["lookup", "lock", "queue", "compile", "store"]
    (whole,) = (span for span in spans if span.name == "grammar")
    assert (whole.parent, whole.tier, whole.attributes["turnstile.source"]) == ("a" * 16, "compiler", "compiled")
    assert {span.parent for span in parts} == {whole.id} and parts[0].began >= whole.began
    assert all(before.ended <= after.began + 1e-6 for before, after in itertools.pairwise(parts))
    known = [span for span in collector.spans if span.trace == "2" * 32]
    assert {span.name for span in known} == {"grammar", "lookup"}
    assert [span.is_error for span in collector.spans if span.trace == "3" * 32] == [True]


def test_info(shared: GrammarCompiler) -> None:
    info = asyncio.run(shared.info())
    assert info["vocabulary_fingerprint"] == compile_jobs.FINGERPRINT
    assert info["options"]["whitespace"] == "compact"


def test_one_key_from_many_callers_compiles_once(shared: GrammarCompiler, log: Path) -> None:
    key, specification = new_key(), {"do": "sleep", "seconds": 0.2, "log": str(log)}

    async def call() -> list[Any]:
        calls = [shared.compile(key, specification) for _ in range(40)]
        return await asyncio.gather(*calls, *(shared.get(key, specification) for _ in range(24)))

    answers = asyncio.run(call())
    assert compilations(log) == 1
    assert {answer["status"] for answer in answers[:40]} == {"ready"}
    assert len(set(answers[40:])) == 1


def test_refusals_are_answers_and_remembered(shared: GrammarCompiler, log: Path) -> None:
    key, specification = new_key(), {"do": "refuse", "log": str(log)}
    answers = [asyncio.run(shared.compile(key, specification)) for _ in range(3)]
    answers.append(asyncio.run(shared.get(key, specification)))  # type: ignore[arg-type]
    error = {"code": "unsatisfiable_grammar", "message": "nothing matches", "pointer": "#/a", "position": 3}
    assert answers == [{"key": key, "status": "refused", "error": error}] * 4
    assert compilations(log) == 1


def test_a_fault_of_ours_is_raised_and_not_remembered(shared: GrammarCompiler, log: Path) -> None:
    key = new_key()
    for _ in range(2):
        with pytest.raises(CompileFailedError, match="a bug"):
            asyncio.run(shared.compile(key, {"do": "break", "log": str(log)}))
    assert compilations(log) == 2
    assert asyncio.run(shared.compile(key, {"do": "nothing"}))["status"] == "ready"


def test_a_caller_that_leaves_takes_nothing_from_the_others(shared: GrammarCompiler, tmp_path: Path, log: Path) -> None:
    key, gate = new_key(), tmp_path / "gate"
    specification = {"do": "wait", "until": str(gate), "log": str(log)}

    async def call() -> dict[str, Any]:
        leaving, staying = (asyncio.create_task(shared.compile(key, specification)) for _ in range(2))
        await eventually(lambda: compilations(log) == 1)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        gate.touch()
        return await staying

    assert asyncio.run(call())["source"] == "compiled"
    assert compilations(log) == 1


def test_a_compilation_nobody_waits_for_is_not_begun(shared: GrammarCompiler, tmp_path: Path, log: Path) -> None:
    gate, busy_log = tmp_path / "gate", tmp_path / "busy"
    busy_log.touch()
    abandoned = new_key()
    pool: CompilePool = shared._pool

    async def call() -> None:
        busy = {"do": "wait", "until": str(gate), "log": str(busy_log)}
        holding = asyncio.create_task(shared.compile(new_key(), busy))
        await eventually(lambda: compilations(busy_log) == 1)
        leaving = asyncio.create_task(shared.compile(abandoned, {"do": "nothing", "log": str(log)}))
        await eventually(lambda: pool.queued == 1)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        gate.touch()
        await holding
        await eventually(lambda: pool.backlog == 0)
        # The lead over other processes is given back first.
        async with asyncio.timeout(200):
            while (await shared.status(abandoned))["status"] != "unknown":
                await asyncio.sleep(0.01)
        assert compilations(log) == 0
        # Somebody who wants the same after all starts afresh.
        assert (await shared.compile(abandoned, {"do": "nothing"}))["source"] == "compiled"

    asyncio.run(call())


def test_who_comes_when_the_last_has_just_left_is_served(
    shared: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, stopped = new_key(), Future[bytes]()

    async def call() -> dict[str, Any]:
        with monkeypatch.context() as patch:
            patch.setattr(shared._pool, "submit", lambda *arguments: stopped)
            leaving = asyncio.create_task(shared.compile(key, {"do": "nothing"}))
            while key not in shared._service._productions or shared._service._productions[key].job is None:
                await asyncio.sleep(0.01)
        leaving.cancel()
        returning = asyncio.create_task(shared.compile(key, {"do": "nothing"}))
        await asyncio.sleep(0)
        stopped.set_exception(AbandonedError())
        return await returning

    assert asyncio.run(call())["status"] == "ready"


def test_a_slow_compilation_that_nobody_waits_for_ends_where_others_wait(
    shared: GrammarCompiler, tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SLICE_S", "LONGEST_SLICE_S"):
        monkeypatch.setattr(f"grammar_workers.service.pool.{name}", 0.05)
    gate, key = tmp_path / "gate", new_key()

    async def call() -> None:
        leaving = asyncio.create_task(shared.compile(key, {"do": "spin", "log": str(log)}))
        await eventually(lambda: compilations(log) == 1)
        wait = {"do": "wait", "until": str(gate), "log": str(log)}
        waiting = asyncio.create_task(shared.compile(new_key(), wait))
        await eventually(lambda: compilations(log) == 2)
        assert (await shared.compile(new_key(), {"do": "nothing"}))["status"] == "ready"
        assert shared._pool.queued == 1
        leaving.cancel()
        await eventually(lambda: shared._pool.queued == 0)
        gate.touch()
        assert (await waiting)["status"] == "ready"
        await eventually(lambda: key not in shared._service._productions)
        assert (await shared.status(key))["status"] == "unknown"

    asyncio.run(call())


def test_a_full_queue_pushes_back(shared: GrammarCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared._pool._lanes._quick, "capacity", 0)
    with pytest.raises(BackPressureError) as caught:
        asyncio.run(shared.compile(new_key(), {"do": "nothing"}))
    assert (caught.value.status_code, caught.value.retry_after_s) == (429, 1.0)


def test_nobody_waits_for_ever(shared: GrammarCompiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, log = tmp_path / "gate", tmp_path / "busy"
    log.touch()

    async def call() -> None:
        holding = asyncio.create_task(shared.compile(new_key(), {"do": "wait", "until": str(gate), "log": str(log)}))
        await eventually(lambda: compilations(log) == 1)
        monkeypatch.setattr(shared, "_queue_timeout_s", 0.05)
        with pytest.raises(BackPressureError) as caught:
            await shared.compile(new_key(), {"do": "nothing"})
        assert caught.value.status_code == 429
        assert await shared.record_autoscaling_stats() == {COMPILATION_BACKLOG: 1, HELD_BACK: 0}
        gate.touch()
        assert (await holding)["status"] == "ready"

    asyncio.run(call())


def test_a_tenants_flood_is_pushed_back_and_delays_nobody_else(shared: GrammarCompiler, tmp_path: Path) -> None:
    gate, log, order = tmp_path / "gate", tmp_path / "busy", tmp_path / "order"
    log.touch()
    flood = 30

    async def call() -> None:
        holding = asyncio.create_task(shared.compile(new_key(), {"do": "wait", "until": str(gate), "log": str(log)}))
        await eventually(lambda: compilations(log) == 1)

        async def compile_as(tenant: str) -> None:
            await shared.compile(new_key(), {"do": "nothing", "log": str(order), "line": tenant}, tenant)

        tasks = [asyncio.create_task(compile_as("flood")) for _ in range(flood)]
        await eventually(lambda: shared._pool.queued == flood)
        tasks.append(asyncio.create_task(compile_as("other")))
        await eventually(lambda: shared._pool.queued == flood + 1)
        gate.touch()
        await asyncio.gather(holding, *tasks)

    asyncio.run(call())
    assert "other" in order.read_text().split()[:3]


def test_a_key_alone_finds_what_is_known(shared: GrammarCompiler, log: Path) -> None:
    key, specification = new_key(), {"do": "sleep", "seconds": 0.2, "log": str(log)}

    async def call() -> list[Any]:
        assert await shared.compile(key, None) == {"key": key, "status": "unknown"}
        assert await shared.get(key, None) == {"key": key, "status": "unknown"}
        compiling = asyncio.create_task(shared.compile(key, specification))
        await eventually(lambda: compilations(log) == 1)
        return [await shared.compile(key, None), await compiling, await shared.compile(key, None)]

    answers = asyncio.run(call())
    assert [answer["status"] for answer in answers] == ["ready"] * 3
    assert compilations(log) == 1


def test_status_from_the_queue_to_the_end(shared: GrammarCompiler, tmp_path: Path, log: Path) -> None:
    gate = tmp_path / "gate"
    keys = [new_key() for _ in range(3)]

    async def statuses() -> list[str]:
        return [(await shared.status(key))["status"] for key in keys]

    async def call() -> None:
        assert await statuses() == ["unknown"] * 3
        wait = {"do": "wait", "until": str(gate), "log": str(log)}
        specifications = [wait, {"do": "nothing"}, {"do": "refuse"}]
        tasks = []
        for key, specification in zip(keys, specifications, strict=True):
            tasks.append(asyncio.create_task(shared.compile(key, specification, "someone")))
            await eventually(lambda: compilations(log) == 1)
        await eventually(lambda: shared._pool.queued == 2)
        assert await statuses() == ["compiling", "queued", "queued"]
        gate.touch()
        await asyncio.gather(*tasks)
        assert await statuses() == ["ready", "ready", "refused"]
        assert (await shared.status(keys[0]))["owner"] == "someone"
        assert (await shared.status(keys[2]))["error"]["pointer"] == "#/a"

    asyncio.run(call())


def test_a_key_is_its_tenants(shared: GrammarCompiler, log: Path) -> None:
    """Who has only seen it learns nothing by it, and generates nothing under it; who brings the specification may."""
    key, refused = new_key(), new_key()

    async def named(tenant: str) -> list[str]:
        used = await shared.compile(key, None, tenant, only_own=True)
        return [used["status"], (await shared.status(key, tenant, administrator=False))["status"]]

    async def call() -> None:
        await shared.compile(key, {"do": "nothing"}, "owner")
        await shared.compile(refused, {"do": "refuse"}, "owner")
        assert await named("owner") == ["ready", "ready"]
        assert await named("another") == ["unknown", "unknown"]
        assert (await shared.status(key, "another", administrator=True))["status"] == "ready"
        assert (await shared.compile(refused, None, "another", only_own=True))["status"] == "unknown"
        assert (await shared.discard(refused, "another", False))["status"] == "unknown"
        assert (await shared.status(refused))["status"] == "refused"
        assert (await shared.compile(key, {"do": "nothing"}, "another"))["status"] == "ready"
        assert await named("another") == ["ready", "ready"]
        assert (await shared.discard(key, "another", False))["status"] == "forbidden"
        assert (await shared.discard(refused, "owner", False))["status"] == "refused"
        assert (await shared.status(refused))["status"] == "unknown"
        # Another compiler, which nobody has brought anything, knows the owner of what is stored.
        shared._holders.clear()
        assert await named("owner") == ["ready", "ready"]
        assert await named("another") == ["unknown", "unknown"]

    asyncio.run(call())


def test_only_the_owner_and_administrators_discard(shared: GrammarCompiler) -> None:
    key = new_key()
    asyncio.run(shared.compile(key, {"do": "nothing"}, "owner"))
    assert asyncio.run(shared.discard(key, "another", False))["status"] == "forbidden"
    assert asyncio.run(shared.discard(key, "owner", False))["status"] == "ready"
    assert asyncio.run(shared.discard(key, "owner", False))["status"] == "unknown"
    asyncio.run(shared.compile(key, {"do": "nothing"}, "owner"))
    assert asyncio.run(shared.discard(key, "another", True))["status"] == "ready"
    assert asyncio.run(shared.status(key)) == {"key": key, "status": "unknown"}


def test_the_list_to_precompile_is_there_at_the_start_and_a_refusal_fails_it(tmp_path: Path) -> None:
    specification = {"type": "regex", "pattern": "a"}

    key = grammar_key(specification, compile_jobs.FINGERPRINT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "LOAD_COMPILER", "tests.grammar_workers.compile_jobs:load_obedient")
        with running(f"file://{tmp_path}", precompile=[specification]) as deployed:
            assert asyncio.run(deployed.status(key))["status"] == "ready"
        with pytest.raises(UnsatisfiableError), running("memory://", precompile=[{"type": "regex", "pattern": "["}]):
            pass


@pytest.mark.usefixtures("patient_redis")
@pytest.mark.parametrize("kind", ["file", "redis"])
def test_two_replicas_compile_once_and_find_each_others_work(
    kind: str, tmp_path: Path, log: Path, request: pytest.FixtureRequest
) -> None:
    def url(node: str) -> str:
        if kind == "file":
            return f"file://{tmp_path}"
        return f"{request.getfixturevalue('redis_url')}?file={tmp_path / node}"

    with running(url("a")) as first, running(url("b")) as second:
        keys = [new_key() for _ in range(4)]
        specification = {"do": "sleep", "seconds": 0.2, "log": str(log)}

        async def call() -> list[dict[str, Any]]:
            return await asyncio.gather(
                *(replica.compile(key, specification) for key in keys for replica in (first, second))
            )

        answers = asyncio.run(call())
        assert compilations(log) == len(keys)
        assert sorted(answer["source"] for answer in answers) == ["compiled"] * 4 + [kind] * 4
        assert all(answer["notes"] == ["a note"] for answer in answers)


@pytest.mark.usefixtures("patient_redis")
def test_rubbish_in_redis_is_compiled_over(redis_url: str, tmp_path: Path, log: Path) -> None:
    key, client = new_key(), redis.Redis.from_url(redis_url)
    client.set(PREFIX + key, artifact.pack(b"payload", key=key, fingerprint="another vocabulary"))
    with running(f"{redis_url}?file={tmp_path / 'a'}") as deployed:
        assert asyncio.run(deployed.compile(key, {"do": "nothing"}))["source"] == "compiled"
    artifact.verify(client.get(PREFIX + key), key=key, fingerprint=compile_jobs.FINGERPRINT)  # type: ignore[arg-type]


def test_limits_reach_the_processes_and_their_refusals_are_forgotten_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "REMEMBER_RESOURCE_REFUSAL_S", 0.0)
    key, submitted = new_key(), list[str]()
    with running("memory://", compile_timeout_s=0.5, compile_cpu_s=600) as deployed:
        submit = deployed._pool.submit
        deployed._pool.submit = lambda *arguments: submitted.append(arguments[0]) or submit(*arguments)
        for _ in range(2):
            answer = asyncio.run(deployed.compile(key, {"do": "spin"}))
            assert answer["status"] == "refused"
            assert answer["error"]["code"] == "grammar_limit_exceeded"
            assert "0.5 s" in answer["error"]["message"]
    assert submitted == [key] * 2


def test_metrics(shared: GrammarCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: Counts[tuple[Any, ...]] = Counts()
    shown: list[tuple[str, float]] = []

    def count(metric: Any, value: float = 1.0, tags: dict[str, str] | None = None) -> None:
        counted[metric.info["name"], *(tags or {}).values()] += int(value)

    def show(metric: Any, value: float, tags: dict[str, str] | None = None) -> None:
        shown.append((metric.info["name"], value))

    shared._metrics.publish()
    monkeypatch.setattr(ray.serve.metrics.Counter, "inc", count)
    monkeypatch.setattr(ray.serve.metrics.Gauge, "set", show)
    for key in (new_key(), new_key()):
        for _ in range(3):
            asyncio.run(shared.compile(key, {"do": "nothing"}))
    compilations = [value for name, value in shown if name == COMPILATIONS]
    assert compilations[-1] == compilations[0] + 1
    assert counted["turnstile_grammar_store_events_total", "process", "misses"] == 2
    assert counted["turnstile_grammar_store_events_total", "process", "hits"] == 4
    assert dict(shown)[STORE_ENTRIES] == dict(shared._store.stats()["process"])["entries"]
    asyncio.run(shared.compile(new_key(), {"do": "refuse"}))
    assert counted["turnstile_grammar_refusals_total", "unsatisfiable_grammar"] == 1


def test_logs_name_the_key_and_the_tenant(shared: GrammarCompiler, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "ray.serve")
    keys = [new_key(), new_key()]
    asyncio.run(shared.compile(keys[0], {"do": "nothing"}, "someone"))
    asyncio.run(shared.compile(keys[1], {"do": "refuse"}, "someone"))
    compiled, refused = (vars(record) for record in caplog.records if hasattr(record, "grammar_key"))
    assert [compiled["grammar_key"], refused["grammar_key"]] == keys
    assert compiled["tenant"] == refused["tenant"] == "someone"
    assert compiled["queue_seconds"] >= 0 and refused["error_code"] == "unsatisfiable_grammar"


def test_with_the_real_compiler(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "LOAD_COMPILER", "grammar_workers.service.worker:load_compiler")
        deployed = GrammarCompiler(MODEL, f"file://{tmp_path}", options={"whitespace": "flexible"})
    try:
        info = asyncio.run(deployed.info())
        vocabulary = load_vocabulary(MODEL)
        assert info["vocabulary_fingerprint"] == vocabulary.fingerprint
        schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "x-note": 1}
        specification = {"type": "json_schema", "schema": schema}
        options = compiler.GrammarOptions.model_validate(info["options"])
        key = grammar_key(specification, vocabulary.fingerprint, options)
        data = asyncio.run(deployed.get(key, specification))
        assert isinstance(data, bytes)
        fsm = TokenFSM.from_bytes(data, vocabulary)
        assert fsm.key == key
        assert fsm.allowed_tokens(fsm.initial_state)
        answer = asyncio.run(deployed.compile(key, specification))
        assert answer["notes"] == fsm.notes

        twice = {"type": "json_schema", "schema": {"type": "string", "pattern": "(a)\\1"}}
        reporting = options.model_copy(update={"on_unsupported": "report"})
        asked = job(twice, {"on_unsupported": "report"})
        answer = asyncio.run(deployed.compile(grammar_key(twice, vocabulary.fingerprint, reporting), asked))
        assert [keyword["pointer"] for keyword in answer["unenforced"]] == ["/pattern"]

        bad = {"type": "json_schema", "schema": {"type": "string", "pattern": "a("}}
        refusal = asyncio.run(deployed.compile(grammar_key(bad, vocabulary.fingerprint, options), bad))
        assert refusal["status"] == "refused"
        assert refusal["error"]["pointer"] == "/pattern"

        # A key that is not the specification's would poison the store for everybody.
        with pytest.raises(CompileFailedError, match="key"):
            asyncio.run(deployed.compile(new_key(), specification))
    finally:
        deployed.__del__()


def test_numbers_of_routers_are_added_and_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(autoscaling.time, "monotonic", lambda: now)
    held_back = autoscaling.HeldBack()
    held_back.report("one", 7)
    held_back.report("two", 5)
    held_back.report("one", 3)
    assert held_back.total() == 8
    now += autoscaling.VALID_S / 2
    held_back.report("two", 4)
    now += autoscaling.VALID_S / 2
    assert held_back.total() == 4
