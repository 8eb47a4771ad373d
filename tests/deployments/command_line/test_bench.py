"""`turnstile bench` against the HTTP application."""

from __future__ import annotations

import itertools

import pytest

from deployments.cli.load import Load
from tests.deployments.command_line.conftest import API_KEY, Command
from tests.deployments.fakes import FakeCompiler, FakeReplica

ROW = ("--clients", "2", "--seconds", "0.05")


def test_a_table_comes_out(command: Command, url: str, compiler: FakeCompiler, replica: FakeReplica) -> None:
    code, out, _ = command("bench", "--url", url, *ROW, "--structured", "0", "0.5", "--max-tokens", "7")
    head, plain, half = out.splitlines()
    assert code == 0 and head.split()[:2] == ["clients", "structured"]
    assert plain.split()[:2] == ["2", "0%"] and half.split()[:2] == ["2", "50%"]
    assert float(plain.split()[2].replace(",", "")) > 0 and plain.split()[-1] == "0"
    assert {request["sampling"]["max_tokens"] for request in replica.requests} == {7}
    grammars = [request["grammar"] is not None for request in replica.requests]
    assert any(grammars) and not all(grammars) and compiler.calls


def test_failures_are_counted(command: Command, closed_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TURNSTILE_API_KEY", raising=False)
    code, _, err = command("bench", "--url", closed_url, *ROW, "--structured", "0")
    assert code == 1 and "answered no request: 401" in err
    monkeypatch.setenv("TURNSTILE_API_KEY", API_KEY)
    assert command("bench", "--url", closed_url, *ROW, "--structured", "0")[0] == 0


def test_wrong_usage(command: Command) -> None:
    assert command("bench", "--structured", "1.5")[0] == 2


@pytest.mark.parametrize(("unique", "schemas"), [(True, 20), (False, 8)])
def test_the_share_of_schemas_is_exact(unique: bool, schemas: int) -> None:
    bodies = list(itertools.islice(Load(1, 0.1, unique).bodies("x"), 200))
    asked = [str(body["response_format"]) for body in bodies if "response_format" in body]
    assert len(asked) == 20 and len(set(asked)) <= schemas
