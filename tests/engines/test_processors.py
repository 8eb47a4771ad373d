"""Tests of both adapters in their engines: valid outputs, masks of the automaton, ends of outputs, and errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import jsonschema
import numpy as np
import pytest

from grammar_workers import compile_grammar
from tests.engines.conftest import TEXTS
from tests.engines.runners import END, PERSON, Recorder, Runner, expected
from turnstile_llm import Grammar, Regex, Vocabulary, WidthError, compile

SCHEMAS: dict[str, Any] = {
    "person": PERSON,
    "array": {"type": "array", "items": {"type": "integer", "minimum": -5, "maximum": 500}, "maxItems": 4},
    "choice": {"anyOf": [{"const": "a"}, {"type": "boolean"}, {"enum": [None, [1]]}]},
    "date": {"type": "object", "properties": {"day": {"type": "string", "format": "date"}}, "required": ["day"]}
    | {"additionalProperties": False},
    "nested": {
        "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}},
        "$ref": "#/$defs/node",
        "maxProperties": 1,
        "additionalProperties": False,
    },
}
Prompt = Callable[[str], list[int]]


@pytest.mark.parametrize("temperature", [0.0, 1.5])
@pytest.mark.parametrize("name", SCHEMAS)
def test_outputs_are_valid_and_masks_are_those_of_the_automaton(
    name: str, temperature: float, runner: Runner, prompt: Prompt, tokenizer: Any
) -> None:
    schema, ids = SCHEMAS[name], prompt(TEXTS[0])
    recorder = Recorder(runner.processor(compile(schema, runner.vocabulary)))
    output = runner.generate(ids, recorder, 120, temperature, 0)
    if name != "nested":
        assert output[-1] == END
    if output[-1] == END:
        jsonschema.validate(json.loads(tokenizer.decode(output)), schema)
    fsm = compile_grammar({"type": "json_schema", "schema": schema}, runner.vocabulary)
    assert recorder.compared(fsm, len(ids)) == (len(recorder.calls), 0)
    assert len(recorder.calls) >= len(output)


def test_one_object_for_several_prompts(runner: Runner, grammar: Grammar, prompt: Prompt, tokenizer: Any) -> None:
    """Other prompts, the same prompt again, and prompts that go on after the last output."""
    processor = runner.processor(grammar)
    prompts = [prompt(TEXTS[0]), prompt(TEXTS[0]), prompt(TEXTS[1]), prompt("Name?")]
    first = runner.generate(prompts[0], processor, 80, 0.0, 0)
    prompts += [[*prompts[0], *first, 5, 6, 7], [*prompts[0], 300], prompts[0]]
    for ids in prompts:
        output = runner.generate(ids, processor, 80, 0.0, 0)
        assert output == runner.generate(ids, runner.processor(grammar), 80, 0.0, 0)
        jsonschema.validate(json.loads(tokenizer.decode(output)), PERSON)


def test_the_end_token_is_masked_until_the_output_is_complete(runner: Runner, prompt: Prompt, tokenizer: Any) -> None:
    recorder = Recorder(runner.processor(compile(Regex("[a-z]{40}"), runner.vocabulary)))
    output = runner.generate(prompt(TEXTS[0]), recorder, 60, 0.0, 0)
    assert output[-1] == END and len(tokenizer.decode(output)) == 40
    ends = [bool(allowed[END]) for _, allowed in recorder.calls]
    assert ends[: len(output)] == [False] * (len(output) - 1) + [True]
    cut = runner.generate(prompt(TEXTS[0]), recorder, 3, 0.0, 0)
    assert END not in cut and len(cut) == 3


def test_outputs_that_have_ended_and_drafts_that_are_rejected(runner: Runner) -> None:
    vocabulary = runner.vocabulary
    fsm = compile_grammar({"type": "regex", "pattern": "[a-c]{2}"}, vocabulary)
    processor = runner.processor(compile(Regex("[a-c]{2}"), vocabulary))
    a, b, wrong = (vocabulary.encode(text)[0] for text in (b"a", b"b", b"7"))  # type: ignore[index]

    def allowed(*output: int) -> list[bool]:
        masked = processor(runner.ids([9, 8, 7, *output]), runner.logits())
        return np.isfinite(np.array(masked)).ravel().tolist()

    assert allowed() == expected(fsm, []).tolist()
    allowed(wrong), allowed(wrong, wrong)
    assert allowed(a) == expected(fsm, [a]).tolist() != expected(fsm, []).tolist()
    allowed(a, wrong)
    only_end = np.eye(vocabulary.size, dtype=bool)[END].tolist()
    assert allowed(a, b) == allowed(a, b, END) == allowed(a, b, END, 0) == allowed(a, b, END, 0, a) == only_end


def test_errors_are_typed(runner: Runner, tokenizer: Any) -> None:
    wide = compile(Regex("a+"), Vocabulary.from_tokenizer(tokenizer, 1152))
    with pytest.raises(WidthError, match="the vocabulary has 1152 tokens"):
        runner.processor(wide)(runner.ids([5]), runner.logits())
    endless = Vocabulary([b"a", b"b"], [])
    with pytest.raises(ValueError, match="no end token"):
        runner.processor(compile(Regex("a+"), endless))
