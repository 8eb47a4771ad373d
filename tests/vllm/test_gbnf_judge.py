"""Random GBNF grammars, judged by a reader that is not ours: xgrammar's, which vLLM installs."""

from __future__ import annotations

import itertools
import random

import pytest
from xgrammar import Grammar, GrammarCompiler, GrammarMatcher, TokenizerInfo

from grammar_workers import Vocabulary, compile_grammar
from grammar_workers.errors import LimitExceededError, UnsatisfiableError

LETTERS = "ab#"
TEXTS = ["".join(text) for length in range(6) for text in itertools.product(LETTERS, repeat=length)]
LITERALS = ["a", "b", "#", "ab", "a#b", "\\x61", "b\\u0023"]
CLASSES = ["[ab]", "[^a]", "[#b]", "[a-b]", "[\\x61#]", "[^b#]"]
COUNTS = ["", "", "", "?", "*", "+", "{2}", "{1,2}", "{0,3}", "{2,}"]
END = 256


def drawn(rng: random.Random) -> str:
    """Three rules, the last one without calls, with comments that look like rules, quotes and brackets."""

    def term(number: int, depth: int = 0) -> str:
        kind = rng.random()
        if kind < 0.3 and number < 2:
            return f"r{rng.randrange(number + (rng.random() < 0.9), 3)}"
        if kind < 0.45 and depth < 1:
            return f"({alternatives(number, depth + 1)}){rng.choice(COUNTS)}"
        return (rng.choice(CLASSES) if kind < 0.7 else f'"{rng.choice(LITERALS)}"') + rng.choice(COUNTS)

    def alternatives(number: int, depth: int = 0) -> str:
        many = rng.randrange(1, 3)
        return " | ".join(" ".join(term(number, depth) for _ in range(rng.randrange(1, 4))) for _ in range(many))

    lines = ["root ::= r0"]
    for number in range(3):
        comment = rng.choice(["", ' # r0 ::= "b"', " # [ ( |", " #", '\n# "a'])
        # An alternative without a call, so that every rule ends.
        lines.append(f'r{number} ::= {alternatives(number)} | "{rng.choice(LITERALS)}"{comment}')
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("seed", range(8))
def test_both_readers_accept_the_same_texts(seed: int) -> None:
    tokens = [bytes([byte]) for byte in range(256)]
    vocabulary = Vocabulary([*tokens, None], [END])
    compiler = GrammarCompiler(TokenizerInfo([*tokens, b"</s>"], vocab_size=END + 1, stop_token_ids=[END]))
    rng = random.Random(seed)
    accepted = large = 0
    for _ in range(25):
        text = drawn(rng)
        try:
            fsm = compile_grammar({"type": "grammar", "syntax": "gbnf", "text": text}, vocabulary)
        except UnsatisfiableError:
            fsm = None
        except LimitExceededError:
            large += 1
            continue
        compiled = compiler.compile_grammar(Grammar.from_ebnf(text))
        for one in TEXTS:
            matcher = GrammarMatcher(compiled)
            theirs = all(matcher.accept_token(byte) for byte in one.encode()) and matcher.accept_token(END)
            state = -1 if fsm is None else fsm.initial_state
            for byte in one.encode():
                state = state if fsm is None or state < 0 else fsm.next_state(state, byte)
            ours = fsm is not None and state >= 0 and fsm.is_terminal(state)
            assert ours == theirs, (one, text)
            accepted += ours
    assert accepted > 200 and large < 3
