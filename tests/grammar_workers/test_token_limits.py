"""Free text with a limit in tokens, against a reader that tries every way to read a sequence of tokens."""

from __future__ import annotations

import functools
import random
from typing import Any

import pytest

from grammar_workers import TokenFSM, Vocabulary, compile_grammar
from grammar_workers.errors import GrammarError, LimitExceededError, UnsupportedFeatureError
from grammar_workers.options import Limits

FORMATS, WALKS, SEQUENCES = 150, 6, 40
Format = dict[str, Any]
TOKENS = [
    *(bytes([byte]) for byte in b"ab</>1 "),
    b"\xc3",
    b"\xa9",
    "é".encode(),
    "éa".encode(),
    b"\xa9a",
    b"a\xc3",
    b"ab",
    b"<a",
    b"</",
    b"/>b",
    b"</a>",
    b"<a>",
    b">a",
    b"<a>b</a>",
]
END, SPECIAL = len(TOKENS), len(TOKENS) + 1
PARTIAL = [TOKENS.index(token) for token in (b"\xc3", b"\xa9", b"\xa9a", b"a\xc3")]


@functools.cache
def vocabulary() -> Vocabulary:
    return Vocabulary([*TOKENS, None, None], [END], {"<tool>": SPECIAL})


def automaton(format_: Format) -> TokenFSM:
    return compile_grammar({"type": "structural_tag", "format": format_}, vocabulary())


class Reader:
    """Which formats a sequence of tokens matches: all ends (in bytes) of what begins at a byte."""

    def __init__(self, tokens: list[int]) -> None:
        self.tokens = tokens
        self.data = b"".join(TOKENS[token] for token in tokens)
        self.begins = []
        length = 0
        for token in tokens:
            self.begins.append(length)
            length += len(TOKENS[token])
        self.characters = {0, len(self.data)}
        self.characters |= {i for i, byte in enumerate(self.data) if byte & 0xC0 != 0x80}

    def matches(self, format_: Format) -> bool:
        try:
            self.data.decode()
        except UnicodeDecodeError:
            return False
        return len(self.data) in self.ends(format_, {0}, [])

    def ends(self, format_: Format, starts: set[int], closing: list[str]) -> set[int]:
        kind = format_["type"]
        if kind == "const_string":
            value = format_["value"].encode()
            return {start + len(value) for start in starts if self.data.startswith(value, start)}
        if kind == "any_text":
            return {end for start in starts for end in self.texts(format_, start, closing)}
        if kind == "any_tokens":
            return {end for start in starts for end in self.runs(format_, start)}
        if kind == "sequence":
            for element in format_["elements"]:
                starts = self.ends(element, starts, closing)
            return starts
        if kind == "or":
            return set().union(*(self.ends(element, starts, closing) for element in format_["elements"]))
        if kind == "optional":
            return starts | self.ends(format_["content"], starts, closing)
        if kind == "star":
            found = set(starts)
            while more := self.ends(format_["content"], found, closing) - found:
                found |= more
            return found
        assert kind == "tag"
        begun = self.ends({"type": "const_string", "value": format_["begin"]}, starts, [])
        inside = self.ends(format_["content"], begun, [format_["end"]])
        return self.ends({"type": "const_string", "value": format_["end"]}, inside, [])

    def runs(self, format_: Format, start: int) -> set[int]:
        found, count = {start}, 0
        if start not in self.begins:
            return found
        for token, begin in zip(self.tokens, self.begins, strict=True):
            if begin < start:
                continue
            count += 1
            if token in format_["exclude_tokens"] or count > format_.get("max_tokens", count):
                break
            found.add(begin + len(TOKENS[token]))
        return found

    def texts(self, format_: Format, start: int, closing: list[str]) -> set[int]:
        found = set()
        for end in self.characters:
            if end < start:
                continue
            text = self.data[start:end].decode()
            tokens = sum(start <= begin < end and begin in self.characters for begin in self.begins)
            if (
                not any(excluded in text for excluded in (*format_.get("excludes", ()), *closing))
                and len(text) <= format_.get("max_chars", len(text))
                and tokens <= format_.get("max_tokens", tokens)
                and not (text and format_.get("max_tokens") == 0)
            ):
                found.add(end)
        return found


def draw(rng: random.Random, depth: int = 2) -> Format:
    def text(least: int, most: int) -> str:
        return "".join(rng.choice("ab</>é") for _ in range(rng.randint(least, most)))

    kind = rng.choice(
        ["any_text", "any_text", "any_text", "any_tokens"]
        + (["sequence", "or", "optional", "star", "tag", "tag"] if depth else [])
    )
    if kind == "any_text":
        format_: Format = {"type": kind, "max_tokens": rng.choice([0, 1, 1, 2, 3, 5])}
        if rng.random() < 0.4:
            format_["excludes"] = [text(1, 2) for _ in range(rng.randint(1, 2))]
        if rng.random() < 0.3:
            format_["max_chars"] = rng.randint(0, 6)
        return format_
    if kind == "any_tokens":
        excluded = {*PARTIAL, SPECIAL, *rng.sample(range(END), rng.randint(0, 4))}
        format_ = {"type": kind, "exclude_tokens": sorted(excluded)}
        return format_ | ({"max_tokens": rng.randint(0, 3)} if rng.random() < 0.6 else {})
    if kind == "tag":
        return {"type": kind, "begin": text(0, 3), "content": draw(rng, depth - 1), "end": text(1, 4)}
    if kind in ("sequence", "or"):
        elements = [
            draw(rng, depth - 1) if rng.random() < 0.7 else {"type": "const_string", "value": text(1, 3)}
            for _ in range(rng.randint(2, 3))
        ]
        return {"type": kind, "elements": elements}
    return {"type": kind, "content": draw(rng, depth - 1)}


