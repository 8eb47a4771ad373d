"""The adapter for transformers, with the embedded model in each mode of `generate` and in a pipeline."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LogitsProcessorList, pipeline

from grammar_workers import compile_grammar
from tests.engines.runners import END, FOLDER, PERSON
from turnstile_llm import Choice, Grammar, Regex, Vocabulary, WidthError, compile
from turnstile_llm.transformers import LogitsProcessor

MODES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"do_sample": True, "temperature": 2.0},
    "several samples": {"do_sample": True, "temperature": 2.0, "num_return_sequences": 3},
    "top-k before nothing": {"do_sample": True, "top_k": 1, "temperature": 3.0},
    "beams": {"num_beams": 4, "num_return_sequences": 4},
    "sampled beams": {"num_beams": 3, "do_sample": True, "temperature": 2.0},
    "static cache": {"cache_implementation": "static"},
}
SINGLE_MODES: dict[str, dict[str, Any]] = {
    "assisted": {"assistant": True},
    "assisted and sampled": {"assistant": True, "do_sample": True, "temperature": 1.5},
    "prompt lookup": {"prompt_lookup_num_tokens": 4},
}


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(FOLDER, padding_side="left")


@pytest.fixture(scope="module")
def model() -> Any:
    return AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary.from_pretrained(str(FOLDER))


@pytest.fixture(scope="module")
def grammar(vocabulary: Vocabulary) -> Grammar:
    return compile(PERSON, vocabulary)


class Recorder(LogitsProcessor):
    """The adapter, with the rows that it was called with and the tokens that it allowed in each."""

    def __init__(self, grammar: Any) -> None:
        super().__init__(grammar)
        self.calls: list[tuple[list[list[int]], np.ndarray]] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        before = scores.clone()
        masked = super().__call__(input_ids, scores)
        assert torch.equal(scores, before)
        allowed = torch.isfinite(masked)
        assert torch.equal(masked[allowed], scores[allowed])
        self.calls.append((input_ids.tolist(), allowed.numpy()))
        return masked


def prompts(tokenizer: Any, *texts: str) -> Any:
    chats = [
        tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True, tokenize=False)
        for text in texts
    ]
    return tokenizer(chats, return_tensors="pt", padding=True, add_special_tokens=False)


def outputs(model: Any, inputs: Any, processor: Any, **settings: Any) -> list[list[int]]:
    """The tokens of each row behind its prompt."""
    if settings.pop("assistant", False):
        settings["assistant_model"] = model
    torch.manual_seed(7)
    settings = {"max_new_tokens": 80, "do_sample": False, **settings}
    found = model.generate(**inputs, logits_processor=[processor], **settings)
    return [row[inputs["input_ids"].shape[1] :] for row in found.tolist()]


def judged(tokenizer: Any, rows: Sequence[Sequence[int]]) -> int:
    """The number of complete rows; each is a valid person, and the others are a beginning."""
    complete = 0
    for row in rows:
        if END in row:
            person = json.loads(tokenizer.decode(row, skip_special_tokens=True))
            assert list(person) == ["name", "age", "tags"]
            assert isinstance(person["name"], str) and len(person["name"]) <= 12
            assert type(person["age"]) is int and 0 <= person["age"] <= 99
            assert set(person["tags"]) <= {"a", "bb"} and len(person["tags"]) <= 2
            complete += 1
    return complete


def compare_masks(vocabulary: Vocabulary, recorder: Recorder, length: int) -> int:
    """Compare each mask of a living row with that of the automaton; the number of masks compared."""
    alone = compile_grammar({"type": "json_schema", "schema": PERSON}, vocabulary)
    compared = 0
    for rows, allowed in recorder.calls:
        for row, bits in zip(rows, allowed, strict=True):
            state = alone.initial_state
            for token in row[length:]:
                state = alone.next_state(state, token)
            if state > alone.end_state:
                expected = np.unpackbits(alone.allowed_mask(state).view(np.uint8), bitorder="little")
                assert (bits == expected[: len(bits)].astype(bool)).all()
                compared += 1
            else:
                assert np.flatnonzero(bits).tolist() == [END]
    return compared


TEXTS = ("Extract the person as JSON: Alice is 34.", "Bob, 5 years old, lives in Paris. Return JSON.")


@pytest.mark.parametrize("mode", MODES)
def test_outputs_are_valid_and_masks_are_those_of_the_automaton(
    mode: str, model: Any, tokenizer: Any, vocabulary: Vocabulary, grammar: Grammar
) -> None:
    inputs, recorder = prompts(tokenizer, *TEXTS), Recorder(grammar)
    found = outputs(model, inputs, recorder, **MODES[mode])
    assert judged(tokenizer, found) == len(found) == 2 * MODES[mode].get("num_return_sequences", 1)
    assert compare_masks(vocabulary, recorder, inputs["input_ids"].shape[1]) > 30


@pytest.mark.parametrize("mode", SINGLE_MODES)
def test_drafts_change_nothing(mode: str, model: Any, tokenizer: Any, vocabulary: Vocabulary, grammar: Grammar) -> None:
    inputs, recorder = prompts(tokenizer, TEXTS[0]), Recorder(grammar)
    found = outputs(model, inputs, recorder, **SINGLE_MODES[mode])
    assert judged(tokenizer, found) == 1
    assert compare_masks(vocabulary, recorder, inputs["input_ids"].shape[1]) > 20
    if "do_sample" not in SINGLE_MODES[mode]:
        assert found == outputs(model, inputs, LogitsProcessor(grammar))


@pytest.mark.parametrize("choices", [["yes"], ["yes", "no"], ["a", "ab", "abc"]])
def test_more_beams_than_outputs(choices: list[str], model: Any, tokenizer: Any, vocabulary: Vocabulary) -> None:
    processor = LogitsProcessor(compile(Choice(choices), vocabulary))
    found = outputs(model, prompts(tokenizer, *TEXTS), processor, num_beams=5, num_return_sequences=5)
    texts = [tokenizer.decode(row, skip_special_tokens=True) for row in found]
    assert len(texts) == 10 and set(texts) == set(choices)


def test_each_prompt_has_its_grammar_or_none(model: Any, tokenizer: Any, vocabulary: Vocabulary) -> None:
    grammars = [compile(Choice(["yes"]), vocabulary), None, compile(Regex("[0-9]{3}"), vocabulary)]
    inputs = prompts(tokenizer, "Is it?", "Repeat: the cat sat", "A number?")
    free = outputs(model, inputs, LogitsProcessor([None]))
    for settings in ({}, {"num_beams": 2}, {"do_sample": True, "num_return_sequences": 2}):
        found = outputs(model, inputs, LogitsProcessor(grammars), **settings)
        each = len(found) // 3
        texts = [tokenizer.decode(row, skip_special_tokens=True) for row in found]
        assert texts[:each] == ["yes"] * each
        assert all(len(text) == 3 and text.isdigit() for text in texts[2 * each :])
        if not settings:
            assert texts[1] == tokenizer.decode(free[1], skip_special_tokens=True) == "the cat sat"


def test_the_end_token_is_masked_until_the_output_is_complete(
    model: Any, tokenizer: Any, vocabulary: Vocabulary
) -> None:
    recorder = Recorder(compile(Regex("[a-z]{40}"), vocabulary))
    (found,) = outputs(model, prompts(tokenizer, TEXTS[0]), recorder)
    text = tokenizer.decode(found, skip_special_tokens=True)
    assert len(text) == 40 and found[-1] == END
    assert [bool(allowed[0, END]) for _, allowed in recorder.calls] == [False] * (len(found) - 1) + [True]
    (cut,) = outputs(model, prompts(tokenizer, TEXTS[0]), recorder, max_new_tokens=3)
    assert END not in cut and len(cut) == 3


def test_one_object_for_several_calls(model: Any, tokenizer: Any, grammar: Grammar, vocabulary: Vocabulary) -> None:
    """Prompts of other lengths, the same prompt again, and a prompt that goes on after the last one."""
    processor = Recorder(grammar)
    first = prompts(tokenizer, TEXTS[0])
    alone = outputs(model, first, LogitsProcessor(grammar))
    for _ in range(2):
        assert outputs(model, first, processor) == alone
    both = prompts(tokenizer, *TEXTS)
    assert outputs(model, both, processor) == outputs(model, both, LogitsProcessor(grammar))
    for added in ([5], [5, 6], [*alone[0], 5, 6, 7], [300]):
        longer = {"input_ids": torch.cat([first["input_ids"], torch.tensor([added])], dim=1)}
        longer["attention_mask"] = torch.ones_like(longer["input_ids"])
        outputs(model, first, processor)
        processor.calls.clear()
        found = outputs(model, longer, processor)
        assert found == outputs(model, longer, LogitsProcessor(grammar)), added
        assert compare_masks(vocabulary, processor, longer["input_ids"].shape[1]) == len(processor.calls)


def test_a_pipeline(model: Any, tokenizer: Any, grammar: Grammar) -> None:
    generate = pipeline("text-generation", model=model, tokenizer=tokenizer)
    chats = [[{"role": "user", "content": text}] for text in TEXTS]
    for processors in ([LogitsProcessor(grammar)], LogitsProcessorList([LogitsProcessor(grammar)])):
        for settings in ({}, {"batch_size": 2}):
            found = generate(chats, logits_processor=processors, max_new_tokens=80, do_sample=False, **settings)
            people = [json.loads(answers[0]["generated_text"][-1]["content"]) for answers in found]
            assert [list(person) for person in people] == [["name", "age", "tags"]] * 2


def test_errors_are_typed(model: Any, tokenizer: Any, vocabulary: Vocabulary, grammar: Grammar) -> None:
    inputs = prompts(tokenizer, *TEXTS)
    with pytest.raises(WidthError, match="3 grammars do not fit 2 rows"):
        outputs(model, inputs, LogitsProcessor([grammar, grammar, None]))
    narrow = Vocabulary.from_tokenizer(tokenizer, 1000)
    with pytest.raises(WidthError, match="the vocabulary has 1000 tokens: create it with vocab_size=1024"):
        outputs(model, inputs, LogitsProcessor(compile(Regex("a+"), narrow)))
    endless = Vocabulary([b"a", b"b"], [])
    with pytest.raises(ValueError, match="no end token"):
        LogitsProcessor(compile(Regex("a+"), endless))


def test_outputs_that_have_ended_and_drafts_that_are_rejected(vocabulary: Vocabulary) -> None:
    """Calls as beam search and assisted generation with another tokenizer make them."""
    alone = compile_grammar({"type": "regex", "pattern": "[a-c]{2}"}, vocabulary)
    processor = LogitsProcessor(compile(Regex("[a-c]{2}"), vocabulary))
    a, b, wrong = (vocabulary.encode(text)[0] for text in (b"a", b"b", b"7"))  # type: ignore[index]

    def allowed(*output: int) -> set[int]:
        ids = torch.tensor([[9, 8, 7, *output]])
        return set(torch.isfinite(processor(ids, torch.zeros(1, vocabulary.size)))[0].nonzero().flatten().tolist())

    after = alone.next_state(alone.initial_state, a)
    assert allowed() == alone.allowed_tokens(alone.initial_state)
    allowed(wrong), allowed(wrong, wrong)
    assert allowed(a) == alone.allowed_tokens(after) != alone.allowed_tokens(alone.initial_state)
    allowed(a, wrong)
    assert allowed(a, b) == allowed(a, b, END) == allowed(a, b, END, 0) == allowed(a, b, END, 0, a) == {END}
