"""What the extras of the distribution install, and how one is told to install one."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deployments.cli.main import missing
from deployments.version import installation
from tests.documents import REPOSITORY

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]


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


def _installed_with(requirements: list[str]) -> set[str]:
    """The distributions that `requirements` bring, with all that those need."""
    found: set[str] = set()
    left = [Requirement(line) for line in requirements]
    while left:
        requirement = left.pop()
        name = canonicalize_name(requirement.name)
        if name in found or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        found.add(name)
        left += map(Requirement, importlib.metadata.requires(name) or [])
    return found


def test_check_needs_the_base_alone(tmp_path: Path) -> None:
    """Every module of a distribution that only an extra brings is as if it were not there."""
    base = {PROJECT["name"], *_installed_with(PROJECT["dependencies"])}
    hidden = [
        module
        for module, distributions in importlib.metadata.packages_distributions().items()
        if base.isdisjoint(map(canonicalize_name, distributions))
    ]
    assert {"ray", "torch", "httpx", "fastapi"} <= set(hidden) and "numba" not in hidden
    (tmp_path / "person.json").write_text('{"type": "object", "properties": {"age": {"type": "integer"}}}')
    program = (
        "import sys\n"
        f"sys.modules.update(dict.fromkeys({hidden!r}))\n"
        "from deployments.cli.main import main\n"
        "main(['check', 'person.json'])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "supported" in done.stdout, done.stdout + done.stderr
