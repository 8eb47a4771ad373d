"""The compiler that vLLM's API process asks by a Serve handle: the same contract as one of its own."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from ray.exceptions import RayActorError
from ray.serve.exceptions import BackPressureError, RayServeException

from deployments.vllm.compilers import CompilerBusyError, compiler_for
from deployments.vllm.settings import PluginSettings, read_settings
from gpu_workers.vllm.loop_thread import LoopThread
from grammar_workers import GrammarOptions, TokenFSM, compile_grammar
from grammar_workers.artifacts.store import open_store
from grammar_workers.errors import GrammarError, InvalidSpecificationError
from grammar_workers.keys import parse_specification
from grammar_workers.service.job import opened
from grammar_workers.vocabulary.vocabulary import load_vocabulary
from tests.deployments.fakes import FakeHandle
from tests.documents import REPOSITORY
from tests.grammar_workers.vocabularies import accepts

MODEL = str(REPOSITORY / "models" / "turnstile-tiny")
OPTIONS = GrammarOptions.model_validate({"whitespace": "flexible"})
TIMEOUT_S = 100
LISTS = {"type": "json_schema", "schema": {"type": "array", "items": {"enum": [1, 2]}, "minItems": 1}}


class Deployment:
    """Compiles as `GrammarCompiler` does, with options of its own, into the store at `url`."""

    def __init__(self, url: str, fingerprint: str | None = None) -> None:
        self.vocabulary = load_vocabulary(MODEL)
        self.fingerprint = fingerprint or self.vocabulary.fingerprint
        self.store = open_store(url, self.vocabulary.fingerprint)
        self.faults: list[Exception] = []
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.silent = False

    async def info(self, *, options: dict[str, Any]) -> dict[str, Any]:
        if self.faults:
            raise self.faults.pop(0)
        return {"vocabulary_fingerprint": self.fingerprint, "options": OPTIONS.model_dump()}

    async def compile(
        self, key: str, specification: dict[str, Any] | None, tenant: str, *, options: dict[str, Any]
    ) -> dict[str, Any]:
        self.calls.append((key, options))
        if self.silent:
            await asyncio.sleep(60)
        if self.faults:
            raise self.faults.pop(0)
        try:
            plain, all_options = opened(specification or {}, OPTIONS)
            fsm = compile_grammar(parse_specification(plain), self.vocabulary, options=all_options)
        except GrammarError as error:
            return {"key": key, "status": "refused", "error": error.to_dict()}
        assert fsm.key == key
        self.store.put(key, fsm.to_bytes())
        return {"key": key, "status": "ready"}

    async def get(
        self, key: str, specification: dict[str, Any] | None, tenant: str, *, options: dict[str, Any]
    ) -> bytes | None:
        return self.store.get(key)


@pytest.fixture
def deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Deployment:
    """The deployment `Grammars` of the application `here`, whose files are its own."""
    made = Deployment(f"file://{tmp_path}/its")

    def handle(name: str, app: str | None) -> FakeHandle:
        if (name, app) != ("Grammars", "here"):
            raise RayServeException(f"no deployment {name} in {app}")
        return FakeHandle(made)

    monkeypatch.setattr("deployments.vllm.compilers.serve.get_deployment_handle", handle)
    monkeypatch.setattr("deployments.routing.retries.FIRST_PAUSE_S", 0.0)
    return made


class Started:
    """A compiler that is ready, on a loop of its own."""

    def __init__(self, settings: PluginSettings) -> None:
        self._thread = LoopThread("compiler")
        self._compiler = compiler_for(MODEL, settings)
        self._thread.submit(self._compiler.wait_ready()).result(TIMEOUT_S)

    def compile(self, specification: dict[str, Any], **options: Any) -> str:
        """The key."""
        compiling = self._compiler.compile(parse_specification(specification), options)
        return self._thread.submit(compiling).result(TIMEOUT_S)


def started(tmp_path: Path, store: str = "ours", app: str = "here") -> Started:
    environment = {
        "TURNSTILE_STORE": f"file://{tmp_path}/{store}",
        "TURNSTILE_COMPILER_DEPLOYMENT": "Grammars",
        "TURNSTILE_COMPILER_APP": app,
    }
    return Started(read_settings(environment))


@pytest.mark.parametrize("store", ["ours", "its"])
def test_the_artifact_is_in_the_store_that_the_engine_reads(tmp_path: Path, deployment: Deployment, store: str) -> None:
    """Be it the compiler's own, or that of another node."""
    key = started(tmp_path, store).compile(LISTS)
    data = open_store(f"file://{tmp_path}/{store}", deployment.fingerprint).get(key)
    assert data is not None
    fsm = TokenFSM.from_bytes(data, deployment.vocabulary, key=key)
    assert accepts(fsm, b"[1, 2]") and accepts(fsm, b"[ 1,2 ]"), "the deployment's options hold"
    assert not accepts(fsm, b"[]")
    assert deployment.calls == [(key, {"session_id": key})]


