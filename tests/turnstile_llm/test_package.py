"""The package: what its import costs, what it exports, and what a type checker sees."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import mypy.api
import pytest

import grammar_workers
import turnstile_llm
from tests.documents import REPOSITORY, blocks

HEAVY = ("numba", "numpy", "pydantic", "torch", "transformers", "tokenizers", "ray", "redis")
PAGE = "docs/library.md"
# The part of the page that a type checker without stubs of other packages can judge.
PROGRAM = "".join(block.text for block in blocks(PAGE, "python"))


def run(program: str, *path: Path) -> str:
    """Return the output of a program in a new interpreter whose search path is `path`, then the repository."""
    code = f"import sys; sys.path[:0] = {[str(folder) for folder in (*path, REPOSITORY)]!r}\n{program}"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, timeout=200)
    return done.stdout + done.stderr


def test_the_import_loads_nothing_heavy() -> None:
    loaded = f"import turnstile_llm; print([name for name in {HEAVY!r} if name in sys.modules], dir(turnstile_llm))"
    shown = run(loaded)
    assert shown.startswith("[] [") and "'compile_async'" in shown, shown


def test_a_store_on_disk_needs_no_package_of_the_server(tmp_path: Path) -> None:
    hidden = ("redis", "cachetools", "ray", "torch", "transformers", "httpx", "psutil")
    program = f"""
sys.modules.update(dict.fromkeys({hidden!r}))
from turnstile_llm import Regex, Vocabulary, compile
vocabulary = Vocabulary.from_pretrained({str(REPOSITORY / "models" / "turnstile-tiny")!r})
print(compile(Regex("a+"), vocabulary, store="file://{tmp_path}").matcher().accept(vocabulary.encode(b"a")[0]))
"""
    assert run(program).splitlines()[-1] == "True"
    assert list(tmp_path.rglob("*")) != []


def test_a_package_of_another_distribution_is_named(tmp_path: Path) -> None:
    (tmp_path / "grammar_workers").mkdir()
    (tmp_path / "grammar_workers" / "__init__.py").write_text("")
    shown = run("import turnstile_llm", tmp_path)
    expected = (
        f"ImportError: turnstile_llm needs its own grammar_workers: remove or rename ['{tmp_path}/grammar_workers']"
    )
    assert shown.splitlines()[-1] == expected


def test_every_name_is_there_and_described() -> None:
    for name in turnstile_llm.__all__:
        assert getattr(turnstile_llm, name).__doc__, name
    assert set(turnstile_llm.__all__) <= set(dir(turnstile_llm))
    assert sorted(name for names in turnstile_llm._NAMES.values() for name in names) == sorted(turnstile_llm.__all__)
    with pytest.raises(AttributeError, match="no attribute 'decompile'"):
        turnstile_llm.decompile  # type: ignore[attr-defined]  # noqa: B018


def test_the_names_of_the_grammar_package_still_work() -> None:
    assert len(grammar_workers.__all__) == 9
    assert grammar_workers.Vocabulary is turnstile_llm.Vocabulary
    assert grammar_workers.GrammarError is turnstile_llm.GrammarError


def test_the_page_has_an_example_of_every_name() -> None:
    names = {*turnstile_llm.__all__, "LogitsProcessor"}
    assert names - set(re.findall(r"\w+", PROGRAM)) == set()


@pytest.mark.long
def test_a_strict_type_checker_accepts_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program, settings = tmp_path / "program.py", tmp_path / "mypy.ini"
    settings.write_text(
        "[mypy]\nfollow_imports = silent\nignore_missing_imports = true\n"
        "[mypy-torch.*,transformers.*,numba.*,tokenizers.*]\nfollow_imports = skip\n"
    )
    monkeypatch.setenv("MYPYPATH", str(REPOSITORY))
    command = ["--strict", f"--config-file={settings}", f"--cache-dir={tmp_path / 'cache'}", str(program)]
    program.write_text(PROGRAM)
    report, errors, status = mypy.api.run(command)
    assert status == 0, report + errors
    program.write_text(PROGRAM + "\nmatcher.accept('a')\nfrom turnstile_llm import decompile\n")
    report, errors, status = mypy.api.run(command)
    assert "[arg-type]" in report and "[attr-defined]" in report, report + errors
