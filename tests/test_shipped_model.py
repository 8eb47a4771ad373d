"""The embedded model: its files, its tokenizer, and answers that have to stay true to their prompts."""

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jinja2.exceptions import TemplateError
from tokenizers.pre_tokenizers import ByteLevel
from transformers import AutoModelForCausalLM, AutoTokenizer

from models.evaluate import leaves
from models.records import dump, record

FOLDER = Path(__file__).parent.parent / "models" / "turnstile-tiny"

PERSON = "Alice Smith is 34 years old and lives in Paris. Email: alice.smith@example.com."
TRUE_ANSWERS = [
    (
        f"Extract the person as JSON with name, age, city, email: {PERSON}",
        {"name": "Alice Smith", "age": 34, "city": "Paris", "email": "alice.smith@example.com"},
    ),
]


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(FOLDER)


@pytest.fixture(scope="module")
def model():
    return AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()


def answer(model: Any, tokenizer: Any, prompt: str) -> str:
    """The greedy answer to one user message."""
    inputs = tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    output = model.generate(**inputs, max_new_tokens=120, do_sample=False)
    return tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)


def test_the_folder_is_small_enough_to_live_in_git():
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) < 6_000_000


def test_weights_are_bfloat16_and_tie_the_vocabulary(model):
    stored = AutoModelForCausalLM.from_pretrained(FOLDER, dtype="auto")
    assert stored.dtype == torch.bfloat16
    assert model.config.tie_word_embeddings


def test_model_tokenizer_and_generation_config_agree(model, tokenizer):
    assert model.config.vocab_size == len(tokenizer)
    assert tokenizer.eos_token_id == model.config.eos_token_id == model.generation_config.eos_token_id
    assert tokenizer.pad_token_id == model.config.pad_token_id == model.generation_config.pad_token_id
    assert tokenizer.eos_token_id != tokenizer.pad_token_id
    assert tokenizer.convert_ids_to_tokens(tokenizer.eos_token_id) == "<|end|>"


def test_the_chat_template_renders_every_role(tokenizer):
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "Bye"},
    ]
    rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert rendered == (
        "<|system|>Be brief.<|end|><|user|>Hi<|end|><|assistant|>Hello<|end|><|user|>Bye<|end|><|assistant|>"
    )
    roles = [tokenizer.convert_tokens_to_ids(f"<|{role}|>") for role in ("system", "user", "assistant")]
    ids = tokenizer(rendered)["input_ids"]
    assert [token for token in ids if token in roles] == [roles[0], roles[1], roles[2], roles[1], roles[2]]


def test_the_chat_template_refuses_an_unknown_role(tokenizer):
    with pytest.raises(TemplateError, match="not oracle"):
        tokenizer.apply_chat_template([{"role": "oracle", "content": "Hi"}], tokenize=False)


@given(text=st.text())
def test_any_text_survives_the_tokenizer(tokenizer, text):
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_every_byte_and_no_two_digits_are_a_token(tokenizer):
    texts = [tokenizer.convert_tokens_to_string([token]) for token in tokenizer.get_vocab()]
    assert tokenizer.backend_tokenizer.get_vocab().keys() >= set(ByteLevel.alphabet())
    assert not [text for text in texts if any(c.isdigit() for c in text) and len(text) > 1]
    assert len(tokenizer("0123456789")["input_ids"]) == 10


@given(seed=st.integers(0, 10_000))
def test_training_records_are_true(seed):
    example = record(Random(seed))
    for _, value in leaves(json.loads(example.answer)):
        if not isinstance(value, bool):
            assert (value if isinstance(value, str) else dump(value)) in example.prompt[-1]["content"]


@pytest.mark.parametrize(("prompt", "truth"), TRUE_ANSWERS)
def test_unconstrained_answers_are_true_to_the_prompt(model, tokenizer, prompt, truth):
    assert json.loads(answer(model, tokenizer, prompt)) == truth


def test_text_is_continued(model, tokenizer):
    inputs = tokenizer("ROMEO:\n", return_tensors="pt")
    output = model.generate(**inputs, max_new_tokens=40, do_sample=False)
    assert tokenizer.decode(output[0]).startswith("ROMEO:\n")
    assert output.shape[1] > inputs["input_ids"].shape[1] + 10
