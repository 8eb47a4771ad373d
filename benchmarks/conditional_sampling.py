"""How far are answers from the model's distribution given that they are valid, and are more of them true?

    python -m benchmarks.conditional_sampling

Three tables. Total variation distance between the answers of the engine and the exact conditional distribution, of
languages small enough to list every tokenization of every text, by the embedded model and by a toy model of random
weights: under the step mask alone, and with particles. The share of true answers on held-out records of the embedded
model at temperature 1. Tokens per second with and without particles.

`floor` is the distance that as many answers drawn from the exact distribution itself would have; intervals are 95 %
bootstrap intervals.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.acceptance import record_instances
from gpu_workers.config import EngineConfig
from gpu_workers.engine.engine import Engine
from gpu_workers.model.loader import LoadedModel, load, prepare
from gpu_workers.output import GenerationOutput
from gpu_workers.request import GenerationRequest, GrammarReference
from grammar_workers import GrammarOptions, TokenFSM, compile_grammar
from grammar_workers.strict_json import parse_json
from models.evaluate import held_out_records, leaves

MODEL = "models/turnstile-tiny"
PARTICLES = (1, 4, 16, 64)
CLIENTS = 8
LANGUAGES: dict[str, tuple[str, dict[str, Any]]] = {
    "city": (
        "Extract the person: Alice Moore is 34 years old and lives in Paris.",
        {"type": "choice", "choices": ["Alice", "Paris", "Moore", "in Paris", "{}", "34"]},
    ),
    "sentiment": (
        "Classify the sentiment as positive or negative: This phone is terrible!",
        {"type": "choice", "choices": ["good", "bad", "terrible", "not positive", "positively bad", "no"]},
    ),
    "digits": ("How old is Bob? Bob is 47 years old.", {"type": "regex", "pattern": "[3-5]{1,2}[0-2]?( y)?"}),
}
"""A prompt and a constraint; the model would rather say something else."""


def toy_model(embedded: LoadedModel) -> LlamaForCausalLM:
    """Two layers of random weights over the embedded model's vocabulary."""
    torch.manual_seed(1)
    shape = LlamaConfig(
        vocab_size=embedded.vocabulary.size,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=512,
        eos_token_id=embedded.vocabulary.eos_token_ids[0],
    )
    model = LlamaForCausalLM(shape).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(4)
    return model


class Asker:
    """An engine in this process, and the grammars that its requests name."""

    def __init__(self, loaded: LoadedModel, config: EngineConfig) -> None:
        self.fsms: dict[str, TokenFSM] = {}
        self.engine = Engine(loaded, config, self._fetch)

    async def _fetch(self, reference: GrammarReference) -> TokenFSM:
        return self.fsms[reference.key]

    async def ask(
        self, prompt: list[int], fsm: TokenFSM, particles: int, seed: int, **sampling: Any
    ) -> tuple[str, int, GenerationOutput]:
        """Text, its tokens, and the last output. `particles` 0: the step mask."""
        assert fsm.key is not None
        self.fsms[fsm.key] = fsm
        if particles:
            sampling["conditional_sampling"] = {"particles": particles}
        request = GenerationRequest.model_validate(
            {
                "request_id": "benchmark",
                "prompt": prompt,
                "grammar": {"key": fsm.key},
                "sampling": {"seed": seed, "temperature": 1.0, **sampling},
            }
        )
        outputs = [output async for output in self.engine.generate(request)]
        assert outputs[-1].error is None, outputs[-1].error
        tokens = sum(len(output.token_ids) for output in outputs)
        return "".join(output.text for output in outputs), tokens, outputs[-1]


async def together(asked: Sequence[Any], clients: int) -> list[Any]:
    """The results of all coroutines, so many at a time."""
    gate = asyncio.Semaphore(clients)

    async def one(coroutine: Any) -> Any:
        async with gate:
            return await coroutine

    return await asyncio.gather(*map(one, asked))


# -- distributions ---------------------------------------------------------------------------------------------------


