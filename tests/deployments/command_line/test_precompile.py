"""`turnstile precompile` against the HTTP application."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from ray.serve.exceptions import BackPressureError

from tests.deployments.command_line.conftest import READY, REFUSED, Command
from tests.deployments.fakes import FakeCompiler


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "inner").mkdir()
    (tmp_path / "a.json").write_text('{"type": "integer"}')
    (tmp_path / "inner" / "b.regex").write_text("[0-9]+\n")
    (tmp_path / "notes.txt").write_text("not a schema")
    return tmp_path


def test_a_folder_becomes_a_table(command: Command, url: str, compiler: FakeCompiler, folder: Path) -> None:
    compiler.answers = [READY]
    code, out, err = command("precompile", str(folder), "--url", url)
    header, *rows = out.splitlines()
    assert code == 0
    assert header.split() == ["file", "status", "key", "states", "bytes", "seconds"]
    keys = {specification["type"]: key for key, specification, _ in compiler.calls if specification is not None}
    assert [row.split() for row in rows] == [
        [str(folder / "a.json"), "ready", keys["json_schema"], "1,234", "5,678", "0.250"],
        [str(folder / "inner" / "b.regex"), "ready", keys["regex"], "1,234", "5,678", "0.250"],
    ]
    assert "2/2" in err


def test_a_list_on_standard_input(
    command: Command, url: str, compiler: FakeCompiler, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{folder / 'a.json'}\n{folder / 'a.json'}\n"))
    assert command("precompile", "-", "--url", url)[0] == 0
    assert len(compiler.calls) == 1


def test_a_refusal_is_told_and_the_others_are_compiled(
    command: Command, url: str, compiler: FakeCompiler, folder: Path
) -> None:
    compiler.answers = [REFUSED, READY]
    (folder / "broken.json").write_text("{")
    code, out, _ = command("precompile", str(folder), "--url", url, "--jobs", "1")
    assert code == 1
    assert [line.split()[1] for line in out.splitlines()[1:4]] == ["refused", "refused", "ready"]
    assert f"refused: {folder / 'a.json'}: uniqueItems is supported for listed values" in out
    assert "/properties/a/uniqueItems" in out
    assert f"refused: {folder / 'broken.json'}: the text is not JSON" in out


def test_what_is_not_enforced_is_told(command: Command, url: str, compiler: FakeCompiler, folder: Path) -> None:
    compiler.answers = [{**READY, "unenforced": [{"pointer": "/a", "reason": "why"}]}]
    code, out, _ = command("precompile", str(folder / "a.json"), "--url", url, "--on-unsupported", "report")
    assert code == 0 and f"not enforced: {folder / 'a.json'}: /a: why\n" in out
    assert compiler.calls[0][1] == {
        "specification": {"type": "json_schema", "schema": {"type": "integer"}},
        "options": {"on_unsupported": "report"},
    }


def test_a_full_server_is_waited_for(
    command: Command, url: str, compiler: FakeCompiler, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deployments.cli.server.time.sleep", lambda seconds: None)
    compiler.answers = [BackPressureError(num_queued_requests=1, max_queued_requests=1), READY]
    assert command("precompile", str(folder / "a.json"), "--url", url)[0] == 0
    assert len(compiler.calls) == 2


def test_nothing_to_do_and_nobody_there(command: Command, folder: Path) -> None:
    (folder / "empty").mkdir()
    code, _, err = command("precompile", str(folder / "empty"))
    assert code == 2 and "no files in" in err
    code, _, err = command("precompile", str(folder), "--url", "http://127.0.0.1:9")
    assert code == 1 and "no answer from" in err
