"""What does it cost to keep the items of an array unique?

    python -m benchmarks.unique_items [--vocabulary tekken]

Arrays whose items are not listed are walked token by token, as a model would write them, with `uniqueItems` and
without; each time is the CPU of one thread for one mask row and the step over the next token, both for the first time.
No peer enforces the keyword: the column without it is our own automaton. The last rows are arrays whose values are
nearly or all used up, where most has to be searched.

Exit status 1 when p50 is over 1 ms, p99 over 20 ms in the usual arrays, or any mask over 250 ms.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from tqdm import tqdm

from benchmarks.vocabularies import named_encoder, named_vocabulary
from grammar_workers import Vocabulary, compile_grammar, warm_up
from grammar_workers.gc_control import collect_seldom

P50_MS, P99_MS, MOST_MS = 1.0, 20.0, 250.0
Array = tuple[dict[str, Any], list[Any]]
"""A schema of items, and items."""
_WORDS = ["red", "green", "blue", "amber", "ivory", "slate", "coral", "olive", "pearl", "bronze", "cobalt", "jade"]


def _names(rng: random.Random, many: int) -> list[str]:
    names = {" ".join(rng.sample(_WORDS, 2)): None for _ in range(many * 3)}
    return list(names)[:many]


def _people(rng: random.Random, many: int) -> list[dict[str, Any]]:
    return [{"name": name, "age": rng.randrange(18, 90), "tags": rng.sample(_WORDS, 2)} for name in _names(rng, many)]


_PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


def usual_arrays(rng: random.Random) -> dict[str, Array]:
    integers, prices = rng.sample(range(10_000), 200), [round(rng.uniform(1, 900), 2) for _ in range(100)]
    mixed: list[Any] = [*_names(rng, 20), *rng.sample(range(99), 20), *_people(rng, 10), [1, "a"], None, True]
    return {
        "20 strings": ({"type": "string"}, _names(rng, 20)),
        "200 strings": ({"type": "string"}, _names(rng, 200)),
        "200 integers": ({"type": "integer"}, integers),
        "100 numbers": ({"type": "number"}, list(dict.fromkeys(prices))),
        "10 objects": (_PERSON, _people(rng, 10)),
        "50 objects": (_PERSON, _people(rng, 50)),
        "30 e-mail addresses": (
            {"type": "string", "format": "email"},
            [f"{name.replace(' ', '.')}@example.com" for name in _names(rng, 30)],
        ),
        "53 values of any kind": ({}, rng.sample(mixed, len(mixed))),
    }


def hard_arrays() -> dict[str, Array]:
    deep = {"type": "array", "items": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2}, "maxItems": 2}
    pairs = [list(pair) for many in range(3) for pair in itertools.product([False, True], repeat=many)]
    return {
        "the 11 integers from 0 to 10": ({"type": "integer", "minimum": 0, "maximum": 10}, list(range(11))),
        "the 1,000 integers below 1,000": ({"type": "integer", "minimum": 0, "maximum": 999}, list(range(1000))),
        "the 256 strings ^[ab]{8}$": (
            {"type": "string", "pattern": "^[ab]{8}$"},
            ["".join(letters) for letters in itertools.product("ab", repeat=8)],
        ),
        "the 57 arrays of booleans, two deep": (
            deep,
            [list(part) for many in range(3) for part in itertools.product(pairs, repeat=many)],
        ),
        "5,000 strings": ({"type": "string"}, [f"item {number}" for number in range(5000)]),
    }


def mask_times(schema: Any, text: str, vocabulary: Vocabulary, encode: Callable[[str], list[int]]) -> Iterator[float]:
    """Milliseconds of CPU for each token of a text: its mask row, and the step over it."""
    fsm = compile_grammar({"type": "json_schema", "schema": schema}, vocabulary)
    state = fsm.initial_state
    for token in encode(text):
        began = time.thread_time()
        fsm.allowed_mask(state)
        state = fsm.next_state(state, token)
        yield (time.thread_time() - began) * 1000
        assert state >= 0, text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocabulary", default="tekken", help="tekken, sentencepiece, or a model (default tekken)")
    options = parser.parse_args()
    vocabulary, encode = named_vocabulary(options.vocabulary), named_encoder(options.vocabulary)
    warm_up(vocabulary)
    # As a process that serves does.
    collect_seldom()
    usual, hard = usual_arrays(random.Random(1)), hard_arrays()
    rows, missed = [], []
    for name, (items, values) in tqdm({**usual, **hard}.items(), desc="arrays", disable=None):
        array = {"type": "array", "items": items}
        text = json.dumps(values)
        plain = np.array(list(mask_times(array, text, vocabulary, encode)))
        unique = np.array(list(mask_times({**array, "uniqueItems": True}, text, vocabulary, encode)))
        p50, p99, most = np.quantile(unique, [0.5, 0.99, 1])
        if (name in usual and (p50 > P50_MS or p99 > P99_MS)) or most > MOST_MS:
            missed.append(name)
        without = " / ".join(f"{time_ms:.2f}" for time_ms in np.quantile(plain, [0.5, 0.99, 1]))
        rows.append(f"| {name} | {len(unique)} | {p50:.2f} / {p99:.1f} / {most:.1f} | {without} |")
    print(f"{options.vocabulary}, {vocabulary.size:,} tokens; ms of CPU a token, p50 / p99 / slowest\n")
    print("| array | tokens | `uniqueItems` | without |\n|---|---|---|---|")
    print("\n".join(rows))
    print(f"\nMissed: {', '.join(missed) or 'none'}")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
