"""Conditional sampling: judged by a list of all outputs, with probabilities that transformers computes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from pydantic import ValidationError

from gpu_workers.engine.engine import Engine
from gpu_workers.output import GenerationOutput
from gpu_workers.request import GenerationRequest, RequestError
from gpu_workers.sequence.particles import ParticleGroup
from gpu_workers.speculative.draft_model import load_draft_model
from tests.gpu_workers.support import (
    CONFIGS,
    END,
    Result,
    collect,
    engine_config,
    grammars,
    loaded,
    random_fsm,
    repeat_fsm,
    request,
    run,
    running_engine,
    text_fsm,
    tiny_model,
)
from tests.gpu_workers.test_rejection import chi_square_is_usual

TEXTS = ("aa", "bc", "bcb", "bcbb", "ca", "cc", "ccab", "ccb")
"""A model of random weights begins half of its masked outputs so that they end in an unlikely way."""
PROMPT = "hello there how are you"
TEMPERATURE = 6.0
FSMS: dict[str, Any] = {
    "texts": text_fsm(*TEXTS),
    "choice": text_fsm("yes", "no"),
    "endless": repeat_fsm("abc"),
    "random": random_fsm(np.random.default_rng(3)),
}
LARGE = engine_config(max_num_seqs=128, max_num_batched_tokens=300, long_prefill_token_threshold=64, max_waiting=4096)


def conditional(particles: int, prompt: str = PROMPT, **settings: Any) -> GenerationRequest:
    below = {"ess_threshold": settings.pop("ess_threshold")} if "ess_threshold" in settings else {}
    grammar = settings.pop("grammar", "texts")
    return request(prompt, grammar=grammar, conditional_sampling={"particles": particles, **below}, **settings)


def estimate(result: Result) -> dict[str, Any]:
    assert result.outputs[-1].conditional_sampling is not None
    return result.outputs[-1].conditional_sampling


def log_probabilities(output: list[int], temperature: float) -> NDArray[np.float64]:
    """Of every token at every place of `output` behind the prompt, [len(output), tokens], by transformers."""
    prompt = list(PROMPT.encode())
    with torch.inference_mode():
        logits = tiny_model(CONFIGS["llama"]())(torch.tensor([prompt + output])).logits
    places = logits[0, len(prompt) - 1 : len(prompt) - 1 + len(output), : END + 1]
    return (places / temperature).log_softmax(-1).numpy()


@pytest.fixture(scope="module")
def exact() -> NDArray[np.float64]:
    """Probability of each of TEXTS, its end included, by the model alone."""
    tokens = [[*text.encode(), END] for text in TEXTS]
    return np.exp([float(log_probabilities(one, TEMPERATURE)[range(len(one)), one].sum()) for one in tokens])


def drawn(engine: Engine, particles: int, many: int, **settings: Any) -> list[Result]:
    settings = {"temperature": TEMPERATURE, **settings}
    return run(engine, *(conditional(particles, seed=seed, **settings) for seed in range(many)))


def counts(results: list[Result]) -> NDArray[np.int64]:
    found = Counter(result.text for result in results)
    assert found.keys() <= set(TEXTS)
    return np.array([found[text] for text in TEXTS])


# -- the distribution ------------------------------------------------------------------------------------------------


def test_more_particles_come_closer_to_the_conditional_distribution(exact: NDArray[np.float64]) -> None:
    """A chi-square test tells one particle, the step mask, from the exact distribution, and not many of them."""
    target = exact / exact.sum()
    cells = np.array([0, 1, 3, 3, 2, 3, 3, 3])  # "aa", "bc", "ca"; "cc" with the four that are hardly ever valid
    assert target[[2, 3, 6, 7]].sum() < 0.01
    distances, usual = {}, {}
    with running_engine(config=LARGE, fetch=grammars(**FSMS)) as engine:
        for particles, many in ((1, 300), (4, 200), (16, 150), (64, 40)):
            found = counts(drawn(engine, particles, many))
            distances[particles] = float(np.abs(found / many - target).sum() / 2)
            in_cells = np.bincount(cells, found)
            usual[particles] = chi_square_is_usual(in_cells, np.bincount(cells, target) * many)
    assert distances[1] > distances[4] > distances[16]
    assert distances[1] > 0.3 and distances[64] < 0.25  # forty answers of the exact distribution itself: about 0.1
    assert usual == {1: False, 4: False, 16: True, 64: True}


@pytest.mark.parametrize("ess_threshold", [0.0, 0.5, 1.0])
def test_estimates_are_unbiased_for_any_number(exact: NDArray[np.float64], ess_threshold: float) -> None:
    """The mean of exp(valid_logprob) over the answers of one text is the model's probability of this text, for four
    particles as for thousands: properly weighted, whether and whenever particles are copied."""
    many = 150
    with running_engine(config=LARGE, fetch=grammars(**FSMS)) as engine:
        results = drawn(engine, 4, many, ess_threshold=ess_threshold)
    weights = np.exp([estimate(result)["valid_logprob"] for result in results])
    for text, probability in zip((*TEXTS, None), (*exact, exact.sum()), strict=True):
        values = np.where([text in (None, result.text) for result in results], weights, 0) / exact.sum()
        deviation = max(values.std() / np.sqrt(many), 1e-3)
        assert abs(values.mean() - probability / exact.sum()) < 4 * deviation, text


# -- one particle ----------------------------------------------------------------------------------------------------


def test_one_particle_is_an_ordinary_output_with_its_weight() -> None:
    """The same tokens, and the logarithm of what the masks left at every token, the end included."""
    settings = [{"seed": seed, "temperature": t, "max_tokens": 9} for seed in range(6) for t in (0.7, 2.0)]
    with running_engine(fetch=grammars(**FSMS)) as engine:
        for name in ("texts", "choice", "random"):
            plain = run(engine, *(request(PROMPT, grammar=name, **one) for one in settings))
            weighed = run(engine, *(conditional(1, grammar=name, **one) for one in settings))
            for one, result, particle in zip(settings, plain, weighed, strict=True):
                assert (particle.token_ids, particle.text) == (result.token_ids, result.text)
                assert particle.finish_reason == result.finish_reason
                assert particle.outputs[-1].prompt_tokens == result.outputs[-1].prompt_tokens
                if result.finish_reason == "length":
                    assert estimate(particle) == {
                        "valid_logprob": None,
                        "effective_sample_size": 0.0,
                        "other_tokens": 0,
                    }
                    continue
                whole = [t for t in result.token_ids if t != END] + [END]
                places = log_probabilities(whole, one["temperature"])
                state, expected = FSMS[name].initial_state, 0.0
                for place, token_id in zip(places, whole, strict=True):
                    allowed = sorted(FSMS[name].allowed_tokens(state))
                    expected += float(np.logaddexp.reduce(place[allowed]))
                    state = FSMS[name].next_state(state, token_id)
                assert estimate(particle)["valid_logprob"] == pytest.approx(expected, abs=1e-9)
                assert estimate(particle)["effective_sample_size"] == pytest.approx(1)


@pytest.mark.parametrize("device_step", ["off", "eager"])
def test_copies_are_computed_as_what_they_are_copies_of(device_step: str) -> None:
    """The log-probabilities that are told of the answer are those of its own text, whatever slots it went through."""
    config = engine_config(max_num_seqs=16, max_num_batched_tokens=40, device_step=device_step)
    with running_engine(config=config, fetch=grammars(**FSMS)) as engine:
        results = run(
            engine,
            *(
                conditional(8, seed=seed, grammar=name, temperature=3.0, max_tokens=20, ess_threshold=1.0, logprobs=0)
                for seed in range(4)
                for name in ("texts", "random")
            ),
        )
    for result in results:
        reports = [report for output in result.outputs for report in output.reports]
        assert [report["token_id"] for report in reports] == result.token_ids
        places, state = log_probabilities(result.token_ids, 1.0), 0
        fsm = FSMS["texts" if result.text in TEXTS else "random"]
        for place, report in zip(places, reports, strict=True):
            allowed = place[sorted(fsm.allowed_tokens(state))]
            expected = place[report["token_id"]] - np.logaddexp.reduce(allowed)
            assert report["logprob"] == pytest.approx(expected, abs=1e-9)
            state = fsm.next_state(state, report["token_id"])


def test_when_particles_start() -> None:
    """All but the first copy its prompt, so they start after it; none starts again when the last token is known."""
    events: list[tuple[str, int]] = []

    async def generate(particle: GenerationRequest) -> AsyncGenerator[GenerationOutput, None]:
        index = particle.choice_index
        events.append(("start", index))
        await asyncio.sleep(0)
        events.append(("token", index))
        probe = {"log_mass": -5.0 * index, "only_end": False}
        yield GenerationOutput(reports=[{"token_id": 97, "probe": probe}])
        for _ in range(5):
            await asyncio.sleep(0)  # the engine may learn later that this token was the last
        yield GenerationOutput(finish_reason="stop")

    async def live() -> None:
        async with asyncio.TaskGroup() as tasks:
            await ParticleGroup(conditional(3, ess_threshold=1.0), generate, tasks).run()

    asyncio.run(live())
    assert events == [("start", 0), ("token", 0), ("start", 1), ("start", 2), ("token", 1), ("token", 2)]


# -- limits and settings ---------------------------------------------------------------------------------------------


def test_an_output_that_the_limit_cuts_is_no_answer() -> None:
    """Of texts with two tokens and an end, one with four never is; where all are cut, one of them is, as `length`."""
    with running_engine(config=LARGE, fetch=grammars(**FSMS)) as engine:
        fits = drawn(engine, 8, 20, max_tokens=2)
        (cut,) = drawn(engine, 8, 1, grammar="endless", max_tokens=5, logit_bias={}, ignore_eos=True)
        (fitting,) = drawn(engine, 8, 1, grammar="choice", max_tokens=3)
    assert {result.text for result in fits} <= {"aa", "ca"} and {result.finish_reason for result in fits} == {"stop"}
    assert cut.finish_reason == "length" and len(cut.token_ids) == 5 and set(cut.text) <= set("abc")
    assert estimate(cut) == {"valid_logprob": None, "effective_sample_size": 0.0, "other_tokens": 35}
    assert fitting.text in ("yes", "no") and fitting.finish_reason == "stop"


def test_other_ends_of_an_output() -> None:
    """`min_tokens`, stop strings and stop tokens are part of what is valid, as under the mask alone."""
    with running_engine(config=LARGE, fetch=grammars(**FSMS)) as engine:
        longer = drawn(engine, 8, 10, min_tokens=3)
        stopped = drawn(engine, 8, 10, grammar="endless", stop=["ab"], max_tokens=30)
        by_token = drawn(engine, 8, 10, grammar="endless", stop_token_ids=[ord("b")], max_tokens=30)
    assert {len(result.text) for result in longer} <= {2, 3, 4}
    # Shorter ones are those that nothing could follow.
    assert not {"bc", "cc"} & {result.text for result in longer}
    assert all("ab" not in result.text and result.finish_reason == "stop" for result in stopped)
    assert all("b" not in result.text and result.finish_reason == "stop" for result in by_token)
    assert any(result.token_ids[-1] == ord("b") for result in (*stopped, *by_token))


def test_requests_that_cannot_be_conditioned_are_refused() -> None:
    with pytest.raises(ValidationError, match="conditional_sampling"):
        conditional(4, emitted_token_ids=[5])
    with pytest.raises(ValidationError, match="needs a grammar"):
        request("x", conditional_sampling={"particles": 4})


def test_more_particles_than_half_of_the_slots_are_refused() -> None:
    with running_engine(config=engine_config(max_num_seqs=4), fetch=grammars(**FSMS)) as engine:
        refused, fine = run(engine, conditional(3), conditional(2))
    assert refused.error is not None
    assert (refused.error["status"], refused.error["param"]) == (400, "conditional_sampling.particles")
    assert fine.error is None


# -- in company ------------------------------------------------------------------------------------------------------


def crowd(seed: int) -> list[GenerationRequest]:
    rng = np.random.default_rng(seed)
    requests = []
    for i in range(9):
        settings = {
            "seed": seed + i,
            "temperature": float(rng.choice([0.8, 3])),
            "max_tokens": int(rng.integers(1, 15)),
        }
        prompt = PROMPT[: int(rng.integers(1, len(PROMPT)))]
        name = list(FSMS)[int(rng.integers(len(FSMS)))]
        if rng.random() < 0.7:
            many = int(rng.integers(1, 5))
            below = float(rng.choice([0, 0.5, 1]))
            requests.append(conditional(many, prompt, grammar=name, ess_threshold=below, logprobs=1, **settings))
        else:
            requests.append(request(prompt, grammar=None if i % 2 else name, **settings))
    return requests


def told(result: Result) -> tuple[Any, ...]:
    last = result.outputs[-1]
    rounded = {
        name: value if value is None else round(value, 9) for name, value in (last.conditional_sampling or {}).items()
    }
    return result.token_ids, result.text, result.finish_reason, rounded


@pytest.mark.parametrize("seed", range(3))
def test_the_same_answer_in_any_company(seed: int) -> None:
    """Alone and in a crowd that waits for slots, in small chunks, beside drafts: the same tokens and estimates."""
    requests = crowd(seed)
    with running_engine(config=engine_config(max_num_seqs=8), fetch=grammars(**FSMS)) as engine:
        alone = [told(run(engine, one)[0]) for one in requests]
        assert [told(result) for result in run(engine, *requests)] == alone
    small = engine_config(
        max_num_seqs=8, long_prefill_token_threshold=2, min_prefix_tokens=1, overlap=True, device_step="eager"
    )
    drafts = load_draft_model(engine_config(), loaded("llama", small)) if seed % 2 else None
    with running_engine(config=small, fetch=grammars(**FSMS), draft_model=drafts) as engine:
        assert [told(result) for result in run(engine, *reversed(requests), stagger=1)] == alone[::-1]


@pytest.mark.parametrize("patience", [0, 8])
def test_groups_lend_their_slots_while_a_mask_is_read(patience: int) -> None:
    """Two groups and a few others in slots for one group, masks that are late: all come to their end."""
    late = [text_fsm(*TEXTS, sleeping=[state]) for state in (0, 2, 4)]
    config = engine_config(max_num_seqs=4, preempt_patience=patience)
    fsms = {f"late{i}": fsm for i, fsm in enumerate(late)} | FSMS

    async def everything(engine: Engine) -> list[Result]:
        requests = [conditional(2, grammar=f"late{i}", seed=i, temperature=TEMPERATURE) for i in range(3)]
        waiting = [asyncio.create_task(collect(engine, one)) for one in requests]
        await asyncio.sleep(0.1)
        others = await asyncio.gather(
            *(collect(engine, request(PROMPT, seed=i, max_tokens=8)) for i in range(4)), collect(engine, conditional(2))
        )
        for fsm in late:
            fsm.release.set()
        return [*others, *await asyncio.gather(*waiting)]

    with running_engine(config=config, fetch=grammars(**fsms)) as engine:
        results = asyncio.run(asyncio.wait_for(everything(engine), 250))
        answers = run(engine, *(conditional(2, seed=i, temperature=TEMPERATURE) for i in range(3)))
    assert all(result.error is None for result in results)
    assert [result.text for result in results[-3:]] == [result.text for result in answers]


def test_one_failing_particle_fails_the_request_alone() -> None:
    broken = text_fsm("a", "bc", broken=[2])

    async def refused(_: Any) -> Any:
        raise RequestError("no such keyword", code="unsupported_grammar")

    with running_engine(
        config=engine_config(max_num_seqs=16, max_num_batched_tokens=40), fetch=grammars(broken=broken, **FSMS)
    ) as engine:
        failed, fine = run(
            engine, conditional(8, grammar="broken", temperature=50.0), conditional(4, temperature=TEMPERATURE)
        )
    assert failed.error is not None and failed.error["status"] == 500
    assert fine.text in TEXTS
    with running_engine(fetch=refused) as engine:
        (result,) = run(engine, conditional(2))
    assert result.error is not None and result.error["code"] == "unsupported_grammar"


def test_leaving_and_deadlines_free_all_slots() -> None:
    """`running_engine` looks at the slots."""
    asleep = repeat_fsm("abc", sleeping=[0])

    async def leave(engine: Engine, after_steps: int) -> None:
        one = asyncio.create_task(collect(engine, conditional(2, grammar="endless", max_tokens=60, ignore_eos=True)))
        while engine.statistics.steps < after_steps:
            await asyncio.sleep(0.001)
        one.cancel()
        await asyncio.gather(one, return_exceptions=True)

    with running_engine(fetch=grammars(asleep=asleep, **FSMS)) as engine:
        for _ in range(3):
            asyncio.run(leave(engine, engine.statistics.steps + 10))
        (late,) = run(engine, conditional(2, grammar="asleep", timeout_s=0.2))
        asleep.release.set()
        (after,) = run(engine, conditional(2, temperature=TEMPERATURE))
    assert late.error is not None and late.error["status"] == 408
    assert after.text in TEXTS
