"""EAGLE-3 in the engine: drafts as the paper's arithmetic gives them, and not one token of an output different."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from gpu_workers.config import EngineConfig
from gpu_workers.engine.engine import Engine
from gpu_workers.model.loader import UnsupportedModelError, prepare
from gpu_workers.speculative.eagle_drafter import EagleDrafter
from grammar_workers import compile_grammar
from tests.gpu_workers import eagle_reference as reference
from tests.gpu_workers.eagle_heads import IDS, random_head
from tests.gpu_workers.support import (
    CONFIGS,
    WIDTH,
    Result,
    byte_tokenizer,
    byte_vocabulary,
    closed,
    engine_config,
    grammars,
    random_fsm,
    request,
    run,
    running_engine,
    tiny_model,
)
from tests.gpu_workers.test_rejection import check_distribution

COMPILED = {
    "letters": {"type": "regex", "pattern": "[a-h]*"},
    "two letters": {"type": "regex", "pattern": "[ab]*"},
    "many letters": {"type": "regex", "pattern": "[a-h]{20,40}"},
    "texts": {"type": "choice", "choices": ["abcdefghijklmnop", "abcdefgxyz", "b"]},
}
FSMS: dict[str, Any] = {
    "random": random_fsm(np.random.default_rng(1)),  # stays with the host
    **{name: compile_grammar(specification, byte_vocabulary()) for name, specification in COMPILED.items()},
}
SETTINGS: dict[str, Any] = {
    "prompt_lookup_max": 0,
    "forced_text": False,
    "draft_cost": 1e-9,
    "max_num_batched_tokens": 40,
}


class Watched(EagleDrafter):
    """Notes for each proposal the tokens, how many the target has computed, and the drafts."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.ready = 0
        """Proposals that a captured step had made."""
        self.seen: list[tuple[Any, list[int], int, list[int]]] = []

    def _propose_ready(self, sequence: Any) -> bool:
        ready = super()._propose_ready(sequence)
        self.ready += ready and bool(sequence.drafts)
        return ready

    def propose(self, sequences: list[Any]) -> None:
        super().propose(sequences)
        for one in sequences:
            if one.drafts:
                drafts = [draft.token_id for draft in one.drafts]
                self.seen.append((one.request, list(one.token_ids), one.length, drafts))


@contextlib.contextmanager
def eagle_engine(
    kind: str = "llama", seed: int = 0, softer: float = 1, **settings: Any
) -> Iterator[tuple[Engine, Watched]]:
    """An engine on a tiny model, its logits divided by `softer`, with a random head of its own."""
    config = engine_config(**{**SETTINGS, **settings})
    model = tiny_model(CONFIGS[kind]())
    with torch.no_grad():
        model.get_output_embeddings().weight.div_(softer)
    target = prepare(model, byte_tokenizer(), byte_vocabulary(), config)
    drafter = Watched(random_head(target, seed), target, config)
    with closed(Engine(target, config, grammars(**FSMS), drafter), config) as engine:
        yield engine, drafter


def requests_of(seed: int, count: int = 12) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [
        request(
            rng.integers(0, 256, int(rng.choice([1, 7, 30]))).tolist(),
            grammar=[None, "random", "letters", "texts"][i % 4],
            temperature=i // 4 % 2,
            max_tokens=int(rng.integers(5, 30)),
            seed=int(rng.integers(2**40)),
        )
        for i in range(count)
    ]


