"""Beam search: the same tokens as transformers' own, under the same masks."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import LogitsProcessor, LogitsProcessorList, PreTrainedModel

from gpu_workers.request import RequestError
from tests.gpu_workers.support import (
    CONFIGS,
    END,
    MAX_LENGTH,
    TableFSM,
    engine_config,
    grammars,
    random_fsm,
    repeat_fsm,
    request,
    run,
    running_engine,
    text_fsm,
    tiny_model,
)


class Mask(LogitsProcessor):
    """Forbids what the automaton forbids after each beam's output."""

    def __init__(self, fsm: TableFSM | None, prompt_length: int) -> None:
        self._fsm = fsm
        self._prompt_length = prompt_length

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if self._fsm is None:
            return scores
        masked = torch.full_like(scores, -torch.inf)
        for row, token_ids in enumerate(input_ids[:, self._prompt_length :].tolist()):
            state = self._fsm.initial_state
            for token_id in token_ids:
                state = self._fsm.next_state(state, token_id)
            allowed = sorted(self._fsm.allowed_tokens(state))
            masked[row, allowed] = scores[row, allowed]
        return masked


def reference_model() -> PreTrainedModel:
    """The engine's tiny model without the padding of its logits: transformers' log-probabilities would count it."""
    model = tiny_model(CONFIGS["llama"]())
    head: Any = model.get_output_embeddings()
    head.weight = nn.Parameter(head.weight[: END + 1].clone())
    return model


def expected(
    model: PreTrainedModel, fsm: TableFSM | None, prompt: list[int], tokens: int, **settings: Any
) -> list[int]:
    output = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
        num_beams=4,
        do_sample=False,
        max_new_tokens=tokens,
        eos_token_id=END,
        pad_token_id=END,
        logits_processor=LogitsProcessorList([Mask(fsm, len(prompt))]),
        **settings,
    )[0, len(prompt) :].tolist()
    return output[: output.index(END) + 1] if END in output else output


@pytest.mark.parametrize("settings", [{}, {"length_penalty": 0.0}, {"length_penalty": 2.0, "early_stopping": True}])
def test_beams_equal_those_of_transformers(settings: dict[str, Any]) -> None:
    rng = np.random.default_rng(5)
    fsms: dict[str, TableFSM] = {f"random{i}": random_fsm(rng) for i in range(3)}
    fsms |= {"texts": text_fsm("yes", "no", "maybe, who knows", "ja"), "ab": repeat_fsm("abc")}
    cases = [(name, rng.integers(0, 256, 6).tolist(), tokens) for name in (*fsms, None) for tokens in (4, 9)]
    model = reference_model()
    with running_engine(
        config=engine_config(max_num_seqs=8, max_num_batched_tokens=32), fetch=grammars(**fsms)
    ) as engine:
        results = run(
            engine,
            *(
                request(prompt, grammar=name, max_tokens=tokens, beam_search={"num_beams": 4, **settings})
                for name, prompt, tokens in cases
            ),
        )
    for (name, prompt, tokens), result in zip(cases, results, strict=True):
        fsm = None if name is None else fsms[name]
        assert result.error is None
        assert result.token_ids == expected(model, fsm, prompt, tokens, **settings), name
        assert result.finish_reason == ("stop" if result.token_ids[-1] == END else "length")
        # Bytes of a character that was cut are no text.
        text = bytes(token for token in result.token_ids if token != END).decode("utf-8", "replace")
        assert text.startswith(result.text) and len(text) - len(result.text) <= 1


@pytest.mark.parametrize("max_tokens", [None, 50])
def test_a_search_ends_where_the_context_does(max_tokens: int | None) -> None:
    prompt = np.random.default_rng(5).integers(0, 256, MAX_LENGTH - 4).tolist()
    one = request(prompt, max_tokens=max_tokens, beam_search={"num_beams": 4})
    with running_engine(config=engine_config(max_num_seqs=8, max_num_batched_tokens=32)) as engine:
        (result,) = run(engine, one)
    assert result.token_ids == expected(reference_model(), None, prompt, 4) and result.finish_reason == "length"


def test_a_failing_grammar_fails_the_search() -> None:
    async def fetch(_: Any) -> Any:
        raise RequestError("no such keyword", code="unsupported_grammar")

    with running_engine(fetch=fetch) as engine:
        (result,) = run(engine, request("x", grammar="any", beam_search={"num_beams": 2}))
    assert result.error is not None and result.error["code"] == "unsupported_grammar"


def test_a_search_has_one_deadline() -> None:
    never = asyncio.Event

    async def fetch(_: Any) -> Any:
        await never().wait()

    with running_engine(fetch=fetch) as engine:
        (result,) = run(engine, request("x", grammar="any", timeout_s=0.2, beam_search={"num_beams": 2}))
    assert result.error is not None and result.error["status"] == 408
