"""Two engines that each have the whole attention and share the experts of a mixture answer as one engine does.

vLLM's CPU build cannot exchange the experts' tokens by itself: `experts_on_cpus` adds that.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from models.variants import mixture_of_experts
from tests.vllm import experts_on_cpus
from tests.vllm.answers import QUESTIONS, Answer, answers, texts
from tests.vllm.serve_run import serve_run
from tests.vllm.server import ROOT, vllm_serve
from tests.vllm.test_serve_llm import compilations

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


def test_ray_serve_llm(mixture: tuple[Path, list[Answer]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example for GPUs, with this model and on CPUs."""
    model, expected = mixture
    monkeypatch.setenv("PYTHONPATH", f"{experts_on_cpus.enabled_in(tmp_path)}:{ROOT}")

    def change(args: dict[str, Any]) -> None:
        args["compiler"] = {"num_cpus": 0.25}
        args["ingress_deployment_config"] = {"ray_actor_options": {"num_cpus": 0.25}}
        engine = args["llm_config"]
        engine["model_loading_config"] = {"model_id": "tiny", "model_source": str(model)}
        engine["deployment_config"]["ray_actor_options"] = {"num_cpus": 0.25}
        engine["placement_group_config"] = {"bundles": [{"CPU": 0.25}]}
        variables = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        engine["runtime_env"] = {"env_vars": variables}
        engine["engine_kwargs"] |= {"max_model_len": 1024, "max_num_seqs": 16, "enforce_eager": True}
        engine["engine_kwargs"] |= {"dtype": "float32"}

    with serve_run("data-parallel.yaml", tmp_path, change) as url:
        given = answers(url, "tiny")
    assert texts(given) == texts(expected)
    loaded = re.findall(r"EngineCore_DP(\d) pid=.* loaded grammar: ", (tmp_path / "serve.log").read_text())
    print("grammars that each engine loaded:", [loaded.count(rank) for rank in "01"])
    assert min(loaded.count(rank) for rank in "01") >= 5
    assert compilations(tmp_path) == len(QUESTIONS)