@torch.inference_mode()
def exact_distribution(
    model: LlamaForCausalLM, loaded: LoadedModel, prompt: list[int], fsm: TokenFSM
) -> dict[str, float]:
    """The model's probability of every text, over all its tokenizations, its end included; not normalised.

    `model` is the one that transformers runs, and `loaded` the same in our engine.
    """
    found: dict[str, float] = {}

    def walk(state: int, token_ids: list[int], log_probability: float) -> None:
        logits = model(torch.tensor([prompt + token_ids])).logits[0, -1, : loaded.head.token_limit]
        logprobs = logits.double().log_softmax(-1)
        for token_id in fsm.allowed_tokens(state):
            reached = log_probability + float(logprobs[token_id])
            if token_id in loaded.vocabulary.eos_token_ids:
                text = b"".join(map(loaded.vocabulary.token_bytes, token_ids)).decode()
                found[text] = found.get(text, 0.0) + float(np.exp(reached))
            else:
                walk(fsm.next_state(state, token_id), [*token_ids, token_id], reached)

    walk(fsm.initial_state, [], 0.0)
    return found


def distance(counts: NDArray[Any], target: NDArray[np.float64]) -> float:
    return float(np.abs(counts / counts.sum() - target).sum() / 2)


def interval(values: Sequence[float]) -> str:
    low, high = np.quantile(values, [0.025, 0.975])
    return f"[{low:.3f}, {high:.3f}]"


