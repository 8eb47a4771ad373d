"""Compilation: the caches, threads, and an event loop that goes on meanwhile."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from grammar_workers import GrammarOptions, TokenFSM, Vocabulary, compile_grammar
from grammar_workers.artifacts import artifact
from grammar_workers.artifacts.automaton_cache import AutomatonCache
from grammar_workers.artifacts.store import open_store
from grammar_workers.errors import UnsatisfiableError
from tests.grammar_workers.compile_jobs import worker_pids
from tests.grammar_workers.test_compile_pool import alive, eventually
from tests.grammar_workers.vocabularies import bytes_vocabulary
from turnstile_llm import Regex, compile, compile_async
from turnstile_llm import compilation as module

SLOW = {"type": "object", "properties": {f"name{n}": {"type": "string", "minLength": n % 7} for n in range(60)}}


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys that this process compiles from now on, with empty caches."""
    keys: list[str] = []

    def noting(key: str, *arguments: Any) -> bytes:
        keys.append(key)
        return original(key, *arguments)

    original = module.compile_artifact
    monkeypatch.setattr(module, "compile_artifact", noting)
    monkeypatch.setattr(module, "_automata", AutomatonCache(1 << 20))
    module._open_store.cache_clear()
    return keys


def test_a_grammar_is_compiled_once(compiled: list[str]) -> None:
    first = compile(Regex("[ab]{3}"), bytes_vocabulary())
    assert compile({"type": "regex", "pattern": "[ab]{3}"}, bytes_vocabulary()).automaton() is first.automaton()
    assert compiled == [first.key]
    other = compile(Regex("[ab]{3}"), bytes_vocabulary(), options=GrammarOptions(whitespace="flexible"))
    assert compiled == [first.key, other.key]


def test_a_folder_is_shared_with_the_cluster(compiled: list[str], tmp_path: Path) -> None:
    vocabulary, store = bytes_vocabulary(), f"file://{tmp_path}"
    made = compile_grammar({"type": "regex", "pattern": "x+"}, vocabulary)
    open_store(store).put(made.key, made.to_bytes())
    assert compile(Regex("x+"), vocabulary, store=store).key == made.key
    assert compiled == []
    # Another store of this process does not hide that the folder has nothing yet.
    here = compile(Regex("y+"), vocabulary)
    assert compile(Regex("y+"), vocabulary, store=store).key == here.key
    data = open_store(store).get(here.key)
    assert data is not None
    assert {"owner", "compile_seconds", "first_mask_seconds", "memory_bytes", "costs"} <= artifact.verify(
        data, key=here.key
    ).details().keys()


def test_a_rejection_is_not_cached(compiled: list[str]) -> None:
    for _ in range(2):
        with pytest.raises(UnsatisfiableError):
            compile({"type": "integer", "minimum": 3, "maximum": 2}, bytes_vocabulary())


def test_threads_compile_at_once(compiled: list[str]) -> None:
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        patterns = [f"[ab]{{{n % 4 + 1}}}" for n in range(32)]
        found = list(threads.map(lambda pattern: compile(Regex(pattern), bytes_vocabulary()), patterns))
    for pattern, grammar in zip(patterns, found, strict=True):
        alone = compile_grammar({"type": "regex", "pattern": pattern}, bytes_vocabulary())
        assert grammar.key == alone.key
        assert (grammar.automaton().allowed_mask(1) == alone.allowed_mask(1)).all()


def test_the_event_loop_goes_on_while_another_process_compiles(
    compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The processes are stopped until the loop has gone on, and no thread but another one loads what they send."""
    load, loading = TokenFSM.from_bytes, list[threading.Thread]()

    def noting(*arguments: Any, **named: Any) -> TokenFSM:
        loading.append(threading.current_thread())
        return load(*arguments, **named)

    monkeypatch.setattr(TokenFSM, "from_bytes", noting)

    async def run(vocabulary: Vocabulary) -> None:
        first = await compile_async(Regex("ab"), vocabulary)  # starts the processes
        assert first.key == compile_grammar({"type": "regex", "pattern": "ab"}, vocabulary).key
        with pytest.raises(UnsatisfiableError) as caught:
            await compile_async({"type": "integer", "minimum": 3, "maximum": 2}, vocabulary)
        caught.value.__traceback__ = None  # its frames would keep the vocabulary
        pool = module._pools[vocabulary]
        eventually(lambda: len(pool._ready) == 2)
        stopped = worker_pids(pool)
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        going_on = threading.Timer(60, lambda: [os.kill(pid, signal.SIGCONT) for pid in stopped])
        going_on.start()
        compiling = asyncio.create_task(compile_async(SLOW, vocabulary))
        while not pool.running:
            await asyncio.sleep(0.001)
        assert not compiling.done() and going_on.is_alive(), "the loop has waited for the processes"
        going_on.cancel()
        going_on.function()
        grammar = await compiling
        assert compile(SLOW, vocabulary).automaton() is grammar.automaton()

    vocabulary = Vocabulary([bytes([byte]) for byte in range(256)] + [None], [256])
    asyncio.run(run(vocabulary))
    assert compiled == [] and loading and threading.main_thread() not in loading
    pids = worker_pids(module._pools[vocabulary])
    assert len(pids) == 2
    # The processes end with the vocabulary.
    module._automata = AutomatonCache(1 << 20)  # the fixture restores the one before
    del vocabulary
    gc.collect()
    eventually(lambda: not any(map(alive, pids)))
