"""`turnstile check`: supported and how large, or refused and where."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import jsonschema
import pytest

from deployments.cli import check
from grammar_workers import GrammarOptions, Vocabulary, costs, grammar_key
from grammar_workers.vocabulary.vocabulary import load_vocabulary
from tests.deployments.command_line.conftest import Command

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 9, "example": "Bo"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return load_vocabulary(check.EMBEDDED_MODEL)


@pytest.fixture(autouse=True)
def loaded(vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "_vocabulary", lambda model, _: vocabulary)


@pytest.fixture(autouse=True)
def every_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "LEAST_S", 0)


def written(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def test_a_python_type(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vocabulary: Vocabulary
) -> None:
    text = """
import pydantic

class Person(pydantic.BaseModel):
    name: str

    class Inner(pydantic.BaseModel):
        x: int
"""
    written(tmp_path, "people_of_a_test.py", text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    code, out, _ = command("check", "people_of_a_test:Person", "--json")
    schema = sys.modules["people_of_a_test"].Person.model_json_schema()
    assert code == 0
    assert json.loads(out)["key"] == grammar_key({"type": "json_schema", "schema": schema}, vocabulary.fingerprint)
    assert command("check", "people_of_a_test:Person.Inner", "--json")[0] == 0
    for wrong, said in (
        ("people_of_a_test:Nobody", "no attribute 'Nobody'"),
        ("nothing_here:Person", "No module named"),
    ):
        code, _, err = command("check", wrong)
        assert code == 2 and said in err
    written(tmp_path, "people_of_a_test:Person", "[a-z]")
    assert json.loads(command("check", "people_of_a_test:Person", "--kind", "regex", "--json")[1])["type"] == "regex"


def test_a_supported_schema(command: Command, tmp_path: Path, vocabulary: Vocabulary) -> None:
    path = written(tmp_path, "person.json", json.dumps(SCHEMA))
    code, out, _ = command("check", path, "--json", "--examples", "4")
    found = json.loads(out)
    assert code == 0 and found["supported"] and found["type"] == "json_schema"
    assert found["key"] == grammar_key({"type": "json_schema", "schema": SCHEMA}, vocabulary.fingerprint)
    assert found["automaton_states"] > 1 and found["artifact_bytes"] > 1 and found["seconds"] > 0
    assert found["first_mask_seconds"] > 0 and found["memory_bytes"] > 1
    assert len(found["costs"]) == 3 and {*found["costs"][0]} == {"place", "seconds", "change"}
    assert found["notes"] == ["/properties/name: ignored keyword 'example'"]
    assert len(found["examples"]) == 4
    for example in found["examples"]:
        jsonschema.validate(json.loads(example), SCHEMA)


def test_for_people(command: Command, tmp_path: Path) -> None:
    code, out, _ = command("check", written(tmp_path, "person.json", json.dumps(SCHEMA)))
    assert code == 0
    assert re.match(r"supported \(json_schema\)\n  states +\d+ of the byte automaton\n  size ", out)
    assert "  note      /properties/name: ignored keyword 'example'\n" in out
    assert '    {"name": "", "age": 0}\n' in out
    assert re.search(r"\n  most expensive, of CPU that a schema takes once in a cluster:\n +[\d.]+ ms  \S+: \w", out)


def test_flags_are_the_grammar_options(command: Command, tmp_path: Path, vocabulary: Vocabulary) -> None:
    path = written(tmp_path, "person.json", json.dumps(SCHEMA))
    flags = ("--whitespace", "flexible", "--whitespace-limit", "3", "--no-additional-properties", "--escapes", "any")
    _, out, _ = command("check", path, "--json", *flags)
    options = GrammarOptions(whitespace="flexible", whitespace_limit=3, additional_properties=False, escapes="any")
    key = grammar_key({"type": "json_schema", "schema": SCHEMA}, vocabulary.fingerprint, options)
    assert json.loads(out)["key"] == key


def test_a_refused_keyword_is_shown_with_its_value(command: Command, tmp_path: Path) -> None:
    schema = {"properties": {"a/b": {"type": "string", "pattern": r"(a)\1"}}}
    path = written(tmp_path, "set.json", json.dumps(schema))
    code, out, _ = command("check", path)
    assert code == 1
    assert out.startswith("refused (unsupported_grammar)\n  back-reference ")
    assert '\n  at /properties/a~1b/pattern: "(a)\\\\1"\n' in out
    code, out, _ = command("check", path, "--json")
    assert code == 1 and json.loads(out)["error"]["pointer"] == "/properties/a~1b/pattern"


def test_a_keyword_that_is_left_out_is_named(command: Command, tmp_path: Path) -> None:
    schema = {"properties": {"a/b": {"type": "string", "pattern": r"(a)\1"}}}
    path = written(tmp_path, "set.json", json.dumps(schema))
    code, out, _ = command("check", path, "--on-unsupported", "report")
    assert code == 0 and "  NOT ENFORCED  /properties/a~1b/pattern: back-reference " in out
    code, out, _ = command("check", path, "--on-unsupported", "report", "--json")
    assert [keyword["pointer"] for keyword in json.loads(out)["unenforced"]] == ["/properties/a~1b/pattern"]


def test_a_position_is_marked(command: Command, tmp_path: Path) -> None:
    code, out, _ = command("check", written(tmp_path, "open.regex", "[a-z]+(\n"))
    assert code == 1
    assert out.splitlines()[-2:] == ["    [a-z]+(", "          ^"]


@pytest.mark.parametrize(
    ("name", "text", "kind", "pattern"),
    [
        ("digits.regex", "[0-9]{2}\n", "regex", "[0-9]{2}"),
        ("one.choice", "yes\nno\n", "choice", "yes|no"),
        ("balanced.gbnf", 'root ::= "<" root ">" | "x"', "grammar", "<*x>*"),
        ("letters.lark", "start: /[a-c]+/", "grammar", "[a-c]+"),
        ("any.json", '{"type": "pattern", "elements": [["UPPER", "1"], ["!", "1"]]}', "pattern", "[A-Z]!"),
        ("schema.json", '{"type": "boolean"}', "json_schema", "true|false"),
    ],
)
def test_every_kind_of_file(command: Command, tmp_path: Path, name: str, text: str, kind: str, pattern: str) -> None:
    code, out, _ = command("check", written(tmp_path, name, text), "--json")
    found = json.loads(out)
    assert code == 0 and found["type"] == kind
    assert found["examples"] and all(re.fullmatch(pattern, example) for example in found["examples"])


def test_what_is_no_json_is_refused_and_what_is_no_file_is_wrong_usage(command: Command, tmp_path: Path) -> None:
    code, out, _ = command("check", written(tmp_path, "broken.json", "{"))
    assert code == 1 and "not JSON" in out
    for path, said in ((str(tmp_path / "none.json"), "cannot read"), (written(tmp_path, "a.txt", "x"), "--kind")):
        code, out, err = command("check", path)
        assert (code, out) == (2, "") and said in err
    code, _, err = command("check", written(tmp_path, "true.json", "true"), "--whitespace-limit", "99")
    assert code == 2 and "--whitespace-limit" in err


def test_misspelt_keywords_are_refused_where_they_are_under_strict(command: Command, tmp_path: Path) -> None:
    path = written(tmp_path, "name.json", '{"type": "string", "max_length": 4}')
    assert command("check", path)[0] == 0
    code, out, _ = command("check", path, "--strict")
    assert code == 1 and "did you mean `maxLength`?" in out and "/max_length: 4" in out
    assert command("check", path, "--strict", "--on-unsupported", "report")[0] == 0
