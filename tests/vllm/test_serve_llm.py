"""The examples of Ray Serve LLM, run as `serve run` runs them: answers, refusals, and that every part does its part.

What each example says is compared with one engine of `vllm serve`, at temperature 0.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import openai
import pytest
from safetensors.torch import load_file, save_file

from tests.vllm.answers import QUESTIONS, Answer, Question, answers, texts
from tests.vllm.serve_run import serve_run
from tests.vllm.server import vllm_serve

pytestmark = [pytest.mark.long, pytest.mark.timeout(1500)]

WRONG = {"type": "object", "properties": {"n": {"type": "strin"}}}


def of_one_engine(folder: Path, questions: list[Question] = QUESTIONS) -> list[Answer]:
    folder.mkdir()
    with vllm_serve(folder) as url:
        return answers(url, "tiny", questions)


def expect_a_refusal(url: str, model: str) -> None:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=300)
    with pytest.raises(openai.BadRequestError, match=r"invalid_grammar: .*at /properties/n/type"):
        client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": "x"}],
            response_format={"type": "json_schema", "json_schema": {"name": "it", "schema": WRONG}},
        )


def compilations(folder: Path) -> int:
    """By the grammar tier of the application: nobody else has a compiler."""
    return len(re.findall(r":GrammarCompiler pid=.* compiled grammar: ", (folder / "serve.log").read_text()))


def test_one_engine(tmp_path: Path) -> None:
    """Each schema is compiled once, by the deployment."""
    expected = of_one_engine(tmp_path / "one")
    with serve_run("openai.yaml", tmp_path) as url:
        given = answers(url, "turnstile-tiny")
        expect_a_refusal(url, "turnstile-tiny")
        again = answers(url, "turnstile-tiny")
    assert texts(given) == texts(again) == texts(expected)
    assert compilations(tmp_path) == len(QUESTIONS)


def test_prefill_apart_from_decode(tmp_path: Path) -> None:
    """KV blocks travel: where they are there they are used, where they are not or are wrong it shows."""
    # The connector knows blocks by the tokens from the beginning on: no two of these prompts begin alike.
    questions = [Question(f"{number}. {one.text}", one.schema) for number, one in enumerate(QUESTIONS)]
    expected = of_one_engine(tmp_path / "one", questions)
    whole, empty, seen = tmp_path / "whole", tmp_path / "empty", tmp_path / "seen"
    whole.mkdir()
    empty.mkdir()
    seen.symlink_to(whole)

    def change(args: dict[str, Any]) -> None:
        for role, folder in (("prefill_config", whole), ("decode_config", seen)):
            arguments = args[role]["engine_kwargs"]
            arguments["enable_prefix_caching"] = False  # what is cached has come from elsewhere
            arguments["kv_transfer_config"]["kv_connector_extra_config"] = {"shared_storage_path": str(folder)}

    with serve_run("prefill-decode.yaml", tmp_path, change) as url:
        given = answers(url, "turnstile-tiny", questions)
        expect_a_refusal(url, "turnstile-tiny")
        show(seen, empty)
        alone = answers(url, "turnstile-tiny", questions)
        for blocks in whole.glob("*/*.safetensors"):
            save_file({name: 0 * block for name, block in load_file(blocks).items()}, blocks)
        show(seen, whole)
        wrong = answers(url, "turnstile-tiny", questions)
    print("tokens of KV loaded:", [sum(one.cached_tokens for one in some) for some in (given, alone, wrong)])
    assert texts(given) == texts(alone) == texts(expected)
    # The connector does not find its blocks again where the prompt has one token more than they have.
    assert sum(answer.cached_tokens >= 32 for answer in given) >= 20
    assert [answer.cached_tokens for answer in wrong] == [answer.cached_tokens for answer in given]
    assert all(answer.cached_tokens == 0 for answer in alone)
    assert sum(one.text != other.text for one, other in zip(wrong, expected, strict=True)) >= 12


def show(link: Path, folder: Path) -> None:
    """Lets the decode engine see another folder."""
    new = link.with_name("new")
    new.symlink_to(folder)
    new.replace(link)
