"""Two engines that each have the whole attention and share the experts of a mixture answer as one engine does.

vLLM's CPU build cannot exchange the experts' tokens by itself: `experts_on_cpus` adds that.
"""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest

from models.variants import mixture_of_experts
from tests.vllm import experts_on_cpus
from tests.vllm.answers import Answer, answers, texts
from tests.vllm.server import ROOT, vllm_serve

pytestmark = [pytest.mark.long, pytest.mark.timeout(3000)]

_GENERATED = re.compile(r'^vllm:generation_tokens_total\{engine="(\d+)",.*\} (\S+)$', re.MULTILINE)


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Answer]]:
    """A model and the answers of one engine."""
    folder = tmp_path_factory.mktemp("mixture")
    mixture_of_experts(folder / "model")
    with vllm_serve(folder, model=folder / "model") as url:
        given = answers(url, "tiny")
    assert sum(answer.finish_reason == "stop" for answer in given) >= 20
    return folder / "model", given


@pytest.mark.parametrize("arguments", [(), ("--enable-expert-parallel",)], ids=["parts of each", "some of them"])
def test_two_engines_share_the_experts(
    mixture: tuple[Path, list[Answer]], arguments: tuple[str, ...], tmp_path: Path
) -> None:
    """Of each expert an engine has a part, or of the experts some: alone neither could compute a layer."""
    model, expected = mixture
    path = f"{experts_on_cpus.enabled_in(tmp_path)}:{ROOT}"
    more = ("--data-parallel-size", "2", "--api-server-count", "1", *arguments)
    with vllm_serve(tmp_path, more, model=model, PYTHONPATH=path) as url:
        given = answers(url, "tiny")
        generated = dict(_GENERATED.findall(httpx.get(f"{url}/metrics").text))
    assert texts(given) == texts(expected)
    print("tokens of each engine:", generated)
    assert sorted(generated) == ["0", "1"] and all(float(tokens) > 100 for tokens in generated.values())