def accepts(fsm: TokenFSM, tokens: list[int]) -> bool:
    state = fsm.initial_state
    for token in tokens:
        state = fsm.next_state(state, token)
        if state < 0:
            return False
    return fsm.is_terminal(state)


def check(number: int) -> bool:
    """One format drawn at random; False where it is refused."""
    rng = random.Random(f"token limits {number}")
    format_ = draw(rng)
    try:
        fsm = automaton(format_)
    except (LimitExceededError, UnsupportedFeatureError):
        return False
    drawn = []
    for _ in range(WALKS):
        state, walked = fsm.initial_state, list[int]()
        for _ in range(12):
            allowed = sorted(fsm.allowed_tokens(state))
            assert allowed, (format_, walked)
            token = rng.choice(allowed)
            assert (fsm.next_state(state, token)) >= 0, (format_, walked, token)
            # From everywhere there is a way to an end, and the tokens of the shortest one lead along it.
            way = fsm.shortest_completion(state)
            assert Reader([*walked, *way]).matches(format_), (format_, walked, way)
            assert accepts(fsm, [*walked, *way]), (format_, walked, way)
            drawn.append([*walked, *way])
            if token == END:
                break
            walked.append(token)
            state = fsm.next_state(state, token)
    for _ in range(SEQUENCES):
        tokens = list(rng.choice(drawn)) if rng.random() < 0.8 else []
        for _ in range(rng.randint(0, 3)):
            place = rng.randint(0, len(tokens))
            tokens[place : place + rng.randint(0, 2)] = rng.choices(range(END), k=rng.randint(0, 2))
        assert accepts(fsm, tokens) == Reader(tokens).matches(format_), (format_, [TOKENS[one] for one in tokens])
    return True


def test_random_formats_are_read_like_their_definition() -> None:
    assert sum(check(number) for number in range(FORMATS)) > 0.7 * FORMATS


def test_automata_that_were_stored_count_alike() -> None:
    fsm = automaton({"type": "any_text", "max_tokens": 2})
    read = TokenFSM.from_bytes(fsm.to_bytes(), vocabulary())
    for one in (fsm, read):
        assert accepts(one, [0, 0]) and not accepts(one, [0, 0, 0])
        # What completes a character belongs to the token before.
        assert accepts(one, [0, TOKENS.index(b"\xc3"), TOKENS.index(b"\xa9")])


def test_tokens_of_a_large_vocabulary_are_no_burden() -> None:
    words = Vocabulary(
        [*(bytes([byte]) for byte in range(256)), *(b"w%d" % n for n in range(130_000)), None], [130_256]
    )
    tokens = {"type": "any_tokens", "exclude_tokens": [7, "w9"], "max_tokens": 40}
    for content in ({"type": "any_text", "max_tokens": 200}, tokens):
        tag = {"type": "tag", "begin": "<a>", "content": content, "end": "</a>"}
        fsm = compile_grammar({"type": "structural_tag", "format": tag}, words)
        assert len(fsm.to_bytes()) < 1_000_000
        state = functools.reduce(fsm.next_state, b"<a>", fsm.initial_state)
        for _ in range(content["max_tokens"]):
            assert fsm.count_allowed(state) > 129_000
            state = fsm.next_state(state, 300)
        assert fsm.allowed_tokens(state) == {ord("<")}


@pytest.mark.parametrize(
    ("specification", "pointer"),
    [
        ({"elements": [{"type": "json_schema", "json_schema": {"type": "integer"}}]}, "/format/elements/0"),
        ({"elements": [{"type": "grammar", "grammar": 'root ::= "<" root ">" | "a"'}]}, "/format/elements/0"),
    ],
)
def test_what_does_not_end_before_the_limited_text_is_refused(specification: Format, pointer: str) -> None:
    elements = [*specification["elements"], {"type": "any_text", "max_tokens": 2, "excludes": ["{"]}]
    with pytest.raises(UnsupportedFeatureError) as caught:
        automaton({"type": "sequence", "elements": elements})
    assert caught.value.pointer == pointer


def test_banned_words_beside_a_limit_in_tokens_are_refused() -> None:
    tag = {"type": "structural_tag", "format": {"type": "any_text", "max_tokens": 2}}
    banned = {"type": "banned_words", "words": ["a"]}
    with pytest.raises(UnsupportedFeatureError) as caught:
        compile_grammar({"type": "all_of", "specifications": [tag, banned]}, vocabulary())
    assert caught.value.pointer == "/specifications/1"


def test_too_many_tokens_name_the_limit() -> None:
    with pytest.raises(GrammarError) as caught:
        automaton({"type": "any_text", "max_tokens": 2**31 - 1, "excludes": ["aab"]})
    assert isinstance(caught.value, LimitExceededError) and caught.value.pointer == "/format/max_tokens"
    with pytest.raises(LimitExceededError):
        tag = {"type": "structural_tag", "format": {"type": "any_text", "max_tokens": 5000}}
        compile_grammar(tag, vocabulary(), limits=Limits(max_regex_states=1000))
