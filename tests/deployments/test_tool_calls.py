"""Generated text becomes content and calls, however it is cut into pieces."""

from __future__ import annotations

import itertools
import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.chat.tool_arguments import JsonValue
from deployments.chat.tool_calls import ToolCallParser, call_id
from deployments.chat.tool_formats import TOOL_FORMATS

VALUES: list[dict[str, Any]] = [
    {},
    {"city": "Paris", "days": 3},
    {"text": 'she said "}" and \\ </call> <tool_call> }]'},
    {"nested": {"list": [{}, [], [[1.5e-3, None, True]]]}, "é": "日本"},
]


def read(parser: ToolCallParser, pieces: list[str], *, cut: bool = False) -> tuple[str, list[dict[str, Any]]]:
    """Content and calls; checks the order of deltas that clients rely on."""
    content, calls = "", []
    for delta in itertools.chain(*(parser.feed(piece) for piece in pieces), parser.finish(cut=cut)):
        assert len(delta) == 1
        content += delta.get("content", "")
        for call in delta.get("tool_calls", ()):
            if "id" in call:
                assert call["index"] == len(calls) and call["function"]["arguments"] == ""
                calls.append({"id": call["id"], **call["function"]})
            else:
                assert call["index"] == len(calls) - 1 and call["function"].keys() == {"arguments"}
                calls[-1]["arguments"] += call["function"]["arguments"]
    return content, calls


def cut(text: str, rng: random.Random) -> list[str]:
    borders = sorted({0, len(text), *(rng.randrange(len(text) + 1) for _ in range(rng.randrange(12)))})
    return [text[start:end] for start, end in itertools.pairwise(borders)]


@pytest.mark.parametrize("name", TOOL_FORMATS)
@pytest.mark.parametrize("before", ["", "Let me look.", "a < b, [x] {y"])
@pytest.mark.parametrize("after", ["", "\n", "\nThat was all."])
def test_calls_are_read_whole_and_in_pieces(name: Any, before: str, after: str) -> None:
    tool_format = TOOL_FORMATS[name]
    arguments = [json.dumps(value, ensure_ascii=False) for value in VALUES]
    calls = tool_format.write([(f"f_{index}", text) for index, text in enumerate(arguments)])
    text = f"{before}\n" * bool(before) + calls + after
    rng = random.Random(1)
    for pieces in ([text], list(text), *(cut(text, rng) for _ in range(20))):
        content, found = read(ToolCallParser(tool_format, 7), pieces)
        if before and tool_format.alone:
            assert (content.rstrip(), found) == (text.rstrip(), [])
            continue
        assert content == before + after.strip()
        assert [(call["name"], call["arguments"]) for call in found] == [
            (f"f_{index}", text) for index, text in enumerate(arguments)
        ]
        assert len({call["id"] for call in found}) == len(found)


@given(st.text(alphabet="<cal: l>\n xé", max_size=30), st.integers(0, 1 << 30))
def test_text_without_calls_is_unchanged(text: str, seed: int) -> None:
    if "<call:" not in text:
        content, calls = read(ToolCallParser(TOOL_FORMATS["turnstile"], 1), cut(text, random.Random(seed)))
        assert (content, calls) == (text, [])


@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_of_a_call_that_was_cut_off_nothing_is_content(name: Any) -> None:
    tool_format = TOOL_FORMATS[name]
    call = tool_format.write([("f", '{"a": [1, 2]}')])
    begin = len(tool_format.opens + tool_format.begin("f", 0, "0" * tool_format.id_length))
    for length in range(len(call) + 1):
        content, calls = read(ToolCallParser(tool_format, 1), [call[:length]], cut=True)
        assert content == ""
        if length < begin:
            assert calls == []
        elif tool_format.parameters is None:
            assert calls[0]["arguments"] == '{"a": [1, 2]}'[: length - begin]
        else:
            arguments = calls[0]["arguments"] if calls else ""
            assert '{"a": [1, 2]}'.startswith(arguments)
            last = tool_format.parameters.parts[-1]
            closed = call.rindex(tool_format.end if last == "$value" else last.strip())
            assert arguments != '{"a": [1, 2]}' or length > closed
        content, _ = read(ToolCallParser(tool_format, 1), [f"Well, {call[:length]}"], cut=True)
        assert content.rstrip() == (f"Well, {call[:length]}".rstrip() if tool_format.alone else "Well,")


def test_text_that_ends_like_a_call_begins_is_content() -> None:
    assert read(ToolCallParser(TOOL_FORMATS["hermes"], 1), ["a <tool_"]) == ("a <tool_", [])


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(JSON_VALUES, st.booleans(), st.integers(1, 5))
def test_the_end_of_a_json_value_is_found(value: Any, ascii_only: bool, size: int) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    scanner, read_characters = JsonValue(), 0
    rest = text + "}</call>"
    for start in range(0, len(rest), size):
        if not scanner.over:
            read_characters += len(scanner.read(rest[start : start + size])[0])
    assert read_characters == len(text) and scanner.over


def test_ids_fit_their_templates_and_repeat() -> None:
    hermes = TOOL_FORMATS["hermes"]
    assert call_id(hermes, "f", 0, {}, 1) == call_id(hermes, "f", 0, {}, 1) != call_id(hermes, "f", 0, {}, 2)
    assert call_id(hermes, "f", 0, {}, 1) != call_id(hermes, "f", 1, {}, 1)
    mistral = call_id(TOOL_FORMATS["mistral"], "f", 0, {}, 1)
    assert len(mistral) == 9 and mistral.isalnum() and TOOL_FORMATS["mistral"].accepts_id(mistral, "f")
    assert not TOOL_FORMATS["mistral"].accepts_id("call_1", "f")
    assert TOOL_FORMATS["kimi_k2"].accepts_id("functions.f:12", "f")
    assert not TOOL_FORMATS["kimi_k2"].accepts_id("functions.f:12", "g")


def test_an_id_that_the_model_wrote_is_the_calls_id() -> None:
    text = TOOL_FORMATS["kimi_k2"].write([("f", "{}"), ("g", "{}")])
    _, calls = read(ToolCallParser(TOOL_FORMATS["kimi_k2"], 1), list(text))
    assert [call["id"] for call in calls] == ["functions.f:0", "functions.g:1"]
    text = "[TOOL_CALLS]f[CALL_ID]abcDEF123[ARGS]{}"
    _, calls = read(ToolCallParser(TOOL_FORMATS["mistral_call_id"], 1), list(text))
    assert [call["id"] for call in calls] == ["abcDEF123"]


def test_text_in_regions_goes_to_its_field() -> None:
    harmony = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
    harmony += "<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}"
    cohere = "<|START_THINKING|>Hm.<|END_THINKING|><|START_RESPONSE|>I look.<|END_RESPONSE|><|START_ACTION|>[\n    "
    cohere += '{"tool_call_id": "0", "tool_name": "f", "parameters": {}}\n]<|END_ACTION|>'
    texts: list[tuple[Any, str]] = [("harmony", harmony), ("cohere", cohere)]
    for name, text in texts:
        parser = ToolCallParser(TOOL_FORMATS[name], 1)
        deltas = [delta for piece in text for delta in parser.feed(piece)]
        fields = ("reasoning_content", "content")
        assert ["".join(delta.get(field, "") for delta in deltas) for field in fields] == ["Hm.", "I look."]
        assert next(call["function"]["name"] for delta in deltas for call in delta.get("tool_calls", ())) == "f"
