"""A second model drafts: as many forward passes fewer as it is right, and not one token different."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpu_workers.model.loader import UnsupportedModelError, prepare
from gpu_workers.speculative import logits_drafter
from gpu_workers.speculative.draft_model import DraftModel, load_draft_model
from tests.gpu_workers.support import (
    CONFIGS,
    byte_tokenizer,
    byte_vocabulary,
    engine_config,
    grammars,
    loaded,
    random_fsm,
    repeat_fsm,
    request,
    run,
    running_engine,
    tiny_model,
)

FSMS: dict[str, Any] = {"random": random_fsm(np.random.default_rng(1)), "letters": repeat_fsm("abcdefgh")}
SETTINGS = {"prompt_lookup_max": 0, "forced_text": False, "draft_cost": 0.05}


def draft_model(seed: int, draft_to_target: Any = None, **settings: Any) -> DraftModel:
    config = engine_config(**{**SETTINGS, **settings})
    model = prepare(tiny_model(CONFIGS["llama"](), seed), byte_tokenizer(), byte_vocabulary(), config)
    return DraftModel(model, config, draft_to_target)


def requests_of(seed: int) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [
        request(
            rng.integers(0, 256, int(rng.choice([1, 7, 30]))).tolist(),
            grammar=[None, "random", "letters"][i % 3],
            temperature=i // 3 % 2,
            max_tokens=int(rng.integers(5, 30)),
            seed=int(rng.integers(2**40)),
        )
        for i in range(9)
    ]


@pytest.mark.parametrize("drafter", ["itself", "another", "pruned", "chunked"])
def test_no_token_differs(drafter: str) -> None:
    """The target as its own draft model, one that is nearly always wrong, a pruned vocabulary, long prompts."""
    requests = requests_of(3)
    with running_engine(
        config=engine_config(max_num_seqs=1, num_speculative_tokens=0, prompt_lookup_max=0), fetch=grammars(**FSMS)
    ) as engine:
        alone = [run(engine, one)[0] for one in requests]
    make = {
        "itself": lambda: draft_model(0),
        "another": lambda: draft_model(1),
        "pruned": lambda: draft_model(0, np.arange(90, 140)),
        "chunked": lambda: draft_model(0, long_prefill_token_threshold=2),
    }
    config = engine_config(**SETTINGS, max_num_batched_tokens=40)
    with running_engine(config=config, fetch=grammars(**FSMS), draft_model=make[drafter]()) as engine:
        together = run(engine, *requests, stagger=1)
        assert engine.statistics.drafted_tokens > 0
    for result, expected in zip(together, alone, strict=True):
        assert (result.token_ids, result.text) == (expected.token_ids, expected.text)


def test_a_perfect_drafter_saves_most_forward_passes() -> None:
    one = request([5] * 10, temperature=0, max_tokens=40)
    steps = []
    for drafter in (None, draft_model(0)):
        config = engine_config(**SETTINGS, max_num_batched_tokens=64, long_prefill_token_threshold=64)
        with running_engine(config=config, draft_model=drafter) as engine:
            (result,) = run(engine, one)
            steps.append(engine.statistics.steps)
            accepted, drafted = engine.statistics.accepted_tokens, engine.statistics.drafted_tokens
    assert len(result.token_ids) == 40
    assert accepted == drafted > 20
    assert steps[1] < steps[0] / 3


def test_a_draft_that_is_just_likely_enough_is_made() -> None:
    """`draft_cost` is the smallest probability with which a token is drafted, here the estimate of a new sequence."""
    drafter = draft_model(0, draft_cost=logits_drafter._PRIOR)
    with running_engine(config=engine_config(**SETTINGS), draft_model=drafter) as engine:
        run(engine, request([5] * 10, temperature=0, max_tokens=4))
        assert engine.statistics.accepted_tokens > 0


def test_drafts_stay_inside_mask_and_draft_vocabulary() -> None:
    """The letters e to h are pruned away: the drafter never proposes them, the target still draws them."""
    kept = np.array([ord(letter) for letter in "abcdxyz"])
    config = engine_config(**SETTINGS, max_num_batched_tokens=40)
    proposed: set[int] = set()
    drafter = draft_model(0, kept)
    original = drafter.propose

    def watched(sequences: list[Any]) -> None:
        original(sequences)
        proposed.update(draft.token_id for sequence in sequences for draft in sequence.drafts)

    drafter.propose = watched  # type: ignore[method-assign]
    with running_engine(config=config, fetch=grammars(**FSMS), draft_model=drafter) as engine:
        results = run(engine, *(request([i], grammar="letters", max_tokens=20, seed=i) for i in range(6)))
    assert proposed and proposed <= set(b"abcd")
    assert set("".join(result.text for result in results)) & set("efgh")


def test_a_draft_model_is_loaded_from_a_folder_and_checked(tmp_path: Path) -> None:
    config = engine_config()
    target = loaded("llama", config)
    folder = tmp_path / "draft"
    tiny_model(CONFIGS["llama"](), 1).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    kept = tmp_path / "kept.json"
    kept.write_text(json.dumps([97, 98]))
    assert load_draft_model(config, target) is None
    named = engine_config(draft_model=str(folder), draft_vocabulary=str(kept))
    assert load_draft_model(named, target) is not None
    kept.write_text(json.dumps([10**6]))
    with pytest.raises(UnsupportedModelError, match="draft vocabulary"):
        load_draft_model(named, target)
    other = byte_tokenizer().__class__.from_pretrained(folder)
    other.add_tokens(["<more>"])
    other.save_pretrained(folder)
    with pytest.raises(UnsupportedModelError, match="tokenizer"):
        load_draft_model(engine_config(draft_model=str(folder)), target)
