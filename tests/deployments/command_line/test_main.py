"""The command as a whole: help for everybody, and what it imports."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from deployments.arguments import REPOSITORY
from deployments.command_line.main import main

COMMANDS = ("serve", "check", "generate", "bench", "precompile")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_argument_is_explained(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([command, "--help"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: turnstile {command}")


def test_the_list_of_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    listed = re.findall(r"^    (\w+)", capsys.readouterr().out, re.MULTILINE)
    assert tuple(listed) == COMMANDS


def test_an_unknown_command_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["chekc"])
    assert stopped.value.code == 2
    assert "chekc" in capsys.readouterr().err


def test_as_a_program_without_ray() -> None:
    """A check needs the grammar engine only: starting it must not cost the seconds of Ray or torch."""
    program = """
import sys
from deployments.command_line.main import main
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
    command = [sys.executable, "-m", "deployments.command_line", "serve", f"{tmp_path}/none.yaml", "--port", "0"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=REPOSITORY)
    assert result.returncode == 2
    assert "none.yaml" in result.stderr
