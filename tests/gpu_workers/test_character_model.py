"""A 65-character model decoded by a loop of a dozen lines, as the field teaches it: the engine gives the same text."""

from __future__ import annotations

import functools
import string
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GPT2Config, PreTrainedModel, PreTrainedTokenizerFast

from gpu_workers.engine.engine import Engine
from gpu_workers.model.loader import LoadedModel, prepare
from gpu_workers.sampling.randomness import uniforms
from grammar_workers import TokenFSM, Vocabulary, compile_grammar
from tests.gpu_workers.support import TableFSM, engine_config, grammars, request, run, tiny_model

CHARACTERS = "\n !$&',-.3:;?" + string.ascii_uppercase + string.ascii_lowercase
"""The characters of the Shakespeare text that everybody's first model is trained on; there is no end token."""

Rule = Callable[[Sequence[int]], set[int] | None]
"""The token ids that may follow an output; None where the output is complete."""


@functools.cache
def vocabulary() -> Vocabulary:
    return Vocabulary([character.encode() for character in CHARACTERS], [])


def make_model() -> PreTrainedModel:
    settings = {"vocab_size": 65, "eos_token_id": None, "bos_token_id": None, "pad_token_id": None}
    config = GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=96, tie_word_embeddings=False, **settings)
    return tiny_model(config, seed=3)


model = functools.cache(make_model)
"""The loop's own, with transformers' attention; the engine has its copy."""


@functools.cache
def loaded() -> LoadedModel:
    spelled = {"\n": "Ċ", " ": "Ġ"}
    table = {spelled.get(character, character): i for i, character in enumerate(CHARACTERS)}
    backend = Tokenizer(models.BPE(vocab=table, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return prepare(make_model(), PreTrainedTokenizerFast(tokenizer_object=backend), vocabulary(), engine_config())


def ids(text: str) -> list[int]:
    return [CHARACTERS.index(character) for character in text]


def teach(prompt: str, rule: Rule, *, max_tokens: int, temperature: float, seed: int) -> str:
    """Whole sequence in, last logits out, -inf on what is forbidden, softmax, draw."""
    output: list[int] = []
    while len(output) < max_tokens and (allowed := rule(output)) is not None:
        with torch.inference_mode():
            logits = model()(torch.tensor([ids(prompt) + output])).logits[0, -1]
        mask = torch.full_like(logits, -torch.inf)
        mask[sorted(allowed)] = 0
        logits = logits + mask
        if temperature == 0:
            output.append(int(logits.argmax()))
            continue
        cumulative = (logits / temperature).softmax(-1).cumsum(-1)
        (uniform,) = uniforms([seed], [0], [len(output)])
        output.append(int(torch.searchsorted(cumulative, torch.tensor(uniform) * cumulative[-1], right=True)))
    return "".join(CHARACTERS[i] for i in output)


class HandMade(TableFSM):
    """A table over the 65 ids; terminal states allow nothing more by themselves."""

    def allowed_tokens(self, state: int) -> set[int]:
        return set(self._table.get(state, {}))


def speech() -> dict[int, dict[int, int]]:
    """`NAME: words.`: upper-case letters, a colon, a space, lower-case words, a full stop."""
    upper, lower = ids(string.ascii_uppercase), ids(string.ascii_lowercase)
    (colon,), (space,), (stop,) = ids(":"), ids(" "), ids(".")
    return {
        0: dict.fromkeys(upper, 1),
        1: {**dict.fromkeys(upper, 1), colon: 2},
        2: {space: 3},
        3: dict.fromkeys(lower, 4),
        4: {**dict.fromkeys(lower, 4), space: 3, stop: 5},
    }


def by_table(output: Sequence[int]) -> set[int] | None:
    table, state = speech(), 0
    for token_id in output:
        state = table[state][token_id]
    return set(table[state]) if state in table else None


POSITIONS = ["TO", "o", " ", "bdf", "eo", " ", "ns", "aeiou", ".!?"]


def by_position(output: Sequence[int]) -> set[int] | None:
    return set(ids(POSITIONS[len(output)])) if len(output) < len(POSITIONS) else None


def positions_fsm() -> HandMade:
    table = {i: dict.fromkeys(ids(characters), i + 1) for i, characters in enumerate(POSITIONS)}
    return HandMade(table, [len(POSITIONS)])


def compiled(specification: dict[str, Any]) -> TokenFSM:
    return compile_grammar(specification, vocabulary())


@pytest.mark.parametrize("temperature", [0.0, 0.8, 2.0])
def test_the_engine_decodes_as_the_loop_does(temperature: float) -> None:
    """Hand-made automata, static masks per position, the same languages compiled, and no constraint at all."""
    fsms = {
        "speech": HandMade(speech(), [5]),
        "positions": positions_fsm(),
        "compiled speech": compiled({"type": "regex", "pattern": "[A-Z]+: [a-z]+( [a-z]+)*\\."}),
        "compiled positions": compiled(
            {"type": "positions", "allowed": [list(characters) for characters in POSITIONS]}
        ),
    }
    rules: dict[str | None, Rule] = {
        "speech": by_table,
        "positions": by_position,
        "compiled speech": by_table,
        "compiled positions": by_position,
        None: lambda output: set(range(65)),
    }
    cases = [(prompt, name, seed) for seed, prompt in enumerate(["ROMEO", "O, ", "\n"]) for name in rules]
    engine = Engine(loaded(), engine_config(), grammars(**fsms))
    try:
        results = run(
            engine,
            *(
                request(prompt, grammar=name, seed=seed, max_tokens=30, temperature=temperature)
                for prompt, name, seed in cases
            ),
        )
    finally:
        engine.close()
    for (prompt, name, seed), result in zip(cases, results, strict=True):
        taught = teach(prompt, rules[name], max_tokens=30, temperature=temperature, seed=seed)
        assert result.error is None
        assert result.text == taught, (prompt, name)
        complete = rules[name](result.token_ids) is None
        assert result.finish_reason == ("stop" if complete else "length")
        assert np.isin(list(result.text), list(CHARACTERS)).all()
