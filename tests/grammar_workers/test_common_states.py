"""States that are built once and begin every automaton: an automaton depends on its own job only."""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
import sys
from array import array
from typing import Any

import numpy as np
import pytest

from grammar_workers import GrammarOptions, Limits, TokenFSM, compile_grammar
from grammar_workers.languages.json_schema.logic import FormulaPool
from grammar_workers.memo import fork
from grammar_workers.pushdown.automaton import PushdownAutomaton
from tests.grammar_workers.vocabularies import bytes_vocabulary, characters_vocabulary

# Frequent values, values with other states, and objects whose undeclared names have guards.
SCHEMAS: list[Any] = [
    True,
    {"type": "string"},
    {"type": ["integer", "null"]},
    {"type": "array", "items": {"type": "integer"}, "minItems": 2},
    {"properties": {"a": {"type": "number"}, "é": {}, '"': {"type": "boolean"}}, "required": ["é"]},
    {"properties": {"b": {"enum": ["x", 1]}}, "required": ["b"], "additionalProperties": {"type": "string"}},
    {"type": "array", "items": {}, "uniqueItems": True},
    {"type": "string", "pattern": "^[a-z]{2,4}$"},
    {"anyOf": [{"type": "string", "maxLength": 3}, {"type": "object", "propertyNames": {"pattern": "^x"}}]},
]
OPTIONS: list[dict[str, Any]] = [{}, {"whitespace": "flexible"}, {"escapes": "any"}, {"property_order": "any"}]


def compiled(schema: Any, **options: Any) -> TokenFSM:
    specification = {"type": "json_schema", "schema": schema}
    return compile_grammar(specification, bytes_vocabulary(), options=GrammarOptions(**options))


def artifacts(seed: int) -> dict[tuple[int, int], bytes]:
    jobs = [(one, other) for one in range(len(SCHEMAS)) for other in range(len(OPTIONS))]
    random.Random(seed).shuffle(jobs)
    return {(one, other): compiled(SCHEMAS[one], **OPTIONS[other]).to_bytes() for one, other in jobs}


APART = """
import hashlib, json, os, sys
from grammar_workers import GrammarOptions, compile_grammar
from tests.grammar_workers.vocabularies import bytes_vocabulary
for schema, options in json.loads(sys.argv[1]):
    # A process in which nothing else has been compiled.
    if child := os.fork():
        os.waitpid(child, 0)
        continue
    specification = {"type": "json_schema", "schema": schema}
    fsm = compile_grammar(specification, bytes_vocabulary(), options=GrammarOptions(**options))
    print(hashlib.sha256(fsm.to_bytes()).hexdigest(), flush=True)
    os._exit(0)
"""


def test_an_artifact_does_not_depend_on_earlier_compilations() -> None:
    first = artifacts(1)
    assert artifacts(2) == first
    alone = [(4, 0), (8, 3)]
    jobs = json.dumps([(SCHEMAS[one], OPTIONS[other]) for one, other in alone])
    found = subprocess.run([sys.executable, "-c", APART, jobs], capture_output=True, text=True, check=True)
    assert found.stdout.split() == [hashlib.sha256(first[job]).hexdigest() for job in alone]


def tables(schema: Any) -> PushdownAutomaton:
    return PushdownAutomaton.from_bytes(compiled(schema)._recognizer.to_bytes())


def test_every_automaton_begins_with_the_same_states() -> None:
    # The state START leads to the entry of each schema.
    first, second = tables({"const": None}), tables({"type": "object", "properties": {"a": {"const": 1}}})
    common = tables(True)
    assert len(common.states) > 50
    for automaton in (first, second):
        many = len(common.states)
        assert np.array_equal(automaton.states[2:many], common.states[2:])
        assert np.array_equal(automaton.table[: len(common.table)], common.table)


def test_the_frequent_formulas_have_their_numbers() -> None:
    pool = FormulaPool(Limits())
    for index, formula in enumerate(pool.common):
        assert pool.canonical(formula) == formula
        assert pool.common_of[formula] == index


def test_a_restricted_vocabulary_begins_with_no_common_states() -> None:
    fsm = compile_grammar({"type": "json_schema", "schema": {"const": True}}, characters_vocabulary())
    assert fsm._recognizer.size < 20


def test_a_fork_has_its_own_containers() -> None:
    class Held:
        def __init__(self) -> None:
            self.number, self.numbers, self.names, self.letters = 1, [1], {"a": 1}, array("i", [1])

    original = Held()
    copied = fork(original, number=2)
    copied.numbers.append(2)
    copied.names["b"] = 2
    copied.letters.append(2)
    assert vars(original) == vars(Held())
    assert (copied.number, copied.numbers) == (2, [1, 2])


@pytest.mark.parametrize("name", ["", "b", "€", "\n", "zz"])
def test_undeclared_names_follow_required_ones_only(name: str) -> None:
    fsm = compiled({"properties": {"é": {"type": "null"}, "ab": {"type": "null"}}, "required": ["é"]})
    written = json.dumps(name, ensure_ascii=False)
    assert fsm.is_terminal(state_after(fsm, f'{{"é": null, {written}: 1}}'.encode()))
    # Already the first byte of the name would lead to a dead end, so no mask allows it.
    assert state_after(fsm, f"{{{written}".encode()[:3]) == -1


def test_a_value_uses_no_states_of_a_rejected_attempt() -> None:
    # In any order, the second value has more than 1000 states, and then shares none with the third value.
    text = {"type": "string", "pattern": "^[a-c]+x$"}
    names = [letter * 60 for letter in "defghi"]
    objects = [
        {
            "properties": {name: text if name == required else {"type": "integer"} for name in names},
            "required": [required],
            "additionalProperties": False,
        }
        for required in names
    ]
    contents = [{"type": "integer"}, {"anyOf": [text, *({"type": "object"} | each for each in objects)]}, text]
    tags = [
        {"type": "tag", "begin": f"<{number}>", "content": {"type": "json_schema", "json_schema": schema}, "end": ";"}
        for number, schema in enumerate(contents)
    ]
    specification = {"type": "structural_tag", "format": {"type": "sequence", "elements": tags}}
    options, limits = GrammarOptions(property_order="any"), Limits(max_states=1000)
    fsm = compile_grammar(specification, bytes_vocabulary(), options=options, limits=limits)
    assert fsm.notes[0].startswith("objects keep the declared order: the automaton has more than 1000 states")
    assert fsm.is_terminal(state_after(fsm, b'<0>1;<1>"ax";<2>"abx";'))


def state_after(fsm: TokenFSM, text: bytes) -> int:
    state = fsm.initial_state
    for byte in text:
        state = fsm.next_state(state, byte)
        if state < 0:
            break
    return state
