"""Measure masks of a whole batch, written into one array and applied to logits, and compare with other libraries.

    python -m benchmarks.mask_batch

Each sequence of the batch is in a different state of an object with ten properties. All sequences share one automaton,
as equal requests do, or each sequence has its own. Masks are written into a uint32 array [B, words] (`fill`), or
applied from this array to float32 logits [B, V] (`apply`). Before each measurement, all logits are overwritten, which
empties the CPU caches as a forward pass would. Times are CPU times of the process. Turnstile's masks are cached. The
other libraries compute their masks in each call. `table gather` is the time of numpy to gather rows of one table, which
is a lower bound. `unpack + masked_fill` is the simple method with numpy and PyTorch: one bool for each token.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.engines import ENGINES, Llguidance, Turnstile, Xgrammar, installed
from benchmarks.frame import Table, new_parser, progress
from benchmarks.texts import state_after
from benchmarks.vocabularies import tekken_encoding, tekken_vocabulary
from grammar_workers import TokenFSM
from grammar_workers.matching.apply_masks import forbid_unmasked
from grammar_workers.types import StateId

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {f"field_{i}": {"type": ["string", "integer", "boolean"][i % 3]} for i in range(10)},
    "required": [f"field_{i}" for i in range(10)],
    "additionalProperties": False,
}
VALUE = {f"field_{i}": ["some text", 12345, True][i % 3] for i in range(10)}


def prefixes(many: int) -> list[list[int]]:
    """Return prefixes of one valid instance as token IDs.

    Args:
        many: Number of prefixes. Their lengths are spread evenly over the instance.
    """
    tokens = tekken_encoding().encode(json.dumps(VALUE))
    return [tokens[: row * len(tokens) // many] for row in range(many)]


def turnstile_places(many: int, *, shared: bool) -> list[tuple[TokenFSM, StateId]]:
    """Return the automaton and the state of each sequence, for Turnstile.

    Args:
        many: Number of sequences.
        shared: True: all sequences share one automaton. False: each sequence has its own.
    """
    engine = Turnstile({})
    first = engine.compile(SCHEMA).fsm
    places = []
    for tokens in prefixes(many):
        fsm = first if shared else engine.compile(SCHEMA).fsm
        places.append((fsm, state_after(fsm, tokens)))
    return places


def sessions(engine: Any, many: int) -> list[Any]:
    """Return a session of another library for each sequence, after its prefix.

    Args:
        engine: The library, as an `Engine`.
        many: Number of sequences.
    """
    started = []
    for tokens in prefixes(many):
        session = engine.compile(SCHEMA)
        for token in tokens:
            assert session.advance(token)
        started.append(session)
    return started


# Writes masks into a uint32 array [B, words].
Fill = Callable[[NDArray[np.uint32]], object]


def turnstile_filler(many: int, *, shared: bool) -> Fill:
    """Return a function that copies Turnstile's cached masks into an array.

    Args:
        many: Number of sequences.
        shared: True: all sequences share one automaton. False: each sequence has its own.
    """
    places = turnstile_places(many, shared=shared)
    # One call for all rows: copying each by itself would cost as much again.
    return lambda target: np.concatenate([fsm.allowed_mask(state) for fsm, state in places], out=target.reshape(-1))


def gather_filler(many: int) -> Fill:
    """Return a function that gathers Turnstile's masks from one table with numpy.

    Args:
        many: Number of sequences.
    """
    table = np.stack([fsm.allowed_mask(state) for fsm, state in turnstile_places(many, shared=True)])
    order = np.random.default_rng(0).permutation(many)
    return lambda target: np.take(table, order, axis=0, out=target, mode="clip")


def llguidance_filler(many: int) -> Fill:
    """Return a function that calls llguidance's parallel fill with one thread.

    Args:
        many: Number of sequences.
    """
    import llguidance
    import llguidance.numpy

    executor = llguidance.LLExecutor(num_threads=1)
    numbered = [(session.matcher, row) for row, session in enumerate(sessions(Llguidance({}), many))]
    return lambda target: llguidance.numpy.fill_next_token_bitmask_par(executor, numbered, target.view(np.int32))


def xgrammar_filler(many: int) -> Fill:
    """Return a function that calls xgrammar's batch fill with one thread.

    Args:
        many: Number of sequences.
    """
    import xgrammar

    matchers = [session.matcher for session in sessions(Xgrammar({}), many)]
    batch = xgrammar.BatchGrammarMatcher(max_threads=1)
    return lambda target: batch.batch_fill_next_token_bitmask(matchers, torch.from_numpy(target.view(np.int32)))


# Row of the table -> package, and a function from the batch size to the filler.
FILLERS: dict[str, tuple[str, Callable[[int], Fill]]] = {
    "Turnstile, one automaton": ("turnstile", lambda many: turnstile_filler(many, shared=True)),
    "Turnstile, one each": ("turnstile", lambda many: turnstile_filler(many, shared=False)),
    "table gather": ("turnstile", gather_filler),
    "llguidance": ("llguidance", llguidance_filler),
    "xgrammar": ("xgrammar", xgrammar_filler),
}

# Applies masks, uint32 [B, words], to logits, float32 [B, V].
Apply = Callable[[NDArray[np.float32], NDArray[np.uint32]], object]


def unpack_and_fill(logits: NDArray[np.float32], masks: NDArray[np.uint32]) -> object:
    """Apply masks to logits with one bool per token and PyTorch's `masked_fill`.

    Args:
        logits: Logits, float32 [B, V]. Not changed.
        masks: Token bitmasks, uint32 [B, words].

    Returns:
        Masked logits [B, V].
    """
    bits = np.unpackbits(masks.view(np.uint8), axis=1, count=logits.shape[1], bitorder="little")
    return torch.from_numpy(logits).masked_fill(~torch.from_numpy(bits.view(np.bool_)), -torch.inf)


def llguidance_apply(logits: NDArray[np.float32], masks: NDArray[np.uint32]) -> object:
    """Apply masks to logits in place with llguidance.

    Args:
        logits: Logits, float32 [B, V].
        masks: Token bitmasks, uint32 [B, words].

    Returns:
        The value that llguidance returns, which is not used.
    """
    import llguidance.numpy

    return llguidance.numpy.apply_token_bitmask_inplace(logits, masks.view(np.int32))


def xgrammar_apply(logits: NDArray[np.float32], masks: NDArray[np.uint32]) -> object:
    """Apply masks to logits in place with xgrammar's CPU kernel.

    Args:
        logits: Logits, float32 [B, V].
        masks: Token bitmasks, uint32 [B, words].

    Returns:
        The value that xgrammar returns, which is not used.
    """
    import xgrammar

    bitmask = torch.from_numpy(masks.view(np.int32))
    return xgrammar.apply_token_bitmask_inplace(torch.from_numpy(logits), bitmask, backend="cpu")


APPLIERS: dict[str, tuple[str, Apply]] = {
    "Turnstile": ("turnstile", forbid_unmasked),
    "unpack + masked_fill": ("turnstile", unpack_and_fill),
    "llguidance (numpy)": ("llguidance", llguidance_apply),
    "xgrammar (CPU kernel)": ("xgrammar", xgrammar_apply),
}


def median_microseconds(work: Callable[[], object], logits: NDArray[np.float32], rounds: int) -> float:
    """Return the median CPU time of a function, in microseconds.

    Args:
        work: The function.
        logits: Logits, which are overwritten before each call. This also empties the CPU caches.
        rounds: Number of measured calls.
    """
    work()
    times = []
    for _ in range(rounds):
        logits[:] = 1.0
        begin = time.process_time_ns()
        work()
        times.append(time.process_time_ns() - begin)
    return float(np.median(times)) / 1e3


def measure_fill(name: str, many: int, rounds: int) -> float:
    """Return the median CPU time to write the masks of a batch into an array, in microseconds.

    Args:
        name: Method, a key of `FILLERS`.
        many: Number of sequences.
        rounds: Number of measured calls.
    """
    vocabulary = tekken_vocabulary()
    target = np.zeros((many, vocabulary.mask_words), np.uint32)
    fill = FILLERS[name][1](many)
    return median_microseconds(lambda: fill(target), np.zeros((many, vocabulary.size), np.float32), rounds)


def measure_apply(name: str, many: int, rounds: int) -> float:
    """Return the median CPU time to apply the masks of a batch to logits, in microseconds.

    Args:
        name: Method, a key of `APPLIERS`.
        many: Number of sequences.
        rounds: Number of measured calls.
    """
    vocabulary = tekken_vocabulary()
    masks = np.zeros((many, vocabulary.mask_words), np.uint32)
    turnstile_filler(many, shared=True)(masks)
    logits = np.zeros((many, vocabulary.size), np.float32)
    apply = APPLIERS[name][1]
    return median_microseconds(lambda: apply(logits, masks), logits, rounds)


def main() -> None:
    """Parse the command line and print the table."""
    parser = new_parser(__doc__)
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 32, 128], help="rows per batch")
    parser.add_argument("--rounds", type=int, default=50, help="calls per measurement (default 50)")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES), help="default: all of them")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    present = installed(arguments.engines)
    work = [("fill", name, measure_fill) for name, (package, _) in FILLERS.items() if package in present]
    work += [("apply", name, measure_apply) for name, (package, _) in APPLIERS.items() if package in present]
    table = Table("microseconds", *(f"{many} rows" for many in arguments.batches))
    for title, name, measure in progress(work, "rows of the table"):
        table.row(f"{title}: {name}", *(round(measure(name, many, arguments.rounds)) for many in arguments.batches))


if __name__ == "__main__":
    main()
