"""Plain `vllm serve` over HTTP: constraints x tool choices x protocols x streaming, and what is refused.

`python -m tests.vllm.http_table` prints the table.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.vllm.http_table import CASES, QUESTION, Case, serve_arguments, verdict
from tests.vllm.server import vllm_serve


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of a server that says what is wrong with itself alone, and has left nothing when a signal has ended it."""
    folder = tmp_path_factory.mktemp("http")
    temporary = folder / "tmp"
    temporary.mkdir()
    with vllm_serve(folder, serve_arguments(folder), VLLM_LOGGING_LEVEL="WARNING", TMPDIR=str(temporary)) as url:
        yield url
    log = (folder / "vllm.log").read_text()
    assert "Traceback" not in log
    assert "compiled grammar" not in log and " INFO " not in log
    assert [path.name for path in temporary.rglob("*") if "turnstile" in path.name] == []


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_an_answer_is_as_asked(url: str, case: Case, stream: bool) -> None:
    assert verdict(url, case, stream)


_WRONG = {"type": "object", "properties": {"n": {"type": "strin"}}}
_MESSAGES = [{"role": "user", "content": QUESTION}]
_TOOL = {"name": "f", "parameters": _WRONG, "strict": True}
REFUSED: list[tuple[str, str, dict[str, Any]]] = [
    ("chat schema", "/v1/chat/completions", {"messages": _MESSAGES, "structured_outputs": {"json": _WRONG}}),
    (
        "chat tools",
        "/v1/chat/completions",
        {"messages": _MESSAGES, "tools": [{"type": "function", "function": _TOOL}], "tool_choice": "required"},
    ),
    ("completions", "/v1/completions", {"prompt": QUESTION, "structured_outputs": {"json": _WRONG}}),
    ("completions of two", "/v1/completions", {"prompt": ["a", "b"], "structured_outputs": {"json": _WRONG}}),
    ("responses", "/v1/responses", {"input": QUESTION, "structured_outputs": {"json": _WRONG}}),
    (
        "messages",
        "/v1/messages",
        {
            "messages": _MESSAGES,
            "max_tokens": 50,
            "output_config": {"format": {"type": "json_schema", "schema": _WRONG}},
        },
    ),
]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(("path", "fields"), [one[1:] for one in REFUSED], ids=[one[0] for one in REFUSED])
def test_a_refusal_is_a_status_before_any_stream(url: str, path: str, fields: dict[str, Any], stream: bool) -> None:
    answer = httpx.post(url + path, json={"model": "tiny", "stream": stream, **fields}, timeout=120)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert "invalid_grammar" in error["message"] and "/properties/n/type" in error["message"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_an_unknown_key_is_not_found(url: str, stream: bool) -> None:
    constraint = {"structured_outputs": {"grammar": f"turnstile:{'0' * 64}"}, "stream": stream}
    answer = httpx.post(f"{url}/v1/completions", json={"model": "tiny", "prompt": "a", **constraint}, timeout=120)
    assert answer.status_code == 404 and "grammar_not_found" in answer.text


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"messages": _MESSAGES, "response_format": {"type": "json_object"}}),
        ("/v1/completions", {"prompt": QUESTION, "structured_outputs": {"regex": "a+"}}),
    ],
)
def test_constrained_beams_are_refused_where_vllm_leaves_the_constraint_out(
    url: str, path: str, fields: dict[str, Any]
) -> None:
    sent = {"model": "tiny", "use_beam_search": True, "n": 2, "max_tokens": 8}
    answer = httpx.post(url + path, json={**sent, **fields}, timeout=120)
    assert answer.status_code == 400 and "use_beam_search" in answer.text
    free = {name: value for name, value in fields.items() if name in ("messages", "prompt")}
    assert httpx.post(url + path, json={**sent, **free}, timeout=120).status_code == 200


def test_a_stream_without_a_constraint_is_as_before(url: str) -> None:
    sent = {"model": "tiny", "messages": _MESSAGES, "stream": True, "max_tokens": 8}
    answer = httpx.post(f"{url}/v1/chat/completions", json=sent, timeout=120)
    lines = [line for line in answer.text.splitlines() if line]
    assert lines[-1] == "data: [DONE]" and json.loads(lines[0].removeprefix("data: "))["choices"]
