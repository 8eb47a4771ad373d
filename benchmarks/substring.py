"""Measure the constraint *substring of a text*, for a text of 100 kB: compilation, and masks of citations.

    python -m benchmarks.substring [FILE ...] [--citations 2000] [--json]

The vocabulary has 131,072 tokens. The default text is this repository's documentation. Citations begin anywhere in the
text and have 1 to 60 tokens of the canonical tokenization. The CPU time of every mask is measured at the first visit of
its state. In half of the citations, the last 3 tokens are replaced by random allowed tokens. Python's `in` decides if
each citation is valid.
"""

from __future__ import annotations

import json
import random
import resource
import time
from pathlib import Path

import numpy as np

from benchmarks.frame import new_parser
from benchmarks.texts import allowed_tokens
from benchmarks.vocabularies import tekken_encoding, tekken_vocabulary
from grammar_workers import TokenFSM, compile_grammar, warm_up

_BYTES = 100_000


def main() -> None:
    """Parse the command line, compile the constraint and print the figures."""
    parser = new_parser(__doc__)
    parser.add_argument("files", nargs="*", type=Path, default=sorted(Path("docs").glob("*.md")))
    parser.add_argument("--citations", type=int, default=2000)
    parser.add_argument("--json", action="store_true", help="the spans are JSON strings")
    options = parser.parse_args()
    text = "".join(file.read_text() for file in options.files).encode()[:_BYTES].decode(errors="ignore")
    vocabulary = tekken_vocabulary()
    warm_up(vocabulary)
    if options.json:
        spec = {"type": "json_schema", "schema": {"type": "string", "x-turnstile": {"substring_of": text}}}
    else:
        spec = {"type": "substring", "text": text}
    compile_grammar({"type": "substring", "text": "some text"}, vocabulary)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started, cpu = time.perf_counter(), time.process_time()
    fsm = compile_grammar(spec, vocabulary)
    print(f"text      {len(text.encode()):,} bytes, {len(text):,} characters")
    print(f"compiled  in {time.perf_counter() - started:.2f} s, {time.process_time() - cpu:.2f} s of CPU")
    print(f"memory    {(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024:.0f} MiB more at the peak")
    started = time.perf_counter()
    data = fsm.to_bytes()
    print(f"artifact  {len(data):,} bytes, written in {time.perf_counter() - started:.2f} s", end=", ")
    started = time.perf_counter()
    fsm = TokenFSM.from_bytes(data, vocabulary)
    print(f"read in {time.perf_counter() - started:.2f} s")
    _masks(fsm, text, random.Random(0), options.citations, quoted=options.json)


def _masks(fsm: TokenFSM, text: str, rng: random.Random, citations: int, *, quoted: bool) -> None:
    vocabulary, encoding = tekken_vocabulary(), tekken_encoding()
    seconds: list[float] = []
    invalid = 0
    seen: set[int] = set()
    for number in range(citations):
        begin = rng.randrange(len(text) - 1)
        span = encoding.decode(encoding.encode(text[begin : begin + 300])[: rng.randint(1, 60)])
        tokens = encoding.encode(json.dumps(span, ensure_ascii=False)[:-1] if quoted else span)
        if number % 2 and len(tokens) > 4:
            tokens[-3:] = [-1] * 3
        state, output = fsm.initial_state, b""
        for token in [*tokens, None]:
            started = time.thread_time()
            fsm.allowed_mask(state)
            if state not in seen:
                seconds.append(time.thread_time() - started)
                seen.add(state)
            if token is None:
                break
            if token < 0:
                allowed = [one for one in allowed_tokens(fsm, state) if one not in vocabulary.eos_token_ids]
                if not allowed:
                    break
                token = int(rng.choice(allowed))
            state = fsm.next_state(state, token)
            if state < 0:
                break
            output += vocabulary.token_bytes(token)
        shown = output.decode(errors="ignore")
        if state < 0 or (not quoted and shown not in text):
            invalid += 1
    found = np.array(seconds) * 1e6
    print(
        f"masks     {len(found):,} first ones, p50 {np.percentile(found, 50):.1f}, p99 {np.percentile(found, 99):.1f}, "
        f"max {found.max():.1f} us"
    )
    print(f"invalid   {invalid} of {citations}")


if __name__ == "__main__":
    main()
