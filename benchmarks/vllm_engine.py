"""A vLLM engine in its own process, for benchmarks that measure several engines alternately."""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.vllm.server import environment

OURS = "turnstile"
# Name -> vLLM's name of the backend, module and class of its grammars.
# vLLM 0.29 has two other backends, which are not measured: outlines gives up the schema of `records` after 5 s, and
# lm-format-enforcer 0.11.3 imports a module that vLLM no longer has.
BACKENDS = {
    OURS: ("outlines", "gpu_workers.vllm.grammar", "RequestGrammar"),
    "xgrammar": ("xgrammar", "vllm.v1.structured_output.backend_xgrammar", "XgrammarGrammar"),
    "guidance": ("guidance", "vllm.v1.structured_output.backend_guidance", "GuidanceGrammar"),
}
UNGUIDED = "unguided"
# Calls that are timed: two methods of a backend's grammars, and vLLM's own kernel, once per step.
CALLS = ("fill", "accept", "apply")

_RUNNER = "vllm.v1.worker.gpu_model_runner"


def vllm_name(backend: str) -> str:
    """Return the name that vLLM's option `structured_outputs_config.backend` has for a backend.

    Args:
        backend: A key of `BACKENDS`.
    """
    return BACKENDS[backend][0]


@dataclass
class Burst:
    """Times of one batch of generations.

    Attributes:
        ms_per_token: Wall time of the batch in ms, divided by the number of tokens of its longest output.
        seconds: Durations of calls in seconds, by name of the call in `CALLS`. Empty without a grammar.
    """

    ms_per_token: float
    seconds: dict[str, list[float]] = field(default_factory=dict)


def records(number: int) -> dict[str, Any]:
    """Return a JSON Schema of an array of records, whose outputs are longer than any burst.

    Args:
        number: Number that makes the schema different from others.
    """
    properties = {
        f"name{number}": {"type": "string", "maxLength": 24},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "kind": {"enum": ["red", "green", f"blue{number}"]},
        "score": {"type": "number"},
    }
    item = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return {"type": "array", "minItems": 60, "items": item}


class Engine:
    """A vLLM engine in its own process, which generates batches. The constructor starts the process.

    Call `wait_ready` before the first `burst`.

    Args:
        backend: A key of `BACKENDS`, or `UNGUIDED` for generations without a grammar.
        model: Folder of the model.
        store: Folder of the store of compiled grammars.
        settings: Further arguments of `vllm.LLM`.
    """

    def __init__(self, backend: str, model: Path, store: Path, settings: dict[str, Any]) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, backend, str(model), str(store), settings))
        self._process.start()
        theirs.close()

    def wait_ready(self) -> None:
        """Wait until the engine is loaded. EOFError is raised if its process has ended; its output has the reason."""
        self._connection.recv()

    def burst(self, rows: int, tokens: int, seed: int) -> Burst:
        """Generate one batch of sequences at temperature 1.

        Args:
            rows: Number of sequences.
            tokens: Number of tokens per sequence.
            seed: Seed of the first sequence. The other seeds follow it.

        Returns:
            The times of the batch.
        """
        self._connection.send((rows, tokens, seed))
        answer: Burst = self._connection.recv()
        return answer

    def close(self) -> None:
        """Stop the process. If it has not ended after 60 seconds, it is killed."""
        self._connection.close()
        self._process.join(60)
        if self._process.is_alive():
            self._process.kill()


@contextlib.contextmanager
def engines(backends: list[str], model: Path, store: Path, settings: dict[str, Any]) -> Iterator[dict[str, Engine]]:
    """Return a context manager that runs several engines at the same time.

    The engines start one after another, because a start uses the whole machine.

    Args:
        backends: Keys of `BACKENDS`, or `UNGUIDED`.
        model: Folder of the model.
        store: Folder of the store of compiled grammars.
        settings: Further arguments of `vllm.LLM`.

    Yields:
        The engines by backend, loaded.
    """
    running: dict[str, Engine] = {}
    try:
        for backend in backends:
            running[backend] = Engine(backend, model, store, settings)
            running[backend].wait_ready()
        yield running
    finally:
        for engine in running.values():
            engine.close()


def _serve(connection: Connection, backend: str, model: str, store: str, settings: dict[str, Any]) -> None:
    os.environ.update(
        environment(
            Path(store),
            TURNSTILE_VLLM=str(int(backend == OURS)),
            VLLM_ENABLE_V1_MULTIPROCESSING="0",  # the engine core's calls are timed here
            VLLM_LOGGING_LEVEL="ERROR",
            OMP_NUM_THREADS="1",
        )
    )
    from vllm import LLM, SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    guided = backend != UNGUIDED
    masks: dict[str, Any] = {"structured_outputs_config": {"backend": vllm_name(backend)}} if guided else {}
    llm = LLM(model=model, max_model_len=512, seed=0, **masks, **settings)
    seconds = _timed(backend) if guided else {}

    def run(rows: int, tokens: int, seed: int) -> Burst:
        for calls in seconds.values():
            calls.clear()
        parameters = [
            SamplingParams(
                max_tokens=tokens,
                temperature=1.0,
                seed=seed + row,
                ignore_eos=True,
                structured_outputs=StructuredOutputsParams(json=records(row % 8)) if guided else None,
            )
            for row in range(rows)
        ]
        began = time.perf_counter()
        outputs = llm.generate(["Give me records:\n"] * rows, parameters, use_tqdm=False)
        took = time.perf_counter() - began
        longest = max(len(output.outputs[0].token_ids) for output in outputs)
        return Burst(took / longest * 1000, {name: list(calls) for name, calls in seconds.items()})

    run(8, 16, 0)
    connection.send(None)
    with contextlib.suppress(EOFError):
        while True:
            connection.send(run(*connection.recv()))


def _timed(backend: str) -> dict[str, list[float]]:
    """Wrap the timed calls of a backend and return the lists that receive their seconds."""
    _, module, name = BACKENDS[backend]
    grammar = getattr(importlib.import_module(module), name)
    seconds: dict[str, list[float]] = {call: [] for call in CALLS}
    _time(grammar, "fill_bitmask", seconds["fill"])
    _time(grammar, "accept_tokens", seconds["accept"])
    _time(importlib.import_module(_RUNNER), "apply_grammar_bitmask", seconds["apply"])
    return seconds


def _time(owner: Any, name: str, calls: list[float]) -> None:
    original: Callable[..., Any] = getattr(owner, name)

    def timed(*arguments: Any, **keywords: Any) -> Any:
        began = time.perf_counter()
        result = original(*arguments, **keywords)
        calls.append(time.perf_counter() - began)
        return result

    setattr(owner, name, timed)
