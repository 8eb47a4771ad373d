"""`turnstile generate` against the HTTP application."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.deployments.command_line.conftest import API_KEY, REFUSED, Command
from tests.deployments.fakes import FakeCompiler, FakeReplica


def test_the_answer_is_printed_and_the_settings_arrive(command: Command, url: str, replica: FakeReplica) -> None:
    flags = ("--max-tokens", "7", "--temperature", "0", "--seed", "3", "--system", "Be brief.")
    code, out, err = command("generate", "hello", "--url", url, *flags)
    assert (code, out) == (0, "0 1 2 3 4 \n")
    assert "[stop; 5 tokens in " in err
    request = replica.requests[0]
    assert [message["content"] for message in request["messages"]] == ["Be brief.", "hello"]
    assert {name: request["sampling"][name] for name in ("max_tokens", "temperature", "seed")} == {
        "max_tokens": 7,
        "temperature": 0,
        "seed": 3,
    }


@pytest.mark.parametrize(
    ("flags", "specification"),
    [
        (("--regex", "a+"), {"type": "regex", "pattern": "a+"}),
        (("--choice", "yes", "--choice", "no"), {"type": "choice", "choices": ["yes", "no"]}),
        (("--json-object",), {"type": "json_object"}),
    ],
)
def test_a_constraint_reaches_the_grammar_tier(
    command: Command,
    url: str,
    compiler: FakeCompiler,
    replica: FakeReplica,
    flags: tuple[str, ...],
    specification: dict[str, object],
) -> None:
    code, _, _ = command("generate", "hello", "--url", url, *flags)
    assert code == 0
    key, asked, _ = compiler.calls[0]
    assert asked == specification
    assert replica.requests[0]["grammar"]["key"] == key


@pytest.mark.parametrize(
    ("name", "text", "specification"),
    [
        ("s.json", '{"type": "integer"}', {"type": "json_schema", "schema": {"type": "integer"}}),
        ("true.json", "true", {"type": "json_schema", "schema": True}),
        (
            "g.gbnf",
            'root ::= "x"',
            {"type": "all_of", "specifications": [{"type": "grammar", "syntax": "gbnf", "text": 'root ::= "x"'}]},
        ),
    ],
)
def test_a_constraint_from_a_file(
    command: Command, url: str, compiler: FakeCompiler, tmp_path: Path, name: str, text: str, specification: object
) -> None:
    (tmp_path / name).write_text(text)
    assert command("generate", "hello", "--url", url, "--schema", str(tmp_path / name))[0] == 0
    assert compiler.calls[0][1] == specification


def test_a_malformed_specification_is_the_servers_to_refuse(command: Command, url: str, tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text('{"type": "regex", "patern": "x"}')
    code, _, err = command("generate", "hello", "--url", url, "--schema", str(tmp_path / "s.json"))
    assert code == 1 and "patern" in err


def test_a_cut_answer_under_a_constraint_is_a_failure(command: Command, url: str, replica: FakeReplica) -> None:
    replica.finish_reason = "length"
    assert command("generate", "hello", "--url", url)[0] == 0
    code, _, err = command("generate", "hello", "--url", url, "--regex", "a+")
    assert code == 1 and "not complete" in err


def test_errors_of_the_server_are_told(
    command: Command, url: str, compiler: FakeCompiler, replica: FakeReplica
) -> None:
    code, _, err = command("generate", "hello", "--url", url, "--model", "none")
    assert code == 1 and err.startswith("error: the model `none` does not exist")
    compiler.answers = [REFUSED]
    code, _, err = command("generate", "hello", "--url", url, "--regex", "a+")
    assert code == 1 and "/properties/a/uniqueItems" in err
    replica.faults = [(2, {"status": 500, "code": "internal_error", "message": "the engine stopped"})]
    code, out, err = command("generate", "hello", "--url", url)
    assert code == 1 and out == "0 1 " and "the engine stopped" in err


def test_a_server_that_is_not_there(command: Command) -> None:
    code, _, err = command("generate", "hello", "--url", "http://127.0.0.1:9")
    assert code == 1 and "no answer from http://127.0.0.1:9" in err


def test_the_api_key_comes_from_the_environment(
    command: Command, closed_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _, err = command("generate", "hello", "--url", closed_url)
    assert code == 1 and "needs an API key: set TURNSTILE_API_KEY" in err
    monkeypatch.setenv("TURNSTILE_API_KEY", "another")
    code, _, err = command("generate", "hello", "--url", closed_url)
    assert code == 1 and "does not accept the API key in TURNSTILE_API_KEY" in err
    monkeypatch.setenv("TURNSTILE_API_KEY", API_KEY)
    assert command("generate", "hello", "--url", closed_url)[0] == 0


def test_what_is_not_enforced_is_told(command: Command, url: str, compiler: FakeCompiler, tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text('{"type": "array", "uniqueItems": true}')
    unenforced = [{"pointer": "/uniqueItems", "reason": "why"}]
    compiler.answers = [{"status": "ready", "source": "compiled", "notes": [], "unenforced": unenforced}]
    flags = ("--schema", str(tmp_path / "s.json"), "--on-unsupported", "report")
    code, _, err = command("generate", "hello", "--url", url, *flags)
    assert code == 0 and "[not enforced: /uniqueItems: why]\n" in err
    assert compiler.calls[0][1]["options"] == {"on_unsupported": "report"}
