"""Run as a program: loads automata whose tables somebody has tampered with, and uses whatever is not refused.

The digest of an artifact keeps accidents out, not somebody who can write to the store: the tables themselves must be
checked. Run in a process of its own, because what this looks for is a crash.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from grammar_workers import GrammarError, Limits, TokenFSM, compile_grammar
from grammar_workers.artifacts import artifact
from grammar_workers.matching.distinct.recognizer import DistinctRecognizer
from grammar_workers.matching.pushdown_recognizer import PushdownRecognizer
from grammar_workers.pushdown.builder import PushdownBuilder
from tests.grammar_workers.specifications import CORNER_CASES, RECURSIVE_GRAMMARS, TOOL_CALL
from tests.grammar_workers.vocabularies import bytes_vocabulary

INTERESTING = [-(2**31), -1000, -2, -1, 0, 1, 2, 3, 7, 8, 31, 64, 255, 256, 257, 1000, 2**16, 2**31 - 2, 2**31 - 1]
Arrays = list[NDArray[Any]]


WIDTHS = (5, 256, 8, 2, 1, 4, 4, 2, 4)
"""Columns of states, table, ops, guards, returns, loops, token edges, boundaries and distinct values."""


def arrays_of(payload: bytes) -> Arrays:
    lengths = np.frombuffer(payload[: 8 * len(WIDTHS)], "<i8").tolist()
    arrays = []
    position = 8 * len(WIDTHS)
    for width, length in zip(WIDTHS, lengths, strict=True):
        array = np.frombuffer(payload, "<i4", length * width, position).copy()
        arrays.append(array.reshape(-1, width) if width > 1 else array)
        position += array.nbytes
    return arrays


def payload_of(arrays: Arrays) -> bytes:
    lengths = np.array([len(array) for array in arrays], "<i8")
    return b"".join([lengths.tobytes(), *(array.astype("<i4").tobytes() for array in arrays)])


def tampered(arrays: Arrays, rng: random.Random) -> Arrays:
    """A copy with a few entries replaced, copied from elsewhere in the same column, or rows dropped."""
    result = [array.copy() for array in arrays]
    for _ in range(rng.choice([1, 1, 2, 5, 20])):
        filled = [array for array in result if array.size]
        if not filled:
            break
        array = rng.choice(filled)
        index = tuple(rng.randrange(size) for size in array.shape)
        kind = rng.randrange(4)
        if kind == 0:
            array[index] = rng.choice(INTERESTING)
        elif kind == 1:
            array[index] = array[(rng.randrange(len(array)), *index[1:])]
        elif kind == 2:
            array[index] ^= 1
        else:
            position = next(i for i, other in enumerate(result) if other is array)
            result[position] = array[: rng.randrange(len(array) + 1)]
    return result


def use(fsm: TokenFSM, rng: random.Random) -> None:
    """Everything a replica does with an automaton. Typed errors are fine; crashing and hanging are not."""
    for _ in range(3):
        state = fsm.initial_state
        for _ in range(12):
            allowed = np.flatnonzero(np.unpackbits(fsm.allowed_mask(state).view(np.uint8), bitorder="little"))
            fsm.next_state(state, rng.randrange(fsm.vocabulary.size))
            if not len(allowed):
                break
            target = fsm.next_state(state, int(allowed[rng.randrange(len(allowed))]))
            if target < 0:
                break
            state = target
        fsm.forced_tokens(state)
        fsm.is_terminal(state)
        fsm.successors(state, range(fsm.vocabulary.size))
        completed(fsm, state)
    fsm.prefetch_masks(100)
    fsm.device_tables(ahead=20)
    fsm.materialize(max_states=20)


def completed(fsm: TokenFSM, state: int) -> None:
    for token in fsm.shortest_completion(state, limit=10_000)[:20]:
        state = fsm.next_state(state, token)


def payload_in(fsm: TokenFSM) -> bytes:
    """The payload of its artifact: the kind of automaton, then its tables."""
    return artifact.verify(fsm.to_bytes(), key=None, fingerprint=fsm.vocabulary.fingerprint).payload(1 << 30)


def tables_in(fsm: TokenFSM) -> bytes:
    return payload_in(fsm).removeprefix(PushdownRecognizer.KIND)


def load(payload: bytes, kind: bytes = PushdownRecognizer.KIND) -> TokenFSM:
    """What a store that others can write to may hold: any tables under a right digest."""
    vocabulary = bytes_vocabulary()
    data = artifact.pack(kind + payload, key="0" * 64, fingerprint=vocabulary.fingerprint)
    return TokenFSM.from_bytes(data, vocabulary)


def used(payloads: Iterable[bytes], rng: random.Random, kind: bytes = PushdownRecognizer.KIND) -> int:
    """How many of the payloads were not refused; each of these is used."""
    loaded = 0
    for payload in payloads:
        try:
            fsm = load(payload, kind)
            loaded += 1
            use(fsm, rng)
        except (artifact.ArtifactError, GrammarError):
            continue
    return loaded


DISTINCT = (
    {"type": "array", "items": {"type": ["string", "number"]}, "uniqueItems": True, "minItems": 2},
    {"type": "array", "items": {"items": {"uniqueItems": True}, "properties": {"a": {}}}, "uniqueItems": True},
    {"type": "object", "minProperties": 2, "additionalProperties": {"uniqueItems": True}},
)
"""Schemas of values that must differ from each other."""


def tampered_payloads(rounds: int, rng: random.Random) -> Iterator[bytes]:
    plain = [specification for name, specification in CORNER_CASES.items() if name not in RECURSIVE_GRAMMARS]
    originals = [tables_in(compile_grammar(specification, bytes_vocabulary())) for specification in [*plain, TOOL_CALL]]
    yield from _tampered_with(originals, rounds, rng)


def tampered_with_distinct_values(rounds: int, rng: random.Random) -> Iterator[bytes]:
    compiled = (compile_grammar({"type": "json_schema", "schema": schema}, bytes_vocabulary()) for schema in DISTINCT)
    originals = [payload_in(fsm).removeprefix(DistinctRecognizer.KIND) for fsm in compiled]
    yield from _tampered_with(originals, rounds, rng)


def _tampered_with(originals: list[bytes], rounds: int, rng: random.Random) -> Iterator[bytes]:
    for _ in range(rounds):
        yield payload_of(tampered(arrays_of(rng.choice(originals)), rng))


def tampered_graphs(rounds: int, rng: random.Random) -> Iterator[bytes]:
    """Payloads of recursive grammars in which a few integers and bytes have been replaced."""
    vocabulary = bytes_vocabulary()
    originals = [payload_in(compile_grammar(CORNER_CASES[name], vocabulary)) for name in sorted(RECURSIVE_GRAMMARS)]
    for _ in range(rounds):
        data = bytearray(rng.choice(originals))
        for _ in range(rng.choice([1, 1, 2, 5])):
            place = rng.randrange(1, len(data) - 4)
            value = rng.choice([*INTERESTING, rng.randrange(64)]) & 0xFFFFFFFF
            data[place : place + 4] = value.to_bytes(4, "little") if rng.random() < 0.5 else data[place : place + 4]
            data[place] ^= rng.choice([0, 1, 2, 0xFF])
        yield bytes(data)


def payloads_with_wild_registers() -> Iterator[bytes]:
    """A string's bounds and the counter come from different tables: neither has to fit the other."""
    for counter in (-(2**31), -1000, -1, 4, 1000, 2**31 - 1):
        for bounds in ((0, 3), (2, 3), (5, 3), (0, -1), (7, -1), (-(2**31), 2**31 - 1), (0, -(2**31))):
            builder = PushdownBuilder(Limits())
            start = builder.state()
            inside = builder.state(loop=builder.loop(*bounds))
            builder.fill(inside, row=builder.row(dict.fromkeys(range(256), inside)), loop=builder.loop(*bounds))
            builder.fill(start, op=builder.goto(inside, assign=counter))
            yield builder.build(start).to_bytes()


def main(seed: str, *tasks: str) -> None:
    """Print how many tables of each task were loaded. A task is a kind of tables and a number of rounds, as KIND=N."""
    for task in tasks:
        kind, _, rounds = task.partition("=")
        numbers = random.Random(seed)
        if kind == "counters":
            loaded = used(payloads_with_wild_registers(), numbers)
        elif kind == "graphs":
            loaded = used(tampered_graphs(int(rounds), numbers), numbers, b"")
        elif kind == "distinct":
            loaded = used(tampered_with_distinct_values(int(rounds), numbers), numbers, DistinctRecognizer.KIND)
        else:
            loaded = used(tampered_payloads(int(rounds), numbers), numbers)
        print(task, loaded, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
