"""Whole outputs by SGLang's `GrammarManager`, masks and acceptance, judged by `jsonschema` and `re`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest

from tests.sglang.conftest import TINY, Start
from tests.sglang.scheduler import Request, Scheduler, request

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "tags": {"type": "array", "items": {"enum": ["x", "yz", "long text"]}, "maxItems": 3, "uniqueItems": True},
        "n": {"type": "integer", "minimum": 3, "maximum": 1200},
    },
    "required": ["name", "n"],
    "additionalProperties": False,
}
PATTERN = "[a-f]{2,5}(-[0-9]+)?!"
TAG = json.dumps(
    {"format": {"type": "tag", "begin": "<a>", "content": {"type": "regex", "pattern": "[01]{1,8}"}, "end": "</a>"}}
)
LEGACY = json.dumps(
    {
        "type": "structural_tag",
        "structures": [{"begin": "<f>", "schema": {"enum": [1, 22]}, "end": "</f>"}],
        "triggers": ["<f>"],
    }
)
REQUIRED = json.dumps(
    {
        "type": "structural_tag",
        "structures": [{"begin": "<f>", "schema": None, "end": "</f>"}],
        "triggers": ["<f>"],
        "at_least_one": True,
    }
)
CONSTRAINTS = {
    "json": ("json_schema", json.dumps(SCHEMA)),
    "any object": ("json_schema", "$$ANY$$"),
    "regex": ("regex", PATTERN),
    "ebnf": ("ebnf", 'root ::= "(" root ")" | [a-c]'),
    "tag": ("structural_tag", TAG),
    "triggered tag": ("structural_tag", LEGACY),
    "required tag": ("structural_tag", REQUIRED),
}


def judge(kind: str, text: str) -> None:
    """Assert that `text` is what the constraint `kind` asks for."""
    if kind == "json":
        jsonschema.validate(json.loads(text), SCHEMA)
    elif kind == "any object":
        assert isinstance(json.loads(text), dict)
    elif kind == "regex":
        assert re.fullmatch(PATTERN, text)
    elif kind == "ebnf":
        inner = text.strip("()")
        assert inner in ("a", "b", "c") and text.index(inner) == len(text) - 1 - text.index(inner)
    elif kind == "tag":
        assert re.fullmatch("<a>[01]{1,8}</a>", text)
    elif kind == "required tag":
        first = text.partition("<f>")[2].partition("</f>")
        assert first[1] and json.loads(first[0]) is not Ellipsis
    else:
        assert all(re.match(r"(1|22)</f>", after) for after in text.split("<f>")[1:])


def judged(scheduler: Scheduler, kinds: dict[str, Request], after: str = "") -> int:
    """Judge the outputs that are complete, from behind the mark `after`; return their number."""
    complete = 0
    for kind, one in kinds.items():
        assert one.to_finish is None, one.to_finish
        if one.ended:
            judge(kind, scheduler.text(one).partition(after)[2] if after else scheduler.text(one))
            complete += 1
    return complete


@pytest.mark.parametrize("drafts", [0, 1, 7])
def test_outputs_are_valid(start: Start, drafts: int) -> None:
    scheduler = start()
    complete = 0
    for _ in range(4):
        kinds = {kind: request(*constraint) for kind, constraint in CONSTRAINTS.items()}
        free = request(None, None)
        scheduler.admit(list(kinds.values()))
        scheduler.run([*kinds.values(), free], most=200, drafts=drafts)
        complete += judged(scheduler, kinds)
    assert complete >= 12, "random logits end most outputs"


@pytest.mark.parametrize("drafts", [0, 5])
@pytest.mark.parametrize("marked", [True, False], ids=["one-token-ends-thoughts", "several-tokens-end-thoughts"])
def test_thoughts_are_free_and_the_answer_is_valid(start: Start, marked_model: Path, marked: bool, drafts: int) -> None:
    scheduler = start(marked_model if marked else TINY, "qwen3")
    end = scheduler.tokenizer.encode("</think>", add_special_tokens=False)
    assert (len(end) == 1) == marked
    kinds = {kind: request(*constraint, reasoning=True) for kind, constraint in CONSTRAINTS.items()}
    scheduler.admit(list(kinds.values()))
    for one in kinds.values():
        thoughts = scheduler.tokenizer.encode("let me think { ", add_special_tokens=False)
        for token in (*thoughts, *end):  # random logits would hardly end a thought
            scheduler.commit(one, [token])
    scheduler.run(list(kinds.values()), most=200, drafts=drafts)
    assert judged(scheduler, kinds, "</think>") >= 3


def test_requests_without_thoughts_are_constrained_at_once(start: Start, marked_model: Path) -> None:
    scheduler = start(marked_model, "qwen3")
    for _ in range(2):  # the second time from SGLang's cache
        kinds = {kind: request(*constraint, reasoning=False) for kind, constraint in CONSTRAINTS.items()}
        scheduler.admit(list(kinds.values()))
        scheduler.run(list(kinds.values()), most=200)
        assert judged(scheduler, kinds) >= 3


@pytest.mark.parametrize("drafts", [0, 5])
@pytest.mark.parametrize("constrained", [True, False])
def test_strict_thinking(
    start: Start, marked_model: Path, monkeypatch: pytest.MonkeyPatch, constrained: bool, drafts: int
) -> None:
    monkeypatch.setenv("SGLANG_MAX_THINK_TOKENS", "9")
    scheduler = start(marked_model, "qwen3", strict=True)
    kinds = {kind: request(*constraint, reasoning=True) for kind, constraint in CONSTRAINTS.items()}
    requests = list(kinds.values()) if constrained else [request(None, None, reasoning=True) for _ in range(6)]
    scheduler.admit(requests)
    assert all(one.grammar is not None for one in requests)
    scheduler.run(requests, most=200, drafts=drafts)
    end = scheduler.tokenizer.convert_tokens_to_ids("</think>")
    excluded = set(scheduler.tokenizer.convert_tokens_to_ids(["<tool_call>", "</tool_call>", "<|im_end|>"]))
    for one in requests:
        if end in one.output_ids:  # SGLang lets an end token end thoughts and output
            thoughts = one.output_ids[: one.output_ids.index(end)]
        else:
            thoughts = one.output_ids[:-1]
            assert one.output_ids[-1] in scheduler.end_ids
        assert len(thoughts) <= 9 and not excluded.intersection(thoughts)
    kinds = {kind: one for kind, one in kinds.items() if end in one.output_ids}
    if constrained:
        assert judged(scheduler, kinds, "</think>") >= 3


def test_a_request_chooses_its_own_budget_of_thoughts(start: Start, marked_model: Path) -> None:
    scheduler = start(marked_model, "qwen3", strict=True)
    one = request("regex", PATTERN, reasoning=True, thinking_budget=3)
    scheduler.admit([one])
    scheduler.run([one], most=200)
    assert scheduler.tokenizer.convert_tokens_to_ids("</think>") in one.output_ids[:4]
    assert judged(scheduler, {"regex": one}, "</think>") == 1