def test_what_the_store_has_is_not_asked_for(tmp_path: Path, deployment: Deployment) -> None:
    first = started(tmp_path).compile(LISTS)
    assert started(tmp_path).compile(LISTS) == first
    assert len(deployment.calls) == 1


def test_a_refusal_keeps_code_and_place(tmp_path: Path, deployment: Deployment) -> None:
    wrong = {"type": "json_schema", "schema": {"properties": {"n": {"type": "strin"}}}}
    with pytest.raises(InvalidSpecificationError) as caught:
        started(tmp_path).compile(wrong)
    assert caught.value.pointer == "/properties/n/type"


def test_options_of_a_request_travel_with_it(tmp_path: Path, deployment: Deployment) -> None:
    store = open_store(f"file://{tmp_path}/ours", deployment.vocabulary.fingerprint)
    compiler = started(tmp_path)
    spellings = ("flexible", "compact")
    keys = [compiler.compile(LISTS, whitespace=whitespace) for whitespace in spellings]
    for key, whitespace in zip(keys, spellings, strict=True):
        data = store.get(key)
        assert data is not None
        fsm = TokenFSM.from_bytes(data, deployment.vocabulary, key=key)
        assert accepts(fsm, "[ 1]") == (whitespace == "flexible") and accepts(fsm, "[1, 2]")
    assert len(set(keys)) == 2


def test_a_lost_replica_is_asked_again(tmp_path: Path, deployment: Deployment) -> None:
    compiler = started(tmp_path)
    deployment.faults = [RayActorError(), RayActorError()]
    key = compiler.compile(LISTS)
    assert [asked for asked, _ in deployment.calls] == [key] * 3


@pytest.mark.parametrize(
    ("faults", "message"),
    [
        ([BackPressureError(1, 1, 429, 1.0)], "too many grammars"),
        ([RayServeException("gone")], "the deployment Grammars did not answer"),
        ([RayActorError()] * 8, "the deployment Grammars did not answer"),
    ],
)
def test_nobody_who_compiles_is_that_requests_error(
    tmp_path: Path, deployment: Deployment, faults: list[Exception], message: str
) -> None:
    compiler = started(tmp_path)
    deployment.faults = faults
    with pytest.raises(CompilerBusyError, match=message):
        compiler.compile(LISTS)
    assert compiler.compile(LISTS)


def test_a_compiler_that_hangs_is_left(tmp_path: Path, deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = started(tmp_path)
    monkeypatch.setattr("deployments.vllm.compilers._REQUEST_TIMEOUT_S", 0.2)
    deployment.silent = True
    with pytest.raises(CompilerBusyError, match="did not answer"):
        compiler.compile(LISTS)


def test_the_start_waits_for_the_deployment(
    tmp_path: Path, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment.faults = [RayServeException("not deployed yet")]
    assert started(tmp_path).compile(LISTS)
    monkeypatch.setattr("deployments.vllm.compilers._START_TIMEOUT_S", 0.2)
    with pytest.raises(CompilerBusyError, match="did not answer within"):
        started(tmp_path, app="elsewhere")


def test_a_compiler_for_another_vocabulary_ends_the_start(tmp_path: Path, deployment: Deployment) -> None:
    deployment.fingerprint = "0" * 64
    with pytest.raises(ValueError, match="another vocabulary"):
        started(tmp_path)


def test_two_compilers_are_a_mistake() -> None:
    with pytest.raises(ValidationError, match="exclude each other"):
        read_settings({"TURNSTILE_URL": "http://x", "TURNSTILE_COMPILER_DEPLOYMENT": "Grammars"})
