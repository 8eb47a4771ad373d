"""Compilation of constraints to grammars, in this process or in a compile process, with the store of the cluster."""

from __future__ import annotations

import asyncio
import functools
import pickle
import sys
import tempfile
import threading
import weakref
from typing import Any

from grammar_workers import GrammarOptions, TokenFSM, Vocabulary, grammar_key
from grammar_workers.artifacts.automaton_cache import AutomatonCache
from grammar_workers.artifacts.store import open_store
from grammar_workers.compile import compile_artifact
from grammar_workers.kernel_progress import compile_visibly
from grammar_workers.service.job import job
from grammar_workers.service.pool import CompilePool
from turnstile_llm.constraints import specification_of
from turnstile_llm.grammar import Grammar

_DEFAULTS = GrammarOptions()

_automata = AutomatonCache(512 << 20)
_open_store = functools.lru_cache(maxsize=16)(open_store)
_pools: weakref.WeakKeyDictionary[Vocabulary, CompilePool] = weakref.WeakKeyDictionary()
_starting = threading.Lock()


def compile(
    constraint: Any, vocabulary: Vocabulary, *, options: GrammarOptions = _DEFAULTS, store: str = "memory://"
) -> Grammar:
    """Compile a constraint for a vocabulary. Thread-safe.

    GrammarError is raised if the constraint is malformed, unsupported, unsatisfiable or too large. The error has the
    JSON Pointer of the keyword. If the kernels in the wheel do not fit this machine, the first call after an
    installation compiles them for about a minute, and prints its progress to standard error.

    Args:
        constraint: A pydantic model or another type with a JSON Schema, a JSON Schema, or a result of `Regex`,
            `Choice`, `Lark`, `GBNF`, `StructuralTag`, `BannedWords` or `AllOf` (see `constraints.specification_of`).
        vocabulary: Tokens of the model.
        options: Options for the format of the output.
        store: URL of a store of compiled grammars that other processes share: `file:///folder` or `redis://...`. Keys
            are those of the cluster. `memory://`: only the memory of this process, which is always searched first.

    Returns:
        The grammar.
    """
    return _grammar(constraint, vocabulary, options, store, False)


async def compile_async(
    constraint: Any, vocabulary: Vocabulary, *, options: GrammarOptions = _DEFAULTS, store: str = "memory://"
) -> Grammar:
    """Compile a constraint in another process, so that the event loop is not delayed.

    The errors of `compile` are raised. In addition, LimitExceededError is raised if a compilation takes longer than
    60 s or needs more than 4 GiB, and RuntimeError if the process fails. The first call for a vocabulary starts the
    process, which takes some seconds. The process ends after the vocabulary object is freed, or with this process.

    Args:
        constraint: Constraint of a kind that `compile` accepts.
        vocabulary: Tokens of the model.
        options: Options for the format of the output.
        store: URL of a store of compiled grammars, as in `compile`.

    Returns:
        The grammar.
    """
    return await asyncio.to_thread(_grammar, constraint, vocabulary, options, store, True)


def _grammar(constraint: Any, vocabulary: Vocabulary, options: GrammarOptions, store: str, elsewhere: bool) -> Grammar:
    specification = specification_of(constraint)
    key = grammar_key(specification, vocabulary.fingerprint, options)
    if (fsm := _automata.get((store, key))) is None:
        shared = _open_store(store, vocabulary.fingerprint)
        if (data := shared.get(key)) is None:
            compile_visibly(sys.stderr)
            plain = specification.model_dump(mode="json", by_alias=True)
            if elsewhere:
                data = _pool(vocabulary).submit(key, job(plain, options.model_dump())).result()
            else:
                data = compile_artifact(key, plain, vocabulary, options)
            shared.put(key, data)
        fsm = TokenFSM.from_bytes(data, vocabulary, key=key)
        _automata.put((store, key), fsm)
    return Grammar(fsm)


def _pool(vocabulary: Vocabulary) -> CompilePool:
    """Return the compile processes of a vocabulary, and start them at the first call."""
    with _starting:
        if (pool := _pools.get(vocabulary)) is None:
            file = tempfile.NamedTemporaryFile(prefix="turnstile-vocabulary-")  # noqa: SIM115 - read at each restart
            weakref.finalize(vocabulary, file.close)
            file.write(pickle.dumps(vocabulary))
            file.flush()
            target, arguments = "grammar_workers.service.worker:load_compiler_of", {"vocabulary": file.name}
            pool = CompilePool(target, arguments, timeout_s=60.0, cpu_s=60.0, idle=False)
            weakref.finalize(vocabulary, pool.close)
            pool.wait_ready()
            _pools[vocabulary] = pool
    return pool
