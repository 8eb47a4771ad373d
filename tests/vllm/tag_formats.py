"""Random formats of structural tags, and walks under the masks of two libraries at once."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import xgrammar

from grammar_workers import Vocabulary, compile_grammar
from grammar_workers.errors import GrammarError
from grammar_workers.options import GrammarOptions

Format = dict[str, Any]

TOKENS: list[bytes] = [
    *(bytes([byte]) for byte in range(128)),
    "é".encode(),
    "｜".encode(),
    b"ab",
    b"<a",
    b"</a>",
    b"<a>",
    b"aab",
    b">b",
    "éa".encode(),
    b'{"a": 1}',
    b'"a"',
]
END = len(TOKENS)
_OPTIONS = GrammarOptions(whitespace="flexible", whitespace_limit=64)


def vocabulary() -> Vocabulary:
    """The tokens and an end."""
    return Vocabulary([*TOKENS, None], eos_token_ids=[END])


def tokenizer_info() -> xgrammar.TokenizerInfo:
    """The same for XGrammar."""
    return xgrammar.TokenizerInfo([*TOKENS, b"</s>"], stop_token_ids=[END])


class Writer:
    """Writes formats at random, small and close to each other, so that what they hold meets in one place."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def text(self, least: int = 0, most: int = 3) -> str:
        return "".join(self._rng.choice("ab<>/é1 ") for _ in range(self._rng.randint(least, most)))

    def _texts(self, most: int, triggers: Sequence[str] = ()) -> list[str]:
        """Texts to exclude beside these triggers; of ASCII, for XGrammar lets repetitions cut characters in two."""
        texts = [self.text(1).replace("é", "a") for _ in range(self._rng.randint(0, most))]
        return [text for text in texts if not any(trigger in text for trigger in triggers)]

    def format(self, depth: int = 3) -> Format:
        """A format of at most this depth."""
        rng = self._rng
        leaves = [self._const, self._any_text, self._regex, self._grammar, self._json]
        inner = [
            self._sequence,
            self._or,
            self._quantified,
            self._tag,
            self._tag,
            self._triggered,
            self._separated,
            self._dispatch,
        ]
        return rng.choice(leaves)() if depth == 0 or rng.random() < 0.2 else rng.choice(inner)(depth - 1)

    def _const(self) -> Format:
        return {"type": "const_string", "value": self.text()}

    def _any_text(self) -> Format:
        limit = {"max_chars": self._rng.randint(0, 4)} if self._rng.random() < 0.3 else {}
        return {"type": "any_text", "excludes": self._texts(2), **limit}

    def _regex(self) -> Format:
        return {"type": "regex", "pattern": self._rng.choice(["[ab]*", "a+b?", "(ab|<)", "[a-z]{1,2}", "é*1"])}

    def _grammar(self) -> Format:
        rules = ['"a" | "b" root', '"<" root ">" | "x"', '("ab")* "1"']
        return {"type": "grammar", "grammar": f"root ::= {self._rng.choice(rules)}"}

    def _json(self) -> Format:
        schemas = [
            {"const": 1},
            {"enum": ["a", "ab", 0]},
            {"type": "boolean"},
            {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": False},
            {"type": "array", "items": {"enum": [0, "a"]}, "minItems": 1, "maxItems": 2},
        ]
        return {"type": "json_schema", "json_schema": self._rng.choice(schemas)}

    def _formats(self, depth: int) -> list[Format]:
        return [self.format(depth) for _ in range(self._rng.randint(1, 3))]

    def _sequence(self, depth: int) -> Format:
        return {"type": "sequence", "elements": self._formats(depth)}

    def _or(self, depth: int) -> Format:
        return {"type": "or", "elements": self._formats(depth)}

    def _quantified(self, depth: int) -> Format:
        name = self._rng.choice(["optional", "plus", "star", "repeat"])
        content = self.format(depth)
        if name != "repeat":
            return {"type": name, "content": content}
        low = self._rng.randint(0, 2)
        return {"type": name, "min": low, "max": self._rng.choice([-1, low, low + 1]), "content": content}

    def _tag(self, depth: int, begin: str | None = None) -> Format:
        end = self.text(1) if self._rng.random() < 0.7 else [self.text(1) for _ in range(2)]
        return {
            "type": "tag",
            "begin": self.text() if begin is None else begin,
            "content": self.format(depth),
            "end": end,
        }

    def _triggered(self, depth: int) -> Format:
        trigger = self.text(1, 2).replace("é", "a")
        tags = [self._tag(depth, trigger + self.text(0, 2)) for _ in range(self._rng.randint(1, 2))]
        return {
            "type": "triggered_tags",
            "triggers": [trigger],
            "tags": tags,
            "at_least_one": self._rng.random() < 0.5,
            "stop_after_first": self._rng.random() < 0.5,
            "excludes": self._texts(1, [trigger]),
        }

    def _separated(self, depth: int) -> Format:
        return {
            "type": "tags_with_separator",
            "tags": [self._tag(depth) for _ in range(self._rng.randint(1, 2))],
            "separator": self.text(),
            "at_least_one": self._rng.random() < 0.5,
            "stop_after_first": self._rng.random() < 0.5,
        }

    def _dispatch(self, depth: int) -> Format:
        patterns = [self.text(1, 2).replace("é", "a") for _ in range(self._rng.randint(1, 2))]
        return {
            "type": "dispatch",
            "rules": [[pattern, self.format(depth)] for pattern in patterns],
            "loop": self._rng.random() < 0.5,
            "excludes": self._texts(1, patterns),
        }


class Pair:
    """One format compiled by both; `refusals` has what each said, None where it accepted."""

    def __init__(self, one: Format) -> None:
        specification = {"type": "structural_tag", "format": one}
        self.ours = self.theirs = None
        self.refusals: list[str | None] = [None, None]
        try:
            self.ours = compile_grammar(specification, vocabulary(), options=_OPTIONS)
        except GrammarError as error:
            self.refusals[0] = f"{type(error).__name__}: {error}"
        try:
            compiler = xgrammar.GrammarCompiler(tokenizer_info(), max_threads=1)
            self.theirs = compiler.compile_structural_tag(specification)
        except Exception as error:
            self.refusals[1] = str(error)

    def masks(self, text: bytes) -> tuple[set[int], set[int]]:
        """What either allows after a text, which is read byte by byte."""
        assert self.ours is not None and self.theirs is not None
        matcher = xgrammar.GrammarMatcher(self.theirs)
        state = self.ours.initial_state
        for byte in text:
            state = self.ours.next_state(state, byte)
            assert matcher.accept_token(byte)
        return self._compare(matcher, state, text)

    def _compare(self, matcher: xgrammar.GrammarMatcher, state: int, text: bytes) -> tuple[set[int], set[int]]:
        bits = xgrammar.allocate_token_bitmask(1, END + 1)
        matcher.fill_next_token_bitmask(bits)
        # Of tokens that are no text any more, XGrammar allows some.
        theirs = {token for token in _members(bits) if token == END or _is_text(text + TOKENS[token])}
        assert self.ours is not None
        return set(self.ours.allowed_tokens(state)) | ({END} if self.ours.is_terminal(state) else set()), theirs

    def walk(self, rng: random.Random, steps: int) -> tuple[str, list[bytes], list[bytes]] | None:
        """Draws allowed tokens. Where masks differ: the text so far, and what only ours and only theirs allows."""
        assert self.ours is not None and self.theirs is not None
        matcher = xgrammar.GrammarMatcher(self.theirs)
        state, text = self.ours.initial_state, b""
        for _ in range(steps):
            ours, theirs = self._compare(matcher, state, text)
            if ours != theirs:
                names = [*TOKENS, b"END"]
                return text.decode(errors="replace"), *(
                    [names[token] for token in sorted(more)] for more in (ours - theirs, theirs - ours)
                )
            token = _draw(rng, ours)
            if token == END:
                return None
            assert matcher.accept_token(token)
            state, text = self.ours.next_state(state, token), text + TOKENS[token]
        return None


def _is_text(data: bytes) -> bool:
    """Whether these bytes are UTF-8, or begin it."""
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return error.reason == "unexpected end of data"
    return True


def _draw(rng: random.Random, allowed: set[int]) -> int:
    """One of these tokens; those that formats are made of come often, the end comes only alone."""
    choices = sorted(allowed - {END}) or [END]
    common = [token for token in choices if token > 127 or chr(token) in "ab<>/1 "]
    return rng.choice(common if common and rng.random() < 0.9 else choices)


def _members(bits: torch.Tensor) -> set[int]:
    words = bits.numpy().view(np.uint8)[0]
    return {int(token) for token in np.flatnonzero(np.unpackbits(words, bitorder="little")) if token <= END}
