"""Our engine in the slot of MaskBench's runner: driven as that drives its engines."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from benchmarks import maskbench_runner
from grammar_workers.errors import GrammarError

MODEL = Path(__file__).parents[2] / "models" / "turnstile-tiny"
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "é": {"enum": ["x y", None]}},
    "required": ["a"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def engine() -> maskbench_runner.TurnstileEngine:
    made = maskbench_runner.TurnstileEngine()
    made.tokenizer = AutoTokenizer.from_pretrained(MODEL)
    made.init()
    return made


def accepts(engine: maskbench_runner.TurnstileEngine, value: Any) -> bool:
    engine.reset()
    text = json.dumps(value, ensure_ascii=False)
    for token in engine.tokenizer.encode(text, add_special_tokens=False):
        engine.compute_mask()
        if not engine.commit_token(token):
            return False
    return True


def test_verdicts_of_one_schema_after_the_other(engine: maskbench_runner.TurnstileEngine) -> None:
    engine.compile_grammar(SCHEMA)
    for value, valid in [({"a": 1}, True), ({"a": -12, "é": "x y"}, True), ({"a": "1"}, False), ({"b": 1}, False)]:
        assert accepts(engine, value) == valid
    with pytest.raises(GrammarError):
        engine.compile_grammar({"type": "nothing"})
    engine.compile_grammar({"type": "array", "items": {"type": "boolean"}})
    assert accepts(engine, [True, False])
    assert not accepts(engine, [1])


def test_the_runner_of_a_checkout_gets_our_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "maskbench"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "runner.py").write_text(
        "import argparse, sys\n"
        "found = []\n"
        "def get_engine(args):\n    raise AssertionError\n"
        "def main():\n"
        "    args = argparse.Namespace(multi=True, debug=False, tokenizer='somewhere')\n"
        "    found.extend([get_engine(args), sys.argv[1:]])\n"
    )
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "argv", ["", str(tmp_path), "--output", "there", "some.json"])
    maskbench_runner.main()
    engine, arguments = sys.modules["maskbench.runner"].found
    assert isinstance(engine, maskbench_runner.TurnstileEngine)
    assert (engine.multi, engine.tokenizer_model_id, arguments) == (
        True,
        "somewhere",
        ["--output", "there", "some.json"],
    )
    monkeypatch.setattr(sys, "argv", ["", str(tmp_path / "elsewhere")])
    with pytest.raises(SystemExit):
        maskbench_runner.main()
