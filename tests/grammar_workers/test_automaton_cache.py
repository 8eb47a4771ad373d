"""The cache of automata: bounded in bytes that grow, least recently used first out, safe between threads."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from grammar_workers import TokenFSM, Vocabulary, compile_grammar, lru
from grammar_workers.artifacts.automaton_cache import AutomatonCache

KEYS = st.sampled_from("abcdefgh")
SIZES = st.integers(0, 60)


class Automaton:
    """Only what the cache looks at."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.is_worn = False


def automaton(nbytes: int) -> TokenFSM:
    return cast(TokenFSM, Automaton(nbytes))


class AgainstAModel(RuleBasedStateMachine):
    """The cache and a plain list, newest last, do the same."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = AutomatonCache(100)
        self.model: list[tuple[str, TokenFSM, int]] = []

    def used(self, key: str, fsm: TokenFSM) -> None:
        self.model = [entry for entry in self.model if entry[0] != key] + [(key, fsm, fsm.nbytes)]
        while sum(size for _, _, size in self.model) > 100 and len(self.model) > 1:
            self.model.pop(0)

    @rule(key=KEYS, size=SIZES)
    def put(self, key: str, size: int) -> None:
        fsm = automaton(size)
        self.cache.put(key, fsm)
        self.used(key, fsm)

    @rule(key=KEYS, growth=SIZES)
    def get(self, key: str, growth: int) -> None:
        known = {entry[0]: entry[1] for entry in self.model}
        if key in known:
            cast(Automaton, known[key]).nbytes += growth
        assert self.cache.get(key) is known.get(key)
        if key in known:
            self.used(key, known[key])

    @rule(key=KEYS)
    def discard(self, key: str) -> None:
        self.cache.discard(key)
        self.model = [entry for entry in self.model if entry[0] != key]

    @invariant()
    def equal(self) -> None:
        assert len(self.cache) == len(self.model)
        assert self.cache.size == sum(size for _, _, size in self.model)
        assert all(key in self.cache for key, _, _ in self.model)


TestAgainstAModel = AgainstAModel.TestCase


def test_the_one_used_last_stays_however_large() -> None:
    cache = AutomatonCache(100)
    cache.put("small", automaton(10))
    cache.put("large", automaton(1000))
    assert "small" not in cache
    assert cache.get("large") is not None
    assert cache.evictions == 1


def test_number_and_idleness_are_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(lru, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(lru, "MAX_ENTRIES", 3)
    monkeypatch.setattr(lru, "TIME_TO_LIVE_S", 10)
    cache: lru.LeastRecentlyUsed[str] = lru.LeastRecentlyUsed(100, len)
    for key in "abcd":
        cache.put(key, key)
    assert [key in cache for key in "abcd"] == [False, True, True, True]
    now = 8.0
    assert cache.get("c") == "c"
    now = 11.0
    assert cache.get("b") is None and cache.get("d") is None
    assert (len(cache), cache.size, cache.evictions) == (1, 1, 3)
    now = 18.5
    assert cache.get("c") is None
    assert (len(cache), cache.size, cache.evictions) == (0, 0, 4)


def test_threads() -> None:
    cache = AutomatonCache(1000)

    def work(seed: int) -> None:
        for step in range(2000):
            key = str((step * seed) % 37)
            if cache.get(key) is None:
                cache.put(key, automaton(50 + seed))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 0 < cache.size <= 1000
    assert len(cache) <= 1000 // 51


def test_a_real_automaton_is_measured_again_as_it_grows() -> None:
    vocabulary = Vocabulary([bytes([byte]) for byte in range(256)] + [None], eos_token_ids=[256])
    fsm = compile_grammar({"type": "regex", "pattern": "[a-z]{1,200}"}, vocabulary)
    cache = AutomatonCache(1 << 30)
    cache.put("key", fsm)
    before = cache.size
    fsm.materialize()
    assert cache.get("key") is fsm
    assert cache.size == fsm.nbytes > before


def test_a_worn_automaton_is_given_out_no_more() -> None:
    cache = AutomatonCache(1000)
    worn = Automaton(10)
    cache.put("a", cast(TokenFSM, worn))
    assert cache.get("a") is worn
    worn.is_worn = True
    assert cache.get("a") is None and "a" not in cache
