"""The command as a whole: help for everybody, and what it imports."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from deployments.cli.main import main
from deployments.shipped import REPOSITORY

COMMANDS = ("serve", "check", "check-config", "generate", "bench", "precompile")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_argument_is_explained(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([command, "--help"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: turnstile {command}")


def test_the_list_of_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    listed = re.findall(r"^    ([a-z-]+)", capsys.readouterr().out, re.MULTILINE)
    assert tuple(listed) == COMMANDS


def test_an_unknown_command_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["chekc"])
    assert stopped.value.code == 2
    assert "chekc" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("generate", "x", "--temperature", "nan"), "finite"),
        (("generate", "x", "--temperature", "inf"), "finite"),
        (("generate", "x", "--max-tokens", "0"), "at least 1"),
        (("generate", "x", "--timeout", "-1"), "above 0"),
        (("generate", "x", "--seed", "a"), "invalid int value"),
        (("serve", "configs/local.yaml", "--port", "80000"), "at most 65535"),
        (("serve", "configs/local.yaml", "--health-port", "80000"), "at most 65535"),
        (("serve", "configs/local.yaml", "--deadline", "nan"), "finite"),
        (("bench", "--clients", "0"), "at least 1"),
        (("bench", "--seconds", "nan"), "finite"),
        (("precompile", "x", "--jobs", "0"), "at least 1"),
        (("generate", "x", "--temperature", "x" * 100_000), "no number"),
        ((), "COMMAND"),
    ],
)
def test_a_mistake_is_one_line(arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and words in line and len(line) < 300


def test_as_a_program_without_ray() -> None:
    """A check needs the grammar engine only: starting it must not cost the seconds of Ray or torch."""
    program = """
import sys
from deployments.cli.main import main
code = main(["check", "-", "--kind", "regex", "--examples", "1"])
assert "ray" not in sys.modules, "ray was imported"
sys.exit(code)
"""
    result = subprocess.run(
        [sys.executable, "-c", program],
        input="[ab]{3}\n",
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        cwd=REPOSITORY,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("supported (regex)\n")


def test_serve_is_the_launcher(tmp_path: object) -> None:
    command = [sys.executable, "-m", "deployments.cli", "serve", f"{tmp_path}/none.yaml", "--port", "0"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=REPOSITORY)
    assert result.returncode == 2
    assert "none.yaml" in result.stderr
