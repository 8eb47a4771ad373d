"""The EAGLE-3 head: its arithmetic, its file, and what is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from gpu_workers.model.loader import UnsupportedModelError
from gpu_workers.speculative.eagle_head import EagleHead, load_eagle_head
from tests.gpu_workers import eagle_reference as reference
from tests.gpu_workers.support import WIDTH

IDS = torch.arange(3, 243, 4)


def write(folder: Path, weights: dict[str, Tensor], **changes: Any) -> Path:
    folder.mkdir(exist_ok=True)
    settings = {**reference.settings(len(IDS), WIDTH), **changes}
    (folder / "config.json").write_text(json.dumps(settings))
    save_file({name: weight.contiguous() for name, weight in weights.items()}, folder / "model.safetensors")
    return folder


def load(folder: Path) -> EagleHead:
    return load_eagle_head(str(folder), 2, reference.HIDDEN, nn.Embedding(WIDTH, reference.HIDDEN)).double()


def causal(module: nn.Module, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    attended = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    return attended.transpose(1, 2).flatten(-2)


def test_logits_are_those_of_the_paper(tmp_path: Path) -> None:
    weights = reference.random_weights(IDS, WIDTH)
    head = load(write(tmp_path, weights))
    assert head.token_ids.tolist() == IDS.tolist() and head.layers == reference.LAYERS
    torch.manual_seed(1)
    states = torch.randn(2, 11, reference.HIDDEN, dtype=torch.float64)
    token_ids = torch.randint(0, WIDTH, (1, 11))
    embedding = nn.Embedding.from_pretrained(torch.randn(WIDTH, reference.HIDDEN, dtype=torch.float64))
    head.use_embeddings(embedding.weight)
    with torch.no_grad():
        features = head.features(list(states))
        made = head(token_ids, features[None], torch.arange(11)[None], causal)
        logits = head.logits(made)[0]
        expected_features = torch.cat(list(states), -1) @ weights["fc.weight"].T
        expected = reference.outputs(weights, embedding(token_ids[0]), expected_features)
    assert torch.allclose(features, expected_features)
    assert torch.allclose(made[0], expected, atol=1e-4)
    assert torch.allclose(logits, reference.logits(weights, expected), atol=1e-3)


def test_a_head_may_bring_its_own_embeddings(tmp_path: Path) -> None:
    weights = reference.random_weights(IDS, WIDTH)
    own = torch.randn(WIDTH, reference.HIDDEN, dtype=torch.float64)
    head = load(write(tmp_path, {**weights, "embed_tokens.weight": own}))
    arguments = (
        torch.tensor([[5]]),
        torch.ones(1, 1, reference.HIDDEN, dtype=torch.float64),
        torch.zeros(1, 1),
        causal,
    )
    with torch.no_grad():
        made = head(*arguments)
        head.use_embeddings(own)
        assert torch.equal(made, head(*arguments))


def changed(name: str, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    weight = weights[name]
    other = weight + 1 if weight.dtype == torch.int64 else ~weight if weight.dtype == torch.bool else weight[:-1]
    return {**weights, name: other}


@pytest.mark.parametrize("name", sorted(reference.random_weights(IDS, WIDTH)))
def test_a_missing_or_misshapen_tensor_is_named(tmp_path: Path, name: str) -> None:
    weights = reference.random_weights(IDS, WIDTH)
    with pytest.raises(UnsupportedModelError, match=name.replace(".", r"\.")):
        load(write(tmp_path, changed(name, weights)))
    del weights[name]
    if name == "t2d":  # says nothing that d2t does not
        assert load(write(tmp_path, weights)).token_ids.tolist() == IDS.tolist()
        return
    with pytest.raises(UnsupportedModelError, match=rf"{name}.* missing"):
        load(write(tmp_path, weights))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": 2}, "2 layers"),
        ({"norm_output": True}, "norm_output"),
        ({"eagle_config": {"fc_norm": True}}, "fc_norm"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, "use_aux_hidden_state"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 2]}}, "layers of a model with 2"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 0]}}, "ascending"),
        ({"draft_vocab_size": 50}, "d2t|lm_head"),
        ({"hidden_size": 48}, "fc.weight"),
        ({"vocab_size": 200}, "from 0 to 199"),
    ],
)
def test_what_the_head_does_not_have_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        load(write(tmp_path, reference.random_weights(IDS, WIDTH), **changes))


def test_an_unknown_tensor_and_an_empty_folder_are_named(tmp_path: Path) -> None:
    weights = reference.random_weights(IDS, WIDTH)
    with pytest.raises(UnsupportedModelError, match=r"midlayer\.more not known"):
        load(write(tmp_path, {**weights, "midlayer.more": torch.zeros(1)}))
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(UnsupportedModelError, match=r"no config\.json and model\.safetensors"):
        load(tmp_path)
