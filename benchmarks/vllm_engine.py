"""One vLLM engine in a process of its own, for programs that measure several in turn."""

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

BACKENDS = {
    "turnstile": ("outlines", "gpu_workers.vllm.grammar", "RequestGrammar"),
    "xgrammar": ("xgrammar", "vllm.v1.structured_output.backend_xgrammar", "XgrammarGrammar"),
    "guidance": ("guidance", "vllm.v1.structured_output.backend_guidance", "GuidanceGrammar"),
}
"""Name -> vLLM's name of the backend, module and class of its grammars.

Its others do not take part in vLLM 0.29: outlines gives `records` up after 5 s, lm-format-enforcer 0.11.3 imports a
module that vLLM has no more.
"""
UNGUIDED = "unguided"

_RUNNER = "vllm.v1.worker.gpu_model_runner"


@dataclass
class Burst:
    """What one batch of generations took."""

    ms_per_token: float
    """Of the batch's time over the tokens of its longest output."""
    seconds: dict[str, list[float]] = field(default_factory=dict)
    """`fill`, `accept` and `apply` (vLLM's own kernel, once a step): each call."""


def records(number: int) -> dict[str, Any]:
    """A schema whose outputs are longer than any burst."""
    properties = {
        f"name{number}": {"type": "string", "maxLength": 24},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "kind": {"enum": ["red", "green", f"blue{number}"]},
        "score": {"type": "number"},
    }
    item = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return {"type": "array", "minItems": 60, "items": item}


class Engine:
    """A running engine that answers batches; `backend` is one of `BACKENDS`, or UNGUIDED, `settings` of `vllm.LLM`."""

    def __init__(self, backend: str, model: Path, store: Path, settings: dict[str, Any]) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, backend, str(model), str(store), settings))
        self._process.start()
        theirs.close()

    def wait_ready(self) -> None:
        """Raises EOFError where it ended instead; its own output says why."""
        self._connection.recv()

    def burst(self, rows: int, tokens: int, seed: int) -> Burst:
        self._connection.send((rows, tokens, seed))
        answer: Burst = self._connection.recv()
        return answer

    def close(self) -> None:
        self._connection.close()
        self._process.join(60)
        if self._process.is_alive():
            self._process.kill()


@contextlib.contextmanager
def engines(backends: list[str], model: Path, store: Path, settings: dict[str, Any]) -> Iterator[dict[str, Engine]]:
    """All at once, each ready; started one after the other, since loading takes the whole machine."""
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
            TURNSTILE_VLLM=str(int(backend == "turnstile")),
            VLLM_ENABLE_V1_MULTIPROCESSING="0",  # the engine core's calls are timed here
            VLLM_LOGGING_LEVEL="ERROR",
            OMP_NUM_THREADS="1",
        )
    )
    from vllm import LLM, SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    guided = backend != UNGUIDED
    masks: dict[str, Any] = {"structured_outputs_config": {"backend": BACKENDS[backend][0]}} if guided else {}
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
    """Lists to which the calls of a backend's grammars and of vLLM's kernel add their seconds from now on."""
    _, module, name = BACKENDS[backend]
    grammar = getattr(importlib.import_module(module), name)
    seconds: dict[str, list[float]] = {"fill": [], "accept": [], "apply": []}
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
