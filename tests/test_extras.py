"""What the extras of the distribution install, and how one is told to install one."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib

import pytest

from deployments.cli.main import missing
from deployments.version import installation
from tests.documents import REPOSITORY

EXTRAS = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def test_vllm_is_left_as_it_is() -> None:
    """Its builds have several names, and each pins torch: the extra has what serving needs besides."""
    of_vllm = {
        line
        for line in EXTRAS["serve"]
        if re.split(r"\W", line)[0] in ("safetensors", "torch", "torchao", "transformers")
    }
    assert len(of_vllm) == 4
    assert set(EXTRAS["vllm"]) == set(EXTRAS["serve"]) - of_vllm


class Distribution:
    def __init__(self, direct_url: str | None) -> None:
        self._direct_url = direct_url

    def read_text(self, name: str) -> str | None:
        assert name == "direct_url.json"
        return self._direct_url


@pytest.mark.parametrize(
    ("direct_url", "expected"),
    [
        (None, "pip install 'turnstile-llm[serve]'"),
        (
            '{"archive_info": {}, "url": "file:///a%20b/turnstile_llm-0.2.0-py3-none-any.whl"}',
            "pip install 'turnstile-llm[serve] @ file:///a%20b/turnstile_llm-0.2.0-py3-none-any.whl'",
        ),
        ('{"dir_info": {}, "url": "file:///a/turnstile"}', "pip install 'turnstile-llm[serve] @ file:///a/turnstile'"),
        (
            '{"dir_info": {"editable": true}, "url": "file:///a%20b/turnstile"}',
            "pip install --editable '/a b/turnstile[serve]'",
        ),
    ],
)
def test_an_extra_comes_from_where_the_rest_came(
    direct_url: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: Distribution(direct_url))
    assert installation("serve") == expected
    assert missing("tqdm", "precompile").startswith("`turnstile precompile` needs the extra `serve` (tqdm, for one")
    assert missing("tqdm", "precompile").endswith(f": {expected}")
    assert "a build of vLLM" in missing("vllm", "serve") and "[vllm]" in missing("vllm", "serve")


def test_a_checkout_that_nobody_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(name: str) -> Distribution:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", none)
    assert installation("serve") == "pip install --editable '.[serve]'"


def test_make_serve_installs_what_the_first_python_of_the_documents_imports() -> None:
    installed = re.search(r"--editable '\.\[serve\]'(.*)", (REPOSITORY / "Makefile").read_text())
    assert installed is not None
    for document in ("README.md", "docs/tutorial.md", *map(str, (REPOSITORY / "examples").glob("*.py"))):
        imported = re.findall(
            r"^(?:from|import) (openai|anthropic)\b", (REPOSITORY / document).read_text(), re.MULTILINE
        )
        assert {*imported} <= {*installed[1].split()}, document
