"""The embedded model: its files, its tokenizer, and answers that have to stay true to their prompts."""

import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jinja2.exceptions import TemplateError
from safetensors.torch import load_file
from tokenizers.pre_tokenizers import ByteLevel
from transformers import AutoModelForCausalLM, AutoTokenizer

from gpu_workers.speculative.eagle_head import load_eagle_head
from grammar_workers import TokenFSM, Vocabulary, compile_grammar
from models.batches import BatchMaker
from models.eagle import LAYERS, RECIPE, TOKENS, losses
from models.eagle import train as train_head
from models.evaluate import evaluate, held_out_records, leaves
from models.records import dump, record
from models.train import Recipe, train

FOLDER = Path(__file__).parent.parent / "models" / "turnstile-tiny"

PERSON = "Alice Smith is 34 years old and lives in Paris. Email: alice.smith@example.com."
TRUE_ANSWERS = [
    (
        f"Extract the person as JSON with name, age, city, email: {PERSON}",
        '{"name": "Alice Smith", "age": 34, "city": "Paris", "email": "alice.smith@example.com"}',
    ),
    (
        "Zorblax Quimby, aged 118, lives in Mooncity. Return JSON with name, age, city.",
        '{"name": "Zorblax Quimby", "age": 118, "city": "Mooncity"}',
    ),
    (
        "Extract the event as JSON with title, date, location, attendees: The workshop takes place in Berlin on "
        "2026-03-14. It is attended by Anna, Ben and Chen.",
        '{"title": "workshop", "date": "2026-03-14", "location": "Berlin", "attendees": ["Anna", "Ben", "Chen"]}',
    ),
    (
        "Return JSON with product, price, in_stock: The kettle costs 39.95 and is in stock.",
        '{"product": "kettle", "price": 39.95, "in_stock": true}',
    ),
    ("What is the phone number? Call Grace Lee at 555-0134, she lives in Oslo.", "555-0134"),
    ("Classify the sentiment as positive or negative: The camera is excellent. I love it.", "positive"),
    ("Classify the sentiment as positive or negative: This phone is terrible!", "negative"),
    ("Choose one of: red, green, blue. The door is blue.", "blue"),
    ("Repeat: The quick brown fox 12345", "The quick brown fox 12345"),
]
TRUE_CONSTRAINED_ANSWERS = [
    (
        f"Extract the person as JSON: {PERSON}",
        {"name": "string", "age": "integer", "city": "string", "email": "string"},
        {"name": "Alice Smith", "age": 34, "city": "Paris", "email": "alice.smith@example.com"},
    ),
    (
        f"Extract the person as JSON: {PERSON}",
        {"town": "string", "years": "integer", "full_name": "string"},
        {"town": "Paris", "years": 34, "full_name": "Alice Smith"},
    ),
    (
        "Extract the book as JSON: The Silent Sea was written by Ada Turing. It was published in 1987 and has "
        "412 pages.",
        {"title": "string", "author": "string", "year": "integer", "pages": "integer"},
        {"title": "The Silent Sea", "author": "Ada Turing", "year": 1987, "pages": 412},
    ),
    (
        "It is 21 degrees and sunny in Lisbon.",
        {"city": "string", "temperature": "integer", "condition": "string"},
        {"city": "Lisbon", "temperature": 21, "condition": "sunny"},
    ),
    (
        "Flight LH-441 leaves from Munich at 09:45 and arrives in Houston. Passenger: Grace Lee. Price: $812.4. "
        "Return JSON.",
        {"flight": "string", "from": "string", "to": "string", "passenger": "string", "price": "number"},
        {"flight": "LH-441", "from": "Munich", "to": "Houston", "passenger": "Grace Lee", "price": 812.4},
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


def answer(model: Any, tokenizer: Any, prompt: str, fsm: TokenFSM | None = None) -> str:
    """The greedy answer to one user message, free or under a grammar."""
    inputs = tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    prompt_length = inputs["input_ids"].shape[1]

    def allowed(_row: int, ids: torch.Tensor) -> list[int]:
        state = fsm.initial_state
        for token in ids[prompt_length:].tolist():
            state = fsm.next_state(state, token)
        return list(fsm.allowed_tokens(state))

    output = model.generate(
        **inputs, max_new_tokens=120, do_sample=False, prefix_allowed_tokens_fn=None if fsm is None else allowed
    )
    return tokenizer.decode(output[0, prompt_length:], skip_special_tokens=True)


def test_the_folder_is_small_enough_to_live_in_git():
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) < 6_000_000


def test_the_eagle3_head_is_small_and_fits_the_model(model):
    folder = FOLDER.with_name("turnstile-tiny-eagle3")
    assert sum(file.stat().st_size for file in folder.iterdir()) < 2_000_000
    head = load_eagle_head(str(folder), model.config.num_hidden_layers, 128, model.get_input_embeddings())
    assert len(head.token_ids) == TOKENS and head.layers == LAYERS


def test_the_head_guesses_most_tokens_of_held_out_answers(model, tokenizer):
    head = load_eagle_head(str(FOLDER.with_name("turnstile-tiny-eagle3")), 5, 128, model.get_input_embeddings()).float()
    batches = BatchMaker(tokenizer, "", seed=0, rows=1, text_share=0.0, copy_batches=0)
    (batch,) = batches.collate_conversations(held_out_records(20), rows=20)
    with torch.inference_mode():
        _, right = losses(model, head, batch, head.token_ids)
    assert right[0] > 0.8 and right[-1] > 0.7


@pytest.mark.long
def test_a_head_that_is_trained_is_read_again(tmp_path):
    train_head(replace(RECIPE, steps=2, rows=4), tmp_path)
    weights, shipped = (
        load_file(folder / "model.safetensors") for folder in (tmp_path, FOLDER.with_name("turnstile-tiny-eagle3"))
    )
    assert {name: (one.shape, one.dtype) for name, one in weights.items()} == {
        name: (one.shape, one.dtype) for name, one in shipped.items()
    }
    # The shipped head was trained while two words of the records were misspelled. One token of its vocabulary differs.
    trained_ids, shipped_ids = (set((torch.arange(TOKENS) + one["d2t"]).tolist()) for one in (weights, shipped))
    assert len(trained_ids) == len(shipped_ids) == TOKENS and len(trained_ids - shipped_ids) <= 1


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
def test_free_answers_are_true_to_the_prompt(model, tokenizer, prompt, truth):
    assert answer(model, tokenizer, prompt) == truth


@pytest.mark.parametrize(("prompt", "types", "truth"), TRUE_CONSTRAINED_ANSWERS)
def test_constrained_answers_are_true_to_the_prompt(model, tokenizer, prompt, types, truth):
    schema = {
        "type": "object",
        "properties": {key: {"type": name} for key, name in types.items()},
        "required": list(types),
        "additionalProperties": False,
    }
    vocabulary = Vocabulary.from_tokenizer(tokenizer, model.config.vocab_size)
    fsm = compile_grammar({"type": "json_schema", "schema": schema}, vocabulary)
    assert json.loads(answer(model, tokenizer, prompt, fsm)) == truth


def test_held_out_records_are_mostly_exact(model, tokenizer):
    scores = evaluate(model, tokenizer, 40)
    assert scores.exact >= 0.75 * scores.records
    assert scores.fields_right >= 0.85 * scores.fields


@pytest.mark.long
def test_a_resumed_training_ends_like_an_unbroken_one(tmp_path):
    text = "To be, or not to be: that is the question.\n" * 500
    recipe = Recipe(steps=3, warm_up_steps=1, copy_steps=0, rows=4)
    train(recipe, text, tmp_path / "unbroken", checkpoint=None)
    checkpoint = tmp_path / "state.pt"
    train(replace(recipe, steps=1), text, tmp_path / "resumed", checkpoint)
    train(recipe, text, tmp_path / "resumed", checkpoint)
    unbroken, resumed = (load_file(tmp_path / name / "model.safetensors") for name in ("unbroken", "resumed"))
    assert all(torch.equal(unbroken[name], resumed[name]) for name in unbroken)


def test_text_is_continued(model, tokenizer):
    inputs = tokenizer("ROMEO:\n", return_tensors="pt")
    output = model.generate(**inputs, max_new_tokens=40, do_sample=False)
    assert tokenizer.decode(output[0]).startswith("ROMEO:\n")
    assert output.shape[1] > inputs["input_ids"].shape[1] + 10
