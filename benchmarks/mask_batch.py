"""Mask rows for a whole batch, into one array and onto logits: Turnstile beside its peers in the same run.

    python -m benchmarks.mask_batch

Each row of the batch stands at another place of a ten-property object; all rows share one automaton, as equal requests
do, or each has its own. The rows go into one uint32 array [B, words] (`fill`), or from there onto B x V float32 logits
(`apply`). Between two measurements a pass over the logits empties the caches, as a model's forward pass would. Times
are CPU times of the process. Turnstile's rows have been visited before (warm); the peers compute theirs anew each time.
`table gather` is what numpy takes to gather rows from one table: the floor. `plain compiled loop` looks at every bit;
`unpack + masked_fill` is numpy and torch, the plain way: a bool for each token.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray
from tqdm import tqdm

from benchmarks.engines import ENGINES, Llguidance, Turnstile, Xgrammar, installed
from benchmarks.vocabularies import tekken_encoding, tekken_vocabulary
from grammar_workers import TokenFSM
from grammar_workers.matching.masks import forbid_unmasked
from grammar_workers.types import StateId

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {f"field_{i}": {"type": ["string", "integer", "boolean"][i % 3]} for i in range(10)},
    "required": [f"field_{i}" for i in range(10)],
    "additionalProperties": False,
}
VALUE = {f"field_{i}": ["some text", 12345, True][i % 3] for i in range(10)}


def prefixes(many: int) -> list[list[int]]:
    """`many` beginnings of one instance, spread over its whole length."""
    tokens = tekken_encoding().encode(json.dumps(VALUE))
    return [tokens[: row * len(tokens) // many] for row in range(many)]


def turnstile_places(many: int, *, shared: bool) -> list[tuple[TokenFSM, StateId]]:
    """The batch as Turnstile sees it: automata and states."""
    engine = Turnstile({})
    first = engine.compile(SCHEMA).fsm
    places = []
    for tokens in prefixes(many):
        fsm = first if shared else engine.compile(SCHEMA).fsm
        state = fsm.initial_state
        for token in tokens:
            state = fsm.next_state(state, token)
        places.append((fsm, state))
    return places


def sessions(engine: Any, many: int) -> list[Any]:
    """The batch as a peer sees it: a session for each row."""
    started = []
    for tokens in prefixes(many):
        session = engine.compile(SCHEMA)
        for token in tokens:
            assert session.advance(token)
        started.append(session)
    return started


Fill = Callable[[NDArray[np.uint32]], object]
"""Fills a uint32 [many, words] array."""


def turnstile_filler(many: int, *, shared: bool) -> Fill:
    places = turnstile_places(many, shared=shared)
    # One call for all rows: copying each by itself would cost as much again.
    return lambda target: np.concatenate([fsm.allowed_mask(state) for fsm, state in places], out=target.reshape(-1))


def gather_filler(many: int) -> Fill:
    table = np.stack([fsm.allowed_mask(state) for fsm, state in turnstile_places(many, shared=True)])
    order = np.random.default_rng(0).permutation(many)
    return lambda target: np.take(table, order, axis=0, out=target, mode="clip")


def llguidance_filler(many: int) -> Fill:
    import llguidance
    import llguidance.numpy

    executor = llguidance.LLExecutor(num_threads=1)
    numbered = [(session.matcher, row) for row, session in enumerate(sessions(Llguidance({}), many))]
    return lambda target: llguidance.numpy.fill_next_token_bitmask_par(executor, numbered, target.view(np.int32))


def xgrammar_filler(many: int) -> Fill:
    import xgrammar

    matchers = [session.matcher for session in sessions(Xgrammar({}), many)]
    batch = xgrammar.BatchGrammarMatcher(max_threads=1)
    return lambda target: batch.batch_fill_next_token_bitmask(matchers, torch.from_numpy(target.view(np.int32)))


FILLERS: dict[str, tuple[str, Callable[[int], Fill]]] = {
    "Turnstile, one automaton": ("turnstile", lambda many: turnstile_filler(many, shared=True)),
    "Turnstile, one each": ("turnstile", lambda many: turnstile_filler(many, shared=False)),
    "table gather": ("turnstile", gather_filler),
    "llguidance": ("llguidance", llguidance_filler),
    "xgrammar": ("xgrammar", xgrammar_filler),
}
"""Row of the table -> (package, what makes the filler for so many rows)."""

Apply = Callable[[NDArray[np.float32], NDArray[np.uint32]], object]
"""Puts masks uint32 [many, words] onto logits float32 [many, V]."""


@njit(nogil=True)
def plain_loop(logits, masks):  # type: ignore[no-untyped-def]
    """Every bit of every word."""
    for row in range(logits.shape[0]):
        for token in range(logits.shape[1]):
            if (masks[row, token >> 5] >> np.uint32(token & 31)) & np.uint32(1) == 0:
                logits[row, token] = -np.inf


def unpack_and_fill(logits: NDArray[np.float32], masks: NDArray[np.uint32]) -> object:
    bits = np.unpackbits(masks.view(np.uint8), axis=1, count=logits.shape[1], bitorder="little")
    return torch.from_numpy(logits).masked_fill(~torch.from_numpy(bits.view(np.bool_)), -torch.inf)


def llguidance_apply(logits: NDArray[np.float32], masks: NDArray[np.uint32]) -> object:
    import llguidance.numpy

    return llguidance.numpy.apply_token_bitmask_inplace(logits, masks.view(np.int32))


def xgrammar_apply(logits: NDArray[np.float32], masks: NDArray[np.uint32]) -> object:
    import xgrammar

    bitmask = torch.from_numpy(masks.view(np.int32))
    return xgrammar.apply_token_bitmask_inplace(torch.from_numpy(logits), bitmask, backend="cpu")


APPLIERS: dict[str, tuple[str, Apply]] = {
    "Turnstile": ("turnstile", forbid_unmasked),
    "plain compiled loop": ("turnstile", plain_loop),
    "unpack + masked_fill": ("turnstile", unpack_and_fill),
    "llguidance (numpy)": ("llguidance", llguidance_apply),
    "xgrammar (CPU kernel)": ("xgrammar", xgrammar_apply),
}


def median_microseconds(work: Callable[[], object], logits: NDArray[np.float32], rounds: int) -> float:
    """Median of `rounds` calls, each after a pass over the logits that also makes them finite again."""
    work()
    times = []
    for _ in range(rounds):
        logits[:] = 1.0
        begin = time.process_time_ns()
        work()
        times.append(time.process_time_ns() - begin)
    return float(np.median(times)) / 1e3


def measure_fill(name: str, many: int, rounds: int) -> float:
    """Median microseconds of one fill."""
    vocabulary = tekken_vocabulary()
    target = np.zeros((many, vocabulary.mask_words), np.uint32)
    fill = FILLERS[name][1](many)
    return median_microseconds(lambda: fill(target), np.zeros((many, vocabulary.size), np.float32), rounds)


def measure_apply(name: str, many: int, rounds: int) -> float:
    """Median microseconds of putting the same masks onto logits."""
    vocabulary = tekken_vocabulary()
    masks = np.zeros((many, vocabulary.mask_words), np.uint32)
    turnstile_filler(many, shared=True)(masks)
    logits = np.zeros((many, vocabulary.size), np.float32)
    apply = APPLIERS[name][1]
    return median_microseconds(lambda: apply(logits, masks), logits, rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 32, 128], help="rows per batch")
    parser.add_argument("--rounds", type=int, default=50, help="calls per measurement (default 50)")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES), help="default: all of them")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    present = installed(arguments.engines)
    work = [("fill", name, measure_fill) for name, (package, _) in FILLERS.items() if package in present]
    work += [("apply", name, measure_apply) for name, (package, _) in APPLIERS.items() if package in present]
    print(f"{'microseconds':<36}" + "".join(f"{f'{many} rows':>12}" for many in arguments.batches))
    for title, name, measure in tqdm(work, unit="row"):
        figures = [measure(name, many, arguments.rounds) for many in arguments.batches]
        tqdm.write(f"{title + ': ' + name:<36}" + "".join(f"{figure:>12,.0f}" for figure in figures))


if __name__ == "__main__":
    main()
