"""Banned words: how many of many random generations hold one (none may), and what compiling costs.

For each of three vocabularies, texts are walked at random through the masks, some leaning toward the beginnings of
banned words, and finished on a shortest way. Python's `str.casefold` and `re` then search each finished text.

    python -m tests.grammar_workers.banned_words --generations 10000
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from tqdm import tqdm

from benchmarks.vocabularies import sentencepiece_vocabulary, tekken_vocabulary
from grammar_workers import TokenFSM, Vocabulary, compile_grammar

WORDS = ["the", "in", "straße", "qu", "no way", "e ", "ation", "İstanbul", "на", "'s", "1"]
CHARACTERS = "\n !$&',-.3:;?ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
WITHIN: dict[str, list[dict[str, Any]]] = {
    "free text": [],
    "json_object": [{"type": "json_object"}],
    "regex": [{"type": "regex", "pattern": r"[A-Z][\w ,.'!?-]*"}],
}


def characters_vocabulary() -> Vocabulary:
    """65 characters, each a token."""
    return Vocabulary([*(character.encode() for character in CHARACTERS), None], [len(CHARACTERS)])


VOCABULARIES = {
    "tekken 131k": tekken_vocabulary,
    "sentencepiece 32k": sentencepiece_vocabulary,
    "characters 65": characters_vocabulary,
}


def walk(fsm: TokenFSM, rng: random.Random, likely: set[int], longest: int) -> bytes:
    """The text of up to `longest` random tokens, half of them out of `likely` where allowed, finished shortly."""
    vocabulary = fsm.vocabulary
    state = fsm.initial_state
    tokens: list[int] = []
    for _ in range(longest):
        bits = np.unpackbits(fsm.allowed_mask(state).view(np.uint8), bitorder="little")
        allowed = np.flatnonzero(bits)
        tempting = [token for token in likely if bits[token]]
        token = rng.choice(tempting) if tempting and rng.random() < 0.5 else int(allowed[rng.randrange(len(allowed))])
        if token in vocabulary.eos_token_ids:
            break
        state = fsm.next_state(state, token)
        tokens.append(token)
    return b"".join(map(vocabulary.token_bytes, [*tokens, *fsm.shortest_completion(state)]))


def strings_in(value: Any) -> Iterator[str]:
    """Every string and property name of a JSON value."""
    if isinstance(value, str):
        yield value
    for name, member in value.items() if isinstance(value, dict) else ():
        yield name
        yield from strings_in(member)
    for item in value if isinstance(value, list) else ():
        yield from strings_in(item)


def holds(text: str, whole_words: bool) -> bool:
    """Whether Python finds a banned word in the text or, where it is JSON, in a decoded string."""
    words = [re.escape(word.casefold()) for word in WORDS]
    pattern = re.compile("|".join(rf"(?<!\w){word}(?!\w)" if whole_words else word for word in words))
    return pattern.search(text.casefold()) is not None


def main() -> int:
    """Print the table; exit code 1 when a banned word came up."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--generations", type=int, default=10_000, help="in all, spread over the rows of the table")
    parser.add_argument("--longest", type=int, default=24, help="random tokens per generation")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    cases = [
        (vocabulary, within, whole)
        for vocabulary in VOCABULARIES
        for within in WITHIN
        for whole in (False, True)
        if not (vocabulary == "characters 65" and within == "json_object")
    ]
    each = -(-arguments.generations // len(cases))
    print(
        f"{'vocabulary':18} {'within':12} {'whole':5} {'compile ms':>10} {'states':>6} {'texts':>6} {'with a word':>11}"
    )
    failures = 0
    for name, within, whole in cases:
        vocabulary = VOCABULARIES[name]()
        banned = {"type": "banned_words", "words": WORDS, "whole_words": whole}
        begin = time.thread_time()
        fsm = compile_grammar({"type": "all_of", "specifications": [*WITHIN[within], banned]}, vocabulary)
        seconds = time.thread_time() - begin
        likely = {
            tokens[0]
            for word in WORDS
            for start in (word, f" {word}", word.upper(), word[1:])
            if (tokens := vocabulary.encode(start.encode()))
        }
        found = 0
        for _ in tqdm(range(each), desc=f"{name}, {within}", leave=False):
            text = walk(fsm, rng, likely, arguments.longest).decode()
            texts = [text, *(strings_in(json.loads(text)) if within == "json_object" else ())]
            found += any(holds(one, whole) for one in texts)
        failures += found
        states = fsm.state_count
        print(f"{name:18} {within:12} {whole!s:5} {seconds * 1e3:10.1f} {states:6} {each:6} {found:11}", flush=True)
    print(f"{failures} of {each * len(cases)} generations hold a banned word")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
