"""Where automata come from: cache, store, compiler, in this order; once per key however many ask."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from gpu_workers.guided.grammar_source import GrammarSource
from gpu_workers.request import GrammarReference, RequestError
from grammar_workers import TokenFSM, Vocabulary, compile_grammar, grammar_key
from grammar_workers.artifacts import artifact
from grammar_workers.artifacts.automaton_cache import AutomatonCache
from grammar_workers.artifacts.store import open_store
from grammar_workers.errors import UnsupportedFeatureError
from tests.gpu_workers.support import byte_vocabulary

SPECIFICATION = {"type": "choice", "choices": ["yes", "no"]}


def reference(specification: dict[str, Any] | None = None) -> GrammarReference:
    specification = specification or SPECIFICATION
    return GrammarReference(key=grammar_key(specification, byte_vocabulary().fingerprint), specification=specification)


class Compiler:
    """Counts what it is asked and takes its time."""

    def __init__(self, answer: bytes | dict[str, Any] | None = None) -> None:
        self.asked = 0
        self.answered = 0
        self.answer = answer

    async def __call__(self, grammar: GrammarReference, anew: bool) -> bytes | dict[str, Any]:
        self.asked += 1
        await asyncio.sleep(0.01)
        self.answered += 1
        if self.answer is not None:
            return self.answer
        if grammar.specification is None:
            return {"key": grammar.key, "status": "unknown"}
        return compile_grammar(grammar.specification, byte_vocabulary()).to_bytes()


def source(compiler: Compiler, url: str = "memory://", vocabulary: Vocabulary | None = None) -> GrammarSource:
    vocabulary = vocabulary or byte_vocabulary()
    return GrammarSource(vocabulary, open_store(url, vocabulary.fingerprint), AutomatonCache(1 << 20), compiler)


def test_many_requests_ask_the_compiler_once_and_share_the_automaton() -> None:
    async def scenario() -> None:
        compiler = Compiler()
        grammars = source(compiler)
        fsms = await asyncio.gather(*(grammars.fetch(reference()) for _ in range(10)))
        assert len(set(map(id, fsms))) == 1
        assert await grammars.fetch(reference()) is fsms[0]
        assert compiler.asked == 1
        assert fsms[0].allowed_tokens(fsms[0].initial_state) == {ord("y"), ord("n")}

    asyncio.run(scenario())


def test_a_fetch_ends_with_the_last_request_that_wants_it() -> None:
    async def scenario() -> None:
        compiler = Compiler()
        grammars = source(compiler)
        leaving, staying = (asyncio.create_task(grammars.fetch(reference())) for _ in range(2))
        while not compiler.asked:
            await asyncio.sleep(0)
        leaving.cancel()
        assert (await staying).initial_state >= 0
        compiler = Compiler()
        grammars = source(compiler)
        last = asyncio.create_task(grammars.fetch(reference()))
        while not compiler.asked:
            await asyncio.sleep(0)
        last.cancel()
        with pytest.raises(asyncio.CancelledError):
            await last
        await asyncio.sleep(0.03)
        assert compiler.answered == 0
        assert await grammars.fetch(reference())
        assert (compiler.asked, compiler.answered) == (2, 1)

    asyncio.run(scenario())


def test_the_tiers_count() -> None:
    async def scenario() -> None:
        grammars = source(Compiler())
        for _ in range(3):
            await grammars.fetch(reference())
        stats = grammars.stats()
        assert (stats["automata"]["misses"], stats["automata"]["hits"], stats["automata"]["entries"]) == (1, 2, 1)
        assert stats["process"]["misses"] == 1

    asyncio.run(scenario())


@pytest.mark.parametrize("travels", [True, False])
def test_what_compilers_hand_on_and_nobody_can_load_is_compiled_anew(travels: bool) -> None:
    known = reference()
    tables = artifact.pack(b"Mtables of another version", key=known.key, fingerprint=byte_vocabulary().fingerprint)
    asked = []

    async def compiler(grammar: GrammarReference, anew: bool) -> bytes | dict[str, Any]:
        asked.append(anew)
        return await Compiler()(grammar, anew) if anew else tables

    async def scenario() -> None:
        grammars = GrammarSource(
            byte_vocabulary(), open_store("memory://", byte_vocabulary().fingerprint), AutomatonCache(1 << 20), compiler
        )
        fsm = await grammars.fetch(known.model_copy(update={"artifact": tables if travels else None}))
        assert fsm.allowed_tokens(fsm.initial_state) == {ord("y"), ord("n")}
        assert await grammars.fetch(known) is fsm
        with pytest.raises(RequestError) as caught:
            await source(Compiler({"status": "unknown"})).fetch(GrammarReference(key=known.key, artifact=tables))
        assert (caught.value.status, caught.value.code) == (404, "grammar_not_found")

    asyncio.run(scenario())
    assert asked == ([True] if travels else [False, True])


def test_a_bare_key_finds_what_is_known() -> None:
    async def scenario() -> None:
        grammars = source(Compiler())
        bare = GrammarReference(key=reference().key, specification=None)
        with pytest.raises(RequestError) as caught:
            await grammars.fetch(bare)
        assert (caught.value.status, caught.value.code) == (404, "grammar_not_found")
        assert await grammars.fetch(reference()) is await grammars.fetch(bare)

    asyncio.run(scenario())


def test_what_the_store_has_is_not_asked_for(tmp_path: Path) -> None:
    url = f"file://{tmp_path}"
    fsm = compile_grammar(SPECIFICATION, byte_vocabulary())
    open_store(url, byte_vocabulary().fingerprint).put(fsm.key, fsm.to_bytes())

    async def scenario() -> None:
        compiler = Compiler()
        assert isinstance(await source(compiler, url).fetch(reference()), TokenFSM)
        assert compiler.asked == 0

    asyncio.run(scenario())


def test_an_artifact_that_comes_along_is_asked_for_nowhere() -> None:
    data = compile_grammar(SPECIFICATION, byte_vocabulary()).to_bytes()

    async def scenario() -> None:
        compiler = Compiler()
        grammars = source(compiler)
        fsm = await grammars.fetch(reference().model_copy(update={"artifact": data}))
        assert await grammars.fetch(reference()) is fsm and compiler.asked == 0
        assert "misses" not in grammars.stats()["process"]
        other = reference({"type": "choice", "choices": ["other"]})
        for wrong in (data, data[:-1] + b"?", b"rubbish"):
            compiler = Compiler()
            found = await source(compiler).fetch(other.model_copy(update={"artifact": wrong}))
            assert compiler.asked == 1 and found.allowed_tokens(found.initial_state) == {ord("o")}

    asyncio.run(scenario())


def test_rubbish_in_the_store_is_no_answer(tmp_path: Path) -> None:
    url = f"file://{tmp_path}"
    fsm = compile_grammar(SPECIFICATION, byte_vocabulary())
    open_store(url, byte_vocabulary().fingerprint).put(fsm.key, fsm.to_bytes())
    for path in tmp_path.rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[:-5] + b"wrong")

    async def scenario() -> None:
        compiler = Compiler()
        await source(compiler, url).fetch(reference())
        assert compiler.asked == 1

    asyncio.run(scenario())


def test_a_refusal_is_the_requests_error() -> None:
    refusal = UnsupportedFeatureError("not this keyword", pointer="/not").to_dict()

    async def scenario() -> None:
        grammars = source(Compiler({"status": "refused", "error": refusal}))
        for _ in range(2):
            with pytest.raises(RequestError, match="not this keyword") as raised:
                await grammars.fetch(reference())
            assert raised.value.to_dict() == {
                "status": 400,
                "code": "unsupported_grammar",
                "message": "not this keyword",
                "param": "/not",
            }

    asyncio.run(scenario())


def test_an_artifact_for_another_grammar_is_not_taken() -> None:
    other = compile_grammar({"type": "choice", "choices": ["other"]}, byte_vocabulary()).to_bytes()

    async def scenario() -> None:
        with pytest.raises(ValueError, match="artifact"):
            await source(Compiler(other)).fetch(reference())

    asyncio.run(scenario())


def test_a_request_that_leaves_does_not_take_the_fetch_along() -> None:
    async def scenario() -> None:
        compiler = Compiler()
        grammars = source(compiler)
        first = asyncio.create_task(grammars.fetch(reference()))
        second = asyncio.create_task(grammars.fetch(reference()))
        await asyncio.sleep(0)
        first.cancel()
        assert isinstance(await second, TokenFSM)
        assert compiler.asked == 1

    asyncio.run(scenario())


def test_what_the_compiler_sends_is_kept_for_other_processes_where_that_is_wanted(tmp_path: Path) -> None:
    async def scenario() -> None:
        key, url = reference().key, f"file://{tmp_path}"
        vocabulary = byte_vocabulary()
        for keeps in (False, True):
            store, cache = open_store(url, vocabulary.fingerprint), AutomatonCache(1 << 20)
            grammars = GrammarSource(vocabulary, store, cache, Compiler(), keeps=keeps)
            await grammars.fetch(reference())
            assert (open_store(url, vocabulary.fingerprint).get(key) is not None) == keeps
        # Files make room for others while the automaton is still in memory.
        store.discard(key)
        await grammars.fetch(reference())
        assert open_store(url, vocabulary.fingerprint).get(key) is None
        await grammars.store_again(reference())
        assert open_store(url, vocabulary.fingerprint).get(key) is not None
        with pytest.raises(RequestError) as unknown:
            await source(Compiler()).store_again(GrammarReference(key=key))
        assert unknown.value.code == "grammar_not_found"

    asyncio.run(scenario())


def test_a_compiler_that_signs_with_another_key_is_named_logged_and_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logging.getLogger("ray.serve"), "propagate", True)
    monkeypatch.setenv(artifact.HMAC_KEY_VARIABLE, "the compiler's")
    signed = compile_grammar(SPECIFICATION, byte_vocabulary()).to_bytes()
    monkeypatch.setenv(artifact.HMAC_KEY_VARIABLE, "another")
    grammars = source(Compiler(signed))
    with pytest.raises(
        RequestError, match="different values of TURNSTILE_STORE_HMAC_KEY; give all pods the same"
    ) as it:
        asyncio.run(grammars.fetch(reference()))
    assert (it.value.status, it.value.code) == (503, "store_key_mismatch")
    assert grammars.stats()["automata"]["key_mismatch"] == 1
    assert "replace the pods" in caplog.text
