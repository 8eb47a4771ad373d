"""Vercel's AI SDK, which checks answers with schemas of its own: `make compat` installs it for Node."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from tests.compat.conftest import MODEL

CALLS = {"text", "object", "streamed object", "tool", "tools beside an object"}
MODELS = {"chat", "responses", "compatible", "anthropic"}


def test_every_provider_makes_every_call(url: str) -> None:
    folder = Path(os.environ["AI_SDK"])
    script = folder / "ai_sdk.mjs"  # modules are looked for beside it
    script.write_text((Path(__file__).parent / "ai_sdk.mjs").read_text())
    told = subprocess.run(["node", script, url, MODEL], capture_output=True, text=True, timeout=300, check=True)
    results = [json.loads(line) for line in told.stdout.splitlines()]
    assert {(model, call) for model, call, _ in results} == {(model, call) for model in MODELS for call in CALLS}
    assert [result for result in results if result[2] is not True] == []
