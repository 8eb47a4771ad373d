"""The same EAGLE-3 head here and in vLLM: its logits, and how many of its drafts come true."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gpu_workers.config import EngineConfig
from gpu_workers.engine.engine import Engine
from gpu_workers.model.loader import load
from gpu_workers.request import GenerationRequest, GrammarReference, SamplingParameters
from gpu_workers.speculative.eagle_drafter import load_eagle
from gpu_workers.speculative.eagle_head import load_eagle_head
from grammar_workers import TokenFSM, compile_grammar
from tests.vllm.offline import Answer, EngineProcess, Request, run_engine
from tests.vllm.server import MODEL

HEAD = MODEL.with_name("turnstile-tiny-eagle3")
DRAFTS = 3
SPECULATION = {"method": "eagle3", "model": str(HEAD), "num_speculative_tokens": DRAFTS}
TEXTS = [
    f"Extract the people as a JSON list: {name} is {age} years old and lives in {city}. {other} is {age + 7}."
    for name, other in (("Alice Moore", "Bob Stone"), ("Zorblax Quimby", "Grace Lee"), ("Eva Novak", "Carla Diaz"))
    for city, age in (("Paris", 34), ("Mooncity", 18), ("Oslo", 61))
]
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "city": {"type": "string"}},
    "required": ["name", "age", "city"],
    "additionalProperties": False,
}
LONG = {"type": "array", "items": PERSON, "minItems": 12}
LONG_TEXTS = [f"Repeat: {' '.join(TEXTS[i:] + TEXTS[:i])}" for i in range(len(TEXTS))]
"""Both ask for more than answers may have: behind an end the two engines count in different ways."""
SETTINGS: dict[str, Any] = {"temperature": 0, "max_tokens": 120}


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    process = EngineProcess(tmp_path_factory.mktemp("eagle"))
    yield process
    process.close()


def recorded(arguments: dict[str, Any], request: Request) -> tuple[Answer, list[tuple[list[int], Tensor]]]:
    """An answer of vLLM's, and of each pass of its head the token ids that went in and the logits that were wanted."""
    from vllm.model_executor.models.llama_eagle3 import Eagle3LlamaForCausalLM as Head

    passes: list[tuple[list[int], Tensor]] = []
    forward, compute_logits = Head.forward, Head.compute_logits
    fed: list[list[int]] = [[]]

    def watched_forward(self: Any, input_ids: Tensor, *others: Any, **keywords: Any) -> Any:
        fed[0] = input_ids.tolist()
        return forward(self, input_ids, *others, **keywords)

    def watched_logits(self: Any, hidden_states: Tensor) -> Any:
        logits = compute_logits(self, hidden_states)
        passes.append((fed[0], logits.clone()))
        return logits

    Head.forward, Head.compute_logits = watched_forward, watched_logits
    try:
        run = run_engine(arguments, [[request]])[0]
    finally:
        Head.forward, Head.compute_logits = forward, compute_logits
    return run.answers[0], passes


def causal(module: nn.Module, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    attended = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    return attended.transpose(1, 2).flatten(-2)


def test_logits_are_vllms(vllm: EngineProcess) -> None:
    """Of the first three drafts after a prompt: the pass over all of it, and two over the head's own outputs."""
    answer, passes = vllm.call(recorded, {"speculative_config": SPECULATION}, Request(TEXTS[0], SETTINGS))
    tokens = [*answer.prompt_ids, answer.token_ids[0]]
    first = max(i for i, (fed, _) in enumerate(passes) if fed[: len(tokens) - 1] == tokens[1:])
    loaded = load(str(MODEL), EngineConfig(threads=1))
    loaded.model.set_attn_implementation("sdpa")
    head = load_eagle_head(str(HEAD), 5, 128, loaded.model.get_input_embeddings()).float()
    with torch.no_grad():
        seen = loaded.model(torch.tensor([answer.prompt_ids]), output_hidden_states=True, use_cache=False)
        features = head.features([seen.hidden_states[layer] for layer in head.layers])
        for _, logits in passes[first : first + DRAFTS]:
            positions = torch.arange(features.shape[1])[None]
            outputs = head(torch.tensor([tokens[1:]]), features, positions, causal)
            ours = head.logits(outputs[0, -1])
            assert torch.allclose(ours, logits[0, head.token_ids], atol=2e-3), (ours - logits[0, head.token_ids]).max()
            assert logits[0].isfinite().sum() == len(head.token_ids)
            tokens.append(int(head.token_ids[ours.argmax()]))
            features = torch.cat([features, outputs[:, -1:]], 1)


def accepted_here(
    prompts: list[list[int]], fsm: TokenFSM | None, settings: dict[str, Any]
) -> tuple[list[list[int]], float]:
    """What the native engine answers with unmasked drafts of the head alone, and the share of drafts that come true."""
    config = EngineConfig(
        threads=1,
        forced_text=False,
        prompt_lookup_max=0,
        eagle_head=str(HEAD),
        draft_masks=False,
        num_speculative_tokens=DRAFTS,
        draft_cost=1e-9,
    )
    loaded = load(str(MODEL), config)

    async def fetch(_: GrammarReference) -> TokenFSM:
        assert fsm is not None
        return fsm

    engine = Engine(loaded, config, fetch, load_eagle(config, loaded))

    async def answer(index: int, prompt: list[int]) -> list[int]:
        reference = None if fsm is None else GrammarReference(key="0" * 64, specification={})
        request = GenerationRequest(
            request_id=str(index), prompt=prompt, grammar=reference, sampling=SamplingParameters(**settings)
        )
        return [token_id async for output in engine.generate(request) for token_id in output.token_ids]

    async def everything() -> list[list[int]]:
        return await asyncio.gather(*(answer(index, prompt) for index, prompt in enumerate(prompts)))

    try:
        answers = asyncio.run(everything())
        return answers, engine.statistics.accepted_tokens / engine.statistics.drafted_tokens
    finally:
        engine.close()


@pytest.mark.parametrize("schema", [None, LONG], ids=["free", "constrained"])
def test_as_many_drafts_come_true_as_in_vllm(vllm: EngineProcess, schema: Any) -> None:
    constraint = None if schema is None else {"json": json.dumps(schema)}
    settings = SETTINGS if schema is not None else {**SETTINGS, "min_tokens": SETTINGS["max_tokens"]}
    requests = [Request(text, settings, constraint) for text in (LONG_TEXTS if schema is None else TEXTS)]
    (run,) = vllm.run({"speculative_config": SPECULATION, "async_scheduling": False}, [requests])
    theirs = run.counts.accepted / run.counts.proposed
    fsm = None
    if schema is not None:
        vocabulary = load(str(MODEL), EngineConfig(threads=1)).vocabulary
        fsm = compile_grammar({"type": "json_schema", "schema": schema}, vocabulary)
    answers, ours = accepted_here([answer.prompt_ids for answer in run.answers], fsm, settings)
    assert {answer.finish_reason for answer in run.answers} == {"length"}
    assert answers == [answer.token_ids for answer in run.answers]
    print(f"accepted: {ours:.3f} here, {theirs:.3f} in vLLM")
    assert ours == pytest.approx(theirs, rel=0.05)
    assert run.counts.proposed > 500