def outputs(results: list[Result]) -> list[Any]:
    return [(one.token_ids, one.text, one.finish_reason) for one in results]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"draft_masks": False},
        {"forced_text": True, "prompt_lookup_max": 3},
        {"long_prefill_token_threshold": 2, "max_num_seqs": 2},
        {"device_step": "eager"},
        {
            "device_step": "eager",
            "draft_masks": False,
            "forced_text": True,
            "prompt_lookup_max": 3,
            "max_num_seqs": 2,
            "overlap": True,
        },
    ],
    ids=["masked", "unmasked", "all", "chunked", "device", "device, all"],
)
def test_no_token_differs(settings: dict[str, Any]) -> None:
    requests = requests_of(3)
    plain = engine_config(max_num_seqs=1, num_speculative_tokens=0, prompt_lookup_max=0, max_num_batched_tokens=40)
    with running_engine(config=plain, fetch=grammars(**FSMS)) as engine:
        alone = [run(engine, one)[0] for one in requests]
    with eagle_engine(**settings) as (engine, _):
        together = run(engine, *requests, stagger=1)
        assert engine.statistics.drafted_tokens > 0
    assert outputs(together) == outputs(alone)


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gpt_neox"])
@pytest.mark.parametrize("masks", [True, False])
@pytest.mark.parametrize("device_step", ["off", "eager"])
def test_drafts_are_those_of_the_paper(kind: str, masks: bool, device_step: str) -> None:
    """Whatever slots, chunks, reused prefixes, forced text and rejected drafts came before a proposal."""
    prefix = list(range(40, 60))
    requests = [
        request([*prefix[: 12 + i], 30 + i, 99], grammar=[None, "letters", "texts"][i % 3], max_tokens=14, seed=i)
        for i in range(9)
    ]
    shape: dict[str, Any] = {"max_num_seqs": 3, "long_prefill_token_threshold": 7, "num_speculative_tokens": 4}
    with eagle_engine(kind, **shape, draft_masks=masks, forced_text=True, device_step=device_step) as (engine, drafter):
        run(engine, *requests, stagger=2)
        assert engine.scheduler.reused_tokens > 0
        drafter_runs = drafter.seen
    assert (drafter.ready > 10) == (device_step == "eager")
    model = tiny_model(CONFIGS[kind]())
    weights, led = reference.random_weights(IDS, WIDTH), 0
    assert len(drafter_runs) > 30
    assert any(len(tokens) - computed > 1 for _, tokens, computed, _ in drafter_runs)
    for one, tokens, computed, drafts in drafter_runs:
        fsm = None if one.grammar is None else FSMS[one.grammar.specification["name"]]

        def allowed(ahead: list[int], one: Any = one, tokens: Any = tokens, fsm: Any = fsm) -> set[int]:
            state = fsm.initial_state
            for token_id in [*tokens[len(one.prompt) :], *ahead]:
                state = fsm.next_state(state, token_id)
            return fsm.allowed_tokens(state)

        for i, draft in enumerate(drafts):
            before = [*tokens, *drafts[:i]]
            free = reference.greedy_drafts(weights, model, before, computed, 1)
            if fsm is None or not masks:
                assert free == [draft]
            elif free != [draft]:  # it may be the likeliest of all where the mask was not known yet
                assert reference.greedy_drafts(weights, model, before, computed, 1, allowed(drafts[:i])) == [draft]
                led += 1
    assert (led > 5) == masks


def test_a_round_is_captured_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Verification, draws, the automaton and four drafts, one after another, without a host read or a graph break."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    one = request("abab", grammar="many letters", max_tokens=24, seed=3, temperature=1.0, top_p=0.9)
    shape: dict[str, Any] = {"max_num_seqs": 1, "long_prefill_token_threshold": 16, "num_speculative_tokens": 4}
    plain = engine_config(**shape, prompt_lookup_max=0)
    with running_engine(config=plain, fetch=grammars(**FSMS)) as engine:
        (expected,) = run(engine, one)
    with eagle_engine(**shape, device_step="compile") as (engine, drafter):
        (actual,) = run(engine, one, limit_s=250)  # compiling takes long on a busy machine
        assert engine.statistics.accepted_tokens > 0
        assert drafter.ready > len(drafter.seen) / 2
    assert outputs([actual]) == outputs([expected])


def test_unmasked_drafts_end_where_the_grammar_does() -> None:
    with eagle_engine(draft_masks=False) as (engine, drafter):
        run(engine, *(request([i, 70], grammar="letters", max_tokens=20, seed=i) for i in range(4)))
        accepted_all = {token_id for *_, drafts in drafter.seen for token_id in drafts}
    assert accepted_all <= set(b"abcdefgh")


@pytest.mark.parametrize("settings", [{"draft_sampling": "random"}, {"device_step": "eager"}], ids=["random", "device"])
def test_outputs_have_the_exact_distribution(settings: dict[str, Any]) -> None:
    """Joint over four tokens, at temperature 1: drafts drawn at random, and the likeliest ones in the device's step."""
    with eagle_engine(softer=3, max_num_batched_tokens=300, max_num_seqs=32, **settings) as (engine, _):
        check_distribution(engine, "two letters", b"ab", 4, softer=3)


def test_features_follow_their_tokens() -> None:
    """A prompt that begins like another takes over features with keys and values; a wiped slot has none."""
    with eagle_engine(max_num_seqs=2, long_prefill_token_threshold=8) as (engine, drafter):
        prompt = list(range(40, 70))
        run(engine, request(prompt, max_tokens=3, temperature=0))
        run(engine, request([*prompt[:25], 9, 9], max_tokens=3, temperature=0))
        assert engine.scheduler.reused_tokens == 25
        features = drafter.features
        assert engine.pool.nbytes == features.nbytes + sum(
            one.nbytes for one in (*engine.pool.keys, *engine.pool.values)
        )
        model = tiny_model(CONFIGS["llama"]())
        expected = reference.target_features(reference.random_weights(IDS, WIDTH), model, prompt[:25])
        held = [slot for slot in range(2) if torch.allclose(features[slot, :25], expected, atol=1e-5)]
        assert held
        engine.pool.clear(held[0], 10)
        assert not features[held[0], :10].any() and features[held[0], 10:25].any()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"eagle_head": "a", "draft_model": "b"}, "one drafter"),
        ({"draft_sampling": "random", "draft_masks": False}, "needs draft_masks"),
    ],
)
def test_settings_that_do_not_go_together(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        EngineConfig(**settings)


def test_a_model_without_a_list_of_layers_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="a list `layers`"), eagle_engine("gpt2"):
        pass