async def distributions(
    model: LlamaForCausalLM, loaded: LoadedModel, name: str, config: EngineConfig, arguments: argparse.Namespace
) -> None:
    asker, answers = Asker(loaded, config), arguments.answers
    rng = np.random.default_rng(0)
    for language in arguments.languages:
        question, specification = LANGUAGES[language]
        messages = [{"role": "user", "content": question}]
        rendered = str(loaded.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
        prompt = loaded.tokenizer.encode(rendered, add_special_tokens=False)
        fsm = compile_grammar(specification, loaded.vocabulary)
        exact = exact_distribution(model, loaded, prompt, fsm)
        texts = list(exact)
        valid = sum(exact.values())
        target = np.array([exact[text] for text in texts]) / valid
        for particles in (0, *PARTICLES[1:]):
            asked = [asker.ask(prompt, fsm, particles, seed) for seed in range(answers)]
            told = await together(asked, max(1, config.slots // max(1, particles)))
            index = [texts.index(text) for text, _, _ in told]
            counts = np.bincount(index, minlength=len(texts))
            resampled = rng.multinomial(answers, counts / answers, 1000)
            floor = np.mean([distance(one, target) for one in rng.multinomial(answers, target, 1000)])
            estimates = [last.conditional_sampling["valid_logprob"] for _, _, last in told if last.conditional_sampling]
            estimate = f"{np.exp(estimates).mean() / valid:.3f}" if estimates else "-"
            shown = interval([distance(one, target) for one in resampled])
            print(
                f"| {name} | {language} | {len(texts)} | {valid:.1e} | {particles or 'step mask'} "
                f"| {distance(counts, target):.3f} {shown} | {floor:.3f} | {estimate} |",
                flush=True,
            )
    await asyncio.to_thread(asker.engine.close)


# -- true answers, and what they cost --------------------------------------------------------------------------------


def right_fields(text: str, answer: str) -> tuple[int, int]:
    """Scalars of `answer` that `text` has, and all of them."""
    try:
        given = dict(leaves(parse_json(text)))
    except ValueError:
        given = {}
    wanted = dict(leaves(parse_json(answer)))
    return sum(path in given and given[path] == value for path, value in wanted.items()), len(wanted)


async def true_answers(loaded: LoadedModel, config: EngineConfig, records: int, seeds: int) -> None:
    asker = Asker(loaded, config)
    rng = np.random.default_rng(0)
    instances = list(record_instances(loaded.vocabulary, MODEL, records, GrammarOptions()))
    answers = [example.answer for example in held_out_records(records)]
    for particles in (0, 8):
        asked = [
            asker.ask(instance.prompt_ids, instance.fsm, particles, seed, max_tokens=200)
            for seed in range(seeds)
            for instance in instances
        ]
        told = await together(asked, max(1, config.slots // max(1, particles)))
        pairs = [(text, answers[i % records]) for i, (text, _, _) in enumerate(told)]
        exact = np.array([text == answer for text, answer in pairs], float)
        fields = np.array([right_fields(text, answer) for text, answer in pairs])
        cut = sum(last.finish_reason == "length" for _, _, last in told)
        # Records are drawn, not answers: those to one prompt belong together.
        chosen = rng.integers(0, records, (1000, records))
        by_record = exact.reshape(seeds, records).mean(0)[chosen].mean(1)
        right = fields[:, 0].reshape(seeds, records).sum(0)[chosen].sum(1)
        shares = right / fields[:, 1].reshape(seeds, records).sum(0)[chosen].sum(1)
        print(
            f"| {particles or 'step mask'} | {len(pairs)} | {exact.mean():.3f} {interval(by_record)} "
            f"| {fields[:, 0].sum() / fields[:, 1].sum():.3f} {interval(shares)} | {cut} |",
            flush=True,
        )
    await asyncio.to_thread(asker.engine.close)


def settings_of_cost() -> Iterator[tuple[str, int, dict[str, Any]]]:
    yield "step mask, drafts and forced tokens", 0, {}
    yield "step mask, neither", 0, {"forced_text": False, "ngram": 0}
    yield "1 particle", 1, {}
    yield "8 particles", 8, {}


async def cost(loaded: LoadedModel, config: EngineConfig, records: int) -> None:
    instances = list(record_instances(loaded.vocabulary, MODEL, records, GrammarOptions()))
    for clients in (1, CLIENTS):
        for name, particles, changes in settings_of_cost():
            asker = Asker(loaded, config.model_copy(update=changes))
            rates = []
            for repeat in range(3):
                asked = [
                    asker.ask(one.prompt_ids, one.fsm, particles, seed, max_tokens=200)
                    for seed, one in enumerate(instances)
                ]
                steps, started = asker.engine.statistics.steps, time.perf_counter()
                told = await together(asked, clients)
                seconds = time.perf_counter() - started
                steps = asker.engine.statistics.steps - steps
                other = [last.conditional_sampling["other_tokens"] for _, _, last in told if last.conditional_sampling]
                tokens = sum(many for _, many, _ in told)
                if repeat:  # the first reads the mask rows
                    rates.append((tokens / seconds, (tokens + sum(other)) / seconds, steps, seconds))
            answer, drawn, steps, _ = np.median(rates, axis=0)
            print(f"| {clients} | {name} | {answer:.0f} | {drawn:.0f} | {steps:.0f} |", flush=True)
            await asyncio.to_thread(asker.engine.close)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--answers", type=int, default=400, help="for each distance")
    parser.add_argument("--records", type=int, default=100, help="held-out records that are answered")
    parser.add_argument("--seeds", type=int, default=2, help="answers to each record")
    parser.add_argument("--parts", nargs="+", default=["distance", "truth", "cost"], metavar="PART")
    parser.add_argument("--models", nargs="+", default=["toy", "embedded"], metavar="MODEL", help="of the distances")
    parser.add_argument("--languages", nargs="+", default=list(LANGUAGES), choices=list(LANGUAGES), help="of the same")
    arguments = parser.parse_args()
    config = EngineConfig(slots=128, step_tokens=1024, threads=1, max_length=512)
    loaded = load(MODEL, config)
    if "distance" in arguments.parts:
        print("| model | language | texts | valid | particles | distance | floor | mean estimate / valid |")
        print("|---|---|---|---|---|---|---|---|")
        if "toy" in arguments.models:
            toy = toy_model(loaded)
            ours = prepare(copy.deepcopy(toy), loaded.tokenizer, loaded.vocabulary, config)
            asyncio.run(distributions(toy, ours, "toy", config, arguments))
        if "embedded" in arguments.models:
            embedded = LlamaForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
            asyncio.run(distributions(embedded, loaded, "embedded", config, arguments))
    if "truth" in arguments.parts:
        print("\n| particles | answers | exact records | fields right | cut |\n|---|---|---|---|---|")
        asyncio.run(true_answers(loaded, config, arguments.records, arguments.seeds))
    if "cost" in arguments.parts:
        print("\n| clients | drawn by | tokens of answers / s | drawn tokens / s | steps |\n|---|---|---|---|---|")
        asyncio.run(cost(loaded, config, 24))


if __name__ == "__main__":
    main()
