"""Rule graphs: regular grammars do without, stored ones are checked, and they combine with regular specifications."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from grammar_workers import Limits, TokenFSM, compile_grammar
from grammar_workers.dfa import charset
from grammar_workers.errors import GrammarError, UnsatisfiableError, UnsupportedFeatureError
from grammar_workers.languages.cfg.reading import read_grammar, rule_graph
from grammar_workers.languages.cfg.rule_graph import RuleGraph
from grammar_workers.matching.cfg_recognizer import CfgRecognizer
from grammar_workers.matching.pushdown_recognizer import PushdownRecognizer
from tests.grammar_workers.hostile_tables import INTERESTING, use
from tests.grammar_workers.vocabularies import accepts, bytes_vocabulary, random_walk, text_of

TREES = 'root ::= "(" root ")" | [a-z]+ | root "," root'


def gbnf(text: str) -> dict[str, Any]:
    return {"type": "grammar", "syntax": "gbnf", "text": text}


def graph_of(text: str) -> RuleGraph:
    network = read_grammar(text, "gbnf", charset.ALL, Limits())
    return rule_graph(network, None, Limits())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ('root ::= root [a-z] | "_"', "_ab", "a_"),
        ('root ::= "b" root | "a" other\nother ::= "x" root | "y"', "baxay", "bax"),
        ('root ::= a "x" | "r"\na ::= b "y" | "q"\nb ::= root "z"', "rzyx", "rzy"),
        ('root ::= item ("," item)*\nitem ::= [0-9]{1,3} | "none"', "1,none,234", "1,,"),
        ('root ::= a\na ::= b | "("\nb ::= a | ")"', ")", "()"),
    ],
)
def test_recursion_that_is_regular_becomes_a_finite_automaton(text: str, inside: str, outside: str) -> None:
    fsm = compile_grammar(gbnf(text), bytes_vocabulary())
    assert isinstance(fsm._recognizer, PushdownRecognizer)
    assert accepts(fsm, inside) and not accepts(fsm, outside)
    assert fsm.materialize() == fsm.state_count


def test_a_grammar_with_true_recursion_survives_storage() -> None:
    fsm = compile_grammar(gbnf(TREES), bytes_vocabulary())
    assert isinstance(fsm._recognizer, CfgRecognizer)
    loaded = TokenFSM.from_bytes(fsm.to_bytes(), bytes_vocabulary(), key=fsm.key)
    rng = random.Random(1)
    for _ in range(10):
        assert accepts(loaded, text_of(fsm.vocabulary, random_walk(fsm, rng)))
    assert len(fsm.to_bytes()) < 1000


def test_tampered_graphs_are_refused_or_harmless() -> None:
    rng = random.Random(3)
    originals = [graph_of(text).to_bytes() for text in (TREES, 'root ::= root root "é" | "a" | "(" root? ")"')]
    loaded = 0
    for _ in range(400):
        payload = bytearray(rng.choice(originals))
        for _ in range(rng.choice([1, 1, 2, 8])):
            at = rng.randrange(0, len(payload) - 4, 4)
            value = rng.choice([*INTERESTING, *range(12)])
            payload[at : at + 4] = np.array([value], "<i4").tobytes()
        if rng.random() < 0.1:
            del payload[rng.randrange(len(payload)) :]
        try:
            recognizer = CfgRecognizer.from_bytes(bytes(payload), bytes_vocabulary(), Limits())
            loaded += 1
            use(TokenFSM(recognizer, bytes_vocabulary(), "0" * 64), rng)
        except (ValueError, GrammarError):
            continue
    assert 10 < loaded < 390


@pytest.mark.parametrize(
    "text",
    ['root ::= "(" root ")" | "a"'],
)
def test_what_would_never_end_is_refused_when_loading(text: str) -> None:
    graph = graph_of(text)
    calls = graph.calls.copy()
    calls[0] = (calls[0][0], calls[0][0], 0)
    with pytest.raises(ValueError, match="call of itself"):
        RuleGraph.from_bytes(_with(graph, calls=calls).to_bytes())
    with pytest.raises(ValueError, match="without an end"):
        RuleGraph.from_bytes(_with(graph, final=np.zeros_like(graph.final)).to_bytes())
    with pytest.raises(ValueError, match="may be empty"):
        RuleGraph.from_bytes(_with(graph, final=np.maximum(graph.final, np.arange(len(graph.final)) > 0)).to_bytes())


def _with(graph: RuleGraph, **changes: Any) -> RuleGraph:
    fields = {name: getattr(graph, name) for name in graph.__dataclass_fields__}
    return RuleGraph(**{**fields, **{name: value.astype(fields[name].dtype) for name, value in changes.items()}})


def test_a_rule_goes_on_where_another_rule_calls_it() -> None:
    """After the first `a`, `r` may go on within `root`, or begin within `t`: both remain possible."""
    text = 'root ::= r "x" | t\nr ::= "a"* ("b" | "(" r ")")\nt ::= "a" r "y" | "[" t "]"'
    fsm = compile_grammar(gbnf(text), bytes_vocabulary())
    assert all(accepts(fsm, text) for text in ("bx", "abx", "aby", "aaby", "a(ab)y", "[aby]"))
    assert not any(accepts(fsm, text) for text in ("by", "abxy", "[abx]"))


@pytest.mark.parametrize("pattern", [r"\(*[ab]+\)*", r"[^c]*", r"(.{3})*", r"a|b|\(.*\)"])
def test_a_recursive_grammar_and_a_pattern_at_once(pattern: str) -> None:
    """Exactly the texts that both allow, as each alone sees them."""
    vocabulary = bytes_vocabulary()
    regex = {"type": "regex", "pattern": pattern}
    both = compile_grammar({"type": "all_of", "specifications": [gbnf(TREES), regex]}, vocabulary)
    alone = compile_grammar(gbnf(TREES), vocabulary)
    matches = compile_grammar(regex, vocabulary)
    rng = random.Random(pattern)
    for _ in range(20):
        text = text_of(vocabulary, random_walk(both, rng, 8))
        assert accepts(alone, text) and accepts(matches, text)
    for _ in range(300):
        text = "".join(rng.choices("(a)b,c", k=rng.randrange(1, 8)))
        assert accepts(both, text) == (accepts(alone, text) and accepts(matches, text)), text


def test_grammars_that_cannot_be_combined_are_refused_at_their_place() -> None:
    vocabulary = bytes_vocabulary()

    def together(*specifications: dict[str, Any]) -> TokenFSM:
        return compile_grammar({"type": "all_of", "specifications": list(specifications)}, vocabulary)

    regular = gbnf('root ::= "a" root | "b"')
    assert accepts(together(regular, gbnf("root ::= [ab]{3}"), {"type": "choice", "choices": ["aab", "b"]}), "aab")
    with pytest.raises(UnsupportedFeatureError) as caught:
        together(gbnf(TREES), regular, gbnf(TREES))
    assert caught.value.pointer == "/specifications/2"
    with pytest.raises(UnsatisfiableError):
        together(gbnf(TREES), {"type": "regex", "pattern": r"\)+"})
    with pytest.raises(UnsatisfiableError):
        together(regular, gbnf('root ::= "c"'))
    with pytest.raises(UnsupportedFeatureError, match="together with"):
        together(gbnf(TREES), {"type": "json_object"})
    with pytest.raises(GrammarError) as unknown:
        together(regular, gbnf("root ::= other"))
    assert (unknown.value.pointer, unknown.value.position) == ("/specifications/1", 9)
