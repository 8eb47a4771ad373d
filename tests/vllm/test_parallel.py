"""Engines that are spread out, or have an adapter, answer as one engine does: `vllm serve` with our plugin."""

from __future__ import annotations

from pathlib import Path

import pytest

from models.variants import adapter
from tests.vllm.answers import Answer, answers, texts
from tests.vllm.server import vllm_serve


@pytest.fixture(scope="module")
def merged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, list[Answer]]:
    """An adapter, the model with the adapter merged, and the answers of one engine that has it."""
    folder = tmp_path_factory.mktemp("merged")
    adapter(folder / "adapter", folder / "model")
    with vllm_serve(folder, model=folder / "model") as url:
        given = answers(url, "tiny")
    assert sum(answer.finish_reason == "stop" for answer in given) >= 20
    return folder / "adapter", folder / "model", given


def test_tensor_parallel(merged: tuple[Path, Path, list[Answer]], tmp_path: Path) -> None:
    arguments = ("--tensor-parallel-size", "2")
    with vllm_serve(tmp_path, arguments, model=merged[1], VLLM_CPU_OMP_THREADS_BIND="0|1") as url:
        given = answers(url, "tiny")
    assert "Worker_TP1" in (tmp_path / "vllm.log").read_text()
    assert texts(given) == texts(merged[2])


def test_an_adapter(merged: tuple[Path, Path, list[Answer]], tmp_path: Path) -> None:
    """As the model into which it is merged; the model without it is served beside it, and says something else."""
    arguments = ("--enable-lora", "--max-lora-rank", "8", "--lora-modules", f"tuned={merged[0]}")
    with vllm_serve(tmp_path, arguments) as url:
        given, without = answers(url, "tuned"), answers(url, "tiny")
    assert texts(given) == texts(merged[2])
    assert sum(one.text != other.text for one, other in zip(given, without, strict=True)) >= 5
