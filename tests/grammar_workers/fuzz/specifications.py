"""Random specifications of every kind, each with texts that it nearly allows."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

from grammar_workers import GrammarOptions
from tests.grammar_workers.fuzz.alphabets import Alphabet
from tests.grammar_workers.fuzz.patterns import random_full_pattern
from tests.grammar_workers.fuzz.schemas import SchemaMaker
from tests.grammar_workers.fuzz.spelling import write
from tests.grammar_workers.fuzz.values import ValueMaker
from tests.grammar_workers.lark_grammars import CHARACTERS, draw_grammar

_QUANTIFIERS = ("1", "1", "?", "*", "+", "{2}", "{1,2}", "{0,1}", "{1,}")
_CLASSES = ("UPPER", "LOWER", "LETTER", "DIGIT", "SPACE", "NEWLINE", "PUNCT", "ANY")


@dataclasses.dataclass(frozen=True)
class Drawn:
    """A specification; `texts` that it likely allows (none for JSON), or what draws the values of its schema."""

    specification: dict[str, Any]
    texts: list[str]
    values: ValueMaker | None = None


def draw_specification(rng: random.Random, alphabet: Alphabet) -> Drawn:
    """Mostly JSON Schemas."""
    if rng.random() < 0.68:
        return _schema(rng, alphabet)
    kinds = [_regex, _regex, _regex, _choice, _elements, _positions, _automaton, _grammar, _banned, _both, _both, _tag]
    return rng.choice([*kinds, _substring])(rng, alphabet)


def _schema(rng: random.Random, alphabet: Alphabet) -> Drawn:
    maker = SchemaMaker(rng, alphabet)
    document = maker.document()
    return Drawn({"type": "json_schema", "schema": document}, [], ValueMaker(rng, alphabet, document, maker.patterns))


def _regex(rng: random.Random, alphabet: Alphabet) -> Drawn:
    pattern = random_full_pattern(rng, alphabet, rng.choice([1, 2, 3]))
    return Drawn({"type": "regex", "pattern": pattern.source}, [pattern.sample(rng) for _ in range(12)])


def _choice(rng: random.Random, alphabet: Alphabet) -> Drawn:
    choices = [alphabet.text(4) for _ in range(rng.randrange(1, 5))]
    return Drawn({"type": "choice", "choices": choices}, choices)


def _positions(rng: random.Random, alphabet: Alphabet) -> Drawn:
    allowed = [[alphabet.character() for _ in range(rng.randrange(1, 4))] for _ in range(rng.randrange(1, 4))]
    texts = ["".join(rng.choice(step) for step in allowed) for _ in range(6)]
    return Drawn({"type": "positions", "allowed": allowed}, texts)


def _automaton(rng: random.Random, alphabet: Alphabet) -> Drawn:
    """Mostly a deterministic one; the others are refused."""
    states = [0, 1, "0", "end"][: rng.randrange(1, 5)]
    transitions, text = [], ""
    texts = []
    for source in states:
        for pattern in dict.fromkeys(_one_character(rng, alphabet) for _ in range(rng.randrange(4))):
            transitions.append({"from": source, "to": rng.choice(states), "pattern": pattern})
    samples = [alphabet.character() for _ in range(4)] + ["a", "0", "\n"]
    for _ in range(12):
        text = "".join(rng.choices(samples, k=rng.randrange(5)))
        texts.append(text)
    accepting = rng.sample(states, rng.randrange(1, len(states) + 1))
    named = {one[end] for one in transitions for end in ("from", "to")} | {states[0]}
    accepting = [state for state in accepting if state in named] or [states[0]]
    return Drawn({"type": "automaton", "initial": states[0], "accepting": accepting, "transitions": transitions}, texts)


def _one_character(rng: random.Random, alphabet: Alphabet) -> str:
    """A pattern of single characters; other ones of the same state seldom match the same."""
    escaped = "".join(f"\\{c}" if c in '\\^$.*+?()[]{}|/-"' else c for c in alphabet.character())
    return rng.choice([escaped, escaped, f"[{escaped}]", rf"[^\W{escaped}]", r"\d", r"\n", "[A-Z]", "."])


def _elements(rng: random.Random, alphabet: Alphabet) -> Drawn:
    elements = [
        [rng.choice(_CLASSES) if rng.random() < 0.5 else alphabet.text() or "a", rng.choice(_QUANTIFIERS)]
        for _ in range(rng.randrange(1, 4))
    ]
    samples = dict(zip(_CLASSES, ["A", "a", "a", "0", " ", "\n", ".", "é"], strict=True))
    texts = [
        "".join(samples.get(text, text) * rng.randrange(quantifier not in "?*", 3) for text, quantifier in elements)
        for _ in range(8)
    ]
    return Drawn({"type": "pattern", "elements": elements}, texts)


def _banned(rng: random.Random, alphabet: Alphabet) -> Drawn:
    words = [text for _ in range(rng.randrange(1, 4)) if (text := _word(rng, alphabet))] or ["a"]
    specification: dict[str, Any] = {"type": "banned_words", "words": words}
    for option in ("case_sensitive", "whole_words"):
        if rng.random() < 0.3:
            specification[option] = True
    texts = [alphabet.text(2) + rng.choice([word, word.upper(), ""]) + alphabet.text(2) for word in words * 3]
    return Drawn(specification, texts)


def _substring(rng: random.Random, alphabet: Alphabet) -> Drawn:
    text = "".join(rng.choice([alphabet.character(), alphabet.text(3), " ", "a"]) for _ in range(rng.randrange(12)))
    specification: dict[str, Any] = {"type": "substring", "text": text}
    specification |= {"whole_words": True} if rng.random() < 0.4 else {}
    specification |= {"case_sensitive": False} if rng.random() < 0.4 else {}
    bounds = [sorted((rng.randrange(len(text) + 1), rng.randrange(len(text) + 1))) for _ in range(12)]
    texts = [text[begin:end] for begin, end in bounds]
    return Drawn(specification, [rng.choice([one, one, one.upper(), one + "a", one.lower()]) for one in texts])


def _word(rng: random.Random, alphabet: Alphabet) -> str:
    """Often a part of how JSON is written."""
    if rng.random() < 0.4:
        character = alphabet.character()
        spelled = f"u{ord(character):04x}" if ord(character) < 0x10000 else character
        return rng.choice(["0", "n", "nul", '"', '",', ": ", "\\", "\\n", "u00", "u00", "1e", spelled, spelled[1:]])
    return alphabet.text(2)


# -- grammars ------------------------------------------------------------------------------------------------------


def _grammar(rng: random.Random, alphabet: Alphabet) -> Drawn:
    if rng.random() < 0.3:
        texts = ["".join(rng.choices(CHARACTERS, k=rng.randrange(6))) for _ in range(16)]
        return Drawn({"type": "grammar", "syntax": "lark", "text": draw_grammar(rng, conditions=False)}, texts)
    characters = rng.sample(["a", "b", "é", '"', "😀", "名"], rng.randrange(1, 4))
    rules = ["root", "other"][: rng.randrange(1, 3)]
    is_lark = rng.random() < 0.5
    lines = []
    for rule in rules:
        # The first alternative does not refer to any rule, so every rule has an end.
        alternatives = [_terms(rng, characters, [], is_lark), *(_terms(rng, characters, rules, is_lark) for _ in "ab")]
        alternatives = alternatives[: rng.randrange(1, 4)]
        if rng.random() < 0.15:
            alternatives.append('""' if not is_lark else "")
        lines.append((rule, " | ".join(alternatives)))
    if is_lark:
        text = "".join(f"{'start' if rule == 'root' else rule}: {body}\n" for rule, body in lines)
        text = text.replace("root", "start")
    else:
        text = "".join(f"{rule} ::= {body}\n" for rule, body in lines)
    texts = ["".join(rng.choices(characters, k=rng.randrange(6))) for _ in range(16)]
    return Drawn({"type": "grammar", "syntax": "lark" if is_lark else "gbnf", "text": text}, texts)


def _terms(rng: random.Random, characters: list[str], rules: list[str], is_lark: bool) -> str:
    return " ".join(_term(rng, characters, rules, is_lark) for _ in range(rng.randrange(1, 4)))


def _term(rng: random.Random, characters: list[str], rules: list[str], is_lark: bool) -> str:
    if rules and rng.random() < 0.5:
        atom = rng.choice(rules)
    elif rng.random() < 0.3:
        found = "".join(dict.fromkeys(rng.choices(characters, k=2)))
        atom = f"/[{found}]/" if is_lark else f"[{found}]"
    else:
        literal = "".join(rng.choices(characters, k=rng.randrange(1, 3))).replace('"', '\\"')
        atom = f'"{literal}"'
    form = rng.random()
    if form < 0.7:
        return atom
    if form < 0.8:
        return f"{atom} ~ 1..2" if is_lark else f"{atom}{{1,2}}"
    return f"{atom}{rng.choice('?*+')}"


# -- combinations --------------------------------------------------------------------------------------------------


def _both(rng: random.Random, alphabet: Alphabet) -> Drawn:
    regular = [_regex, _choice, _banned, _elements, _grammar, _substring]
    if rng.random() < 0.6:
        first = _schema(rng, alphabet)
        second = rng.choice([_banned, _banned, _banned, _loose_regex, _choice_of(first)])(rng, alphabet)
    else:
        first, second = (rng.choice(regular)(rng, alphabet) for _ in range(2))
    specifications = [first.specification, second.specification]
    if rng.random() < 0.5:
        specifications.reverse()
    return Drawn({"type": "all_of", "specifications": specifications}, [*first.texts, *second.texts], first.values)


def _loose_regex(rng: random.Random, alphabet: Alphabet) -> Drawn:
    """One that JSON texts match."""
    character = "".join(f"\\{c}" if c in '\\^$.*+?()[]{}|/-"' else c for c in alphabet.characters if c > " ") or "a"
    body = rng.choice([f"[^{character}]", f"[{character}" + r'"{}\[\]:, 0-9a-z]', ".", r"\S", "(?s:.)"])
    return Drawn({"type": "regex", "pattern": body + rng.choice(["*", "+", "{2,8}", "{0,20}"])}, [])


def _choice_of(drawn: Drawn) -> Callable[[random.Random, Alphabet], Drawn]:
    """Some of the texts that a schema likely allows."""

    def make(rng: random.Random, alphabet: Alphabet) -> Drawn:
        assert drawn.values is not None
        choices = [write(drawn.values.near_document(), GrammarOptions()) for _ in range(rng.randrange(1, 5))]
        return Drawn({"type": "choice", "choices": choices}, choices)

    return make


def _tag(rng: random.Random, alphabet: Alphabet) -> Drawn:
    trigger = rng.choice(["<", "<f", alphabet.character() + "<"])
    tags, texts = [], []
    for name in ("=a>", "b>", "")[: rng.randrange(1, 3)]:
        inner = rng.choice([_regex, _choice, _elements, _substring, _small_schema])(rng, alphabet)
        begin = trigger + name
        end = rng.choice([">", "</f>", alphabet.text(2) or ">"])
        tags.append({"begin": begin, "content": inner.specification, "end": end})
        for content in [*inner.texts[:4], "0", '"a"', "true"]:
            texts.append(alphabet.text(2) + begin + content + end + alphabet.text(2))
    specification: dict[str, Any] = {"type": "structural_tag", "triggers": [trigger], "tags": tags}
    for option in ("at_least_one", "stop_after_first"):
        if rng.random() < 0.3:
            specification[option] = True
    return Drawn(specification, texts)


def _small_schema(rng: random.Random, alphabet: Alphabet) -> Drawn:
    schema = rng.choice([{"type": "integer"}, {"type": "boolean"}, {"enum": ["a", alphabet.text()]}, {"maxLength": 2}])
    return Drawn({"type": "json_schema", "schema": schema}, [])
