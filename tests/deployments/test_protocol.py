"""HTTP bodies: what is accepted, what is refused by name, and what the tiers get."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from deployments.http.body_errors import of_validation
from deployments.openai.protocol import ChatCompletionBody, CompletionBody
from gpu_workers.request import GenerationRequest, SamplingParameters
from grammar_workers.specification import SPECIFICATION

HELLO = [{"role": "user", "content": "hello"}]
SCHEMA = {"type": "object", "properties": {"b": {}, "a": {}}}
STEP = {"from": 0, "to": "b", "pattern": "[a-z]"}
BOTH = {**STEP, "tokens": [1]}
TOOL_CALLS = {
    "type": "structural_tag",
    "tags": [{"begin": "<f>", "content": {"type": "json_schema", "schema": SCHEMA}, "end": "</f>"}],
    "triggers": ["<f"],
    "at_least_one": False,
    "stop_after_first": False,
}
FORMAT = {
    "type": "structural_tag",
    "format": {
        "type": "sequence",
        "elements": [{"type": "any_text", "excludes": ["a"]}, {"type": "json_schema", "json_schema": SCHEMA}],
    },
}


def chat(**fields: Any) -> ChatCompletionBody:
    return ChatCompletionBody.model_validate({"messages": HELLO, **fields})


def refusal(**fields: Any) -> str:
    """The place of the first problem and its message."""
    with pytest.raises(ValidationError) as caught:
        chat(**fields)
    detail = of_validation(caught.value.errors(), ChatCompletionBody).detail
    return f"{detail.param}: {detail.message}"


@pytest.mark.parametrize(
    ("fields", "specification"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, {"type": "json_object"}),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "schema": SCHEMA, "strict": True},
                }
            },
            {"type": "json_schema", "schema": SCHEMA, "strict": True},
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}},
            {"type": "json_schema", "schema": SCHEMA},
        ),
        ({"response_format": {"type": "json_schema", "schema": False}}, {"type": "json_schema", "schema": False}),
        ({"response_format": {"type": "regex", "pattern": "a+"}}, {"type": "regex", "pattern": "a+"}),
        (
            {"response_format": {"type": "grammar", "grammar": "start: /a::=/"}},
            {"type": "grammar", "syntax": "lark", "text": "start: /a::=/"},
        ),
        (
            {"response_format": {"type": "grammar", "grammar": "", "syntax": "gbnf"}},
            {"type": "grammar", "syntax": "gbnf", "text": ""},
        ),
        (
            {"structured_outputs": {"grammar": "# yes\n root::= x\nx ::= root"}},
            {"type": "grammar", "syntax": "gbnf", "text": "# yes\n root::= x\nx ::= root"},
        ),
        ({"structured_outputs": {"json": SCHEMA}}, {"type": "json_schema", "schema": SCHEMA}),
        ({"structured_outputs": {"json": '{"type": "string"}'}}, {"type": "json_schema", "schema": {"type": "string"}}),
        ({"structured_outputs": {"json": True}}, {"type": "json_schema", "schema": True}),
        ({"structured_outputs": {"regex": ""}}, {"type": "regex", "pattern": ""}),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, {"type": "choice", "choices": ["yes", "no"]}),
        ({"structured_outputs": {"json_object": True}}, {"type": "json_object"}),
        (
            {"structured_outputs": {"pattern": [["UPPER", "+"], [":", "1"]]}},
            {"type": "pattern", "elements": [("UPPER", "+"), (":", "1")]},
        ),
        (
            {"structured_outputs": {"positions": [["a", "b"], ["c"]]}},
            {"type": "positions", "allowed": [["a", "b"], ["c"]]},
        ),
        (
            {"structured_outputs": {"automaton": {"initial": 0, "accepting": [0, "b"], "transitions": [STEP]}}},
            {"type": "automaton", "initial": 0, "accepting": [0, "b"], "transitions": [{**STEP, "tokens": None}]},
        ),
        (
            {"structured_outputs": {"substring": "a text"}},
            {"type": "substring", "text": "a text", "whole_words": False, "case_sensitive": True},
        ),
        (
            {"structured_outputs": {"substring": {"text": "a text", "whole_words": True}}},
            {"type": "substring", "text": "a text", "whole_words": True, "case_sensitive": True},
        ),
        (
            {"structured_outputs": {"banned_words": ["bad"]}},
            {"type": "banned_words", "words": ["bad"], "case_sensitive": False, "whole_words": False},
        ),
        (
            {"structured_outputs": {"banned_words": {"words": ["bad"], "whole_words": True}}},
            {"type": "banned_words", "words": ["bad"], "case_sensitive": False, "whole_words": True},
        ),
        (
            {"structured_outputs": {"all_of": [{"type": "json_object"}, {"type": "regex", "pattern": "a"}]}},
            {"type": "all_of", "specifications": [{"type": "json_object"}, {"type": "regex", "pattern": "a"}]},
        ),
        *(
            (fields, TOOL_CALLS)
            for tag in (
                {"triggers": ["<f"], "structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}]},
                {
                    "triggers": ["<f"],
                    "tags": [{"begin": "<f>", "content": {"type": "json_schema", "schema": SCHEMA}, "end": "</f>"}],
                },
            )
            for fields in (
                {"structured_outputs": {"structural_tag": {"type": "structural_tag", **tag}}},
                {"structured_outputs": {"structural_tag": json.dumps({"type": "structural_tag", **tag})}},
                {"response_format": {"type": "structural_tag", **tag}},
            )
        ),
        *(
            (fields, FORMAT)
            for fields in (
                {"structured_outputs": {"structural_tag": FORMAT}},
                {"structured_outputs": {"structural_tag": json.dumps(FORMAT)}},
                {"response_format": FORMAT},
            )
        ),
    ],
)
def test_constraints_become_specifications(fields: dict[str, Any], specification: dict[str, Any] | None) -> None:
    asked = chat(**fields).specification
    if specification is None:
        assert asked is None
    else:
        assert asked is not None
        expected = SPECIFICATION.validate_python(specification)
        assert asked[0].model_dump(by_alias=True) == expected.model_dump(by_alias=True)
        assert asked[1] in fields


def test_the_order_of_properties_survives() -> None:
    asked = chat(response_format={"type": "json_schema", "schema": SCHEMA}).specification
    assert asked is not None
    assert list(asked[0].model_dump(by_alias=True)["schema"]["properties"]) == ["b", "a"]


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"temprature": 1}, "temprature"),
        ({"response_format": {"type": "json_schema", "schema": {}, "stict": True}}, "stict"),
        ({"structured_outputs": {"jsn": {}}}, "jsn"),
        ({"stream": True, "stream_options": {"usage": True}}, "usage"),
        ({"messages": [{"role": "user", "content": "x", "colour": 1}]}, "colour"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "role"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"temperature": 2.5}, "temperature"),
        ({"temperature": "0.5"}, "temperature"),
        ({"stream": "true"}, "stream"),
        ({"response_format": {"type": "json_schema", "schema": 1}}, "schema"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"seed": 1 << 63}, "seed"),
        ({"stop": [""]}, "stop"),
        ({"stop": [str(i) for i in range(17)]}, "stop"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "json_schema"),
        ({"response_format": {"type": "json_schema", "schema": {}, "json_schema": {"name": "n", "schema": {}}}}, "one"),
        ({"response_format": {"type": "text"}, "structured_outputs": {"regex": "a"}}, "give one of them"),
        ({"structured_outputs": {}}, "exactly one"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "exactly one"),
        ({"structured_outputs": {"json": "{"}}, "not JSON"),
        ({"structured_outputs": {"json": "[]"}}, "object or a boolean"),
        ({"response_format": {"type": "grammar", "grammar": "root ::= x", "syntax": "abnf"}}, "syntax"),
        ({"structured_outputs": {"structural_tag": {}}}, "structural_tag.type"),
        ({"structured_outputs": {"structural_tag": {"type": "structural_tag"}}}, "give `format` alone"),
        ({"structured_outputs": {"structural_tag": "{"}}, "not JSON"),
        (
            {"response_format": {"type": "structural_tag", "format": {"type": "sequence", "elements": []}}},
            "format.elements",
        ),
        ({"structured_outputs": {"banned_words": []}}, "banned_words"),
        ({"structured_outputs": {"all_of": [{"type": "regex"}]}}, "pattern"),
        ({"structured_outputs": {"positions": [[]]}}, "positions"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(fields: dict[str, Any], place: str) -> None:
    assert place in refusal(**fields)


@pytest.mark.parametrize(
    ("fields", "param", "allowed"),
    [
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "text, or a list of text parts"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content[0].type",
            "only text parts are supported",
        ),
        ({"messages": [HELLO[0], {"role": "user"}]}, "messages[1].content", "text, or a list of text parts"),
        (
            {"messages": [HELLO[0], {"role": "tool", "content": ""}]},
            "messages[1].tool_call_id",
            "is required in messages",
        ),
        (
            {"messages": [{**HELLO[0], "tool_call_id": "a"}]},
            "messages[0].tool_call_id",
            "is only for messages of the role",
        ),
        ({"messages": [HELLO[0], {"role": "god", "content": ""}]}, "messages[1].role", "'system'"),
        ({"messages": [HELLO[0], 5]}, "messages[1]", "an object"),
        ({"messages": [{"role": "user", "content": "", "a.b": 1}]}, 'messages[0]["a.b"]', "unknown field"),
        ({"respone_format": {}}, "respone_format", "is `response_format` meant?"),
        ({"structured_outputs": {"regx": "a"}}, "structured_outputs.regx", "is `regex` meant?"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": 1}}},
            "response_format.json_schema.schema",
            "a JSON Schema: an object or a boolean",
        ),
        ({"response_format": {"type": "json_schema", "schema": []}}, "response_format.schema", "a JSON Schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}},
            "response_format.json_schema.schema",
            "",
        ),
        ({"response_format": {"type": "regex", "regex": 1}}, "response_format.pattern", "is required"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "'json_object'"),
        ({"response_format": {}}, "response_format.type", "'json_object'"),
        ({"response_format": "json"}, "response_format", "an object"),
        (
            {"tools": [{"type": "function", "function": {"name": "a b"}}]},
            "tools[0].function.name",
            "1 to 128 characters",
        ),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "'function'"),
        ({"tool_choice": "any"}, "tool_choice", "'required'"),
        ({"tool_choice": 5}, "tool_choice", '"required"'),
        ({"stop": ["a", 5]}, "stop[1]", "string"),
        ({"stop": 5}, "stop", "text, or a list of texts"),
        ({"logit_bias": {"1_0": 1}}, "logit_bias.1_0", "the key must be a token ID"),
        ({"structured_outputs": {"json": "{}", "regex": "a"}}, "structured_outputs", "(given: `json`, `regex`)"),
        ({"structured_outputs": {}}, "structured_outputs", "(given: none)"),
        ({"structured_outputs": {"key": "0123"}}, "structured_outputs.key", "64 characters"),
        (
            {"structured_outputs": {"structural_tag": {"type": "structural_tag", "format": {"type": "any_txt"}}}},
            "structured_outputs.structural_tag.format.type",
            "is 'any_text' meant?",
        ),
        ({"logit_bias": {"5": True}}, "logit_bias.5", "number"),
        ({"structured_outputs": {"json": 5}}, "structured_outputs.json", "JSON text"),
        ({"structured_outputs": {"json_object": 1}}, "structured_outputs.json_object", "true"),
        ({"structured_outputs": {"positions": [["a"], [True]]}}, "structured_outputs.positions[1][0]", "token ids"),
        (
            {"structured_outputs": {"automaton": {"initial": 1.5, "accepting": [0], "transitions": []}}},
            "structured_outputs.automaton.initial",
            "a string or an integer",
        ),
        (
            {"structured_outputs": {"automaton": {"initial": 0, "accepting": [0], "transitions": [{"from": 0}]}}},
            "structured_outputs.automaton.transitions[0].to",
            "required",
        ),
        (
            {"structured_outputs": {"automaton": {"initial": 0, "accepting": [0], "transitions": [STEP, BOTH]}}},
            "structured_outputs.automaton.transitions[1]",
            "exactly one of `pattern` and `tokens`",
        ),
        (
            {"structured_outputs": {"banned_words": {"words": [5]}}},
            "structured_outputs.banned_words.words[0]",
            "string",
        ),
        ({"structured_outputs": {"all_of": [{"type": "no"}]}}, "structured_outputs.all_of[0].type", "'banned_words'"),
        (
            {"structured_outputs": {"all_of": [{"type": "json_schema", "schema": 1}]}},
            "structured_outputs.all_of[0].schema",
            "a JSON Schema",
        ),
        (
            {"structured_outputs": {"all_of": [{"type": "banned_words", "words": ["x"], "whole_words": "yes"}]}},
            "structured_outputs.all_of[0].whole_words",
            "true or false",
        ),
        ({"stream_options": {"include_usage": 1}, "stream": True}, "stream_options.include_usage", "true or false"),
        ({"max_tokens": 10**4000}, "max_tokens", "must be below"),
    ],
)
def test_the_place_is_that_of_the_body_and_the_message_says_what_is_allowed(
    fields: dict[str, Any], param: str, allowed: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        chat(**fields)
    detail = of_validation(caught.value.errors(), ChatCompletionBody).detail
    assert detail.param == param
    assert f"`{param}`" in detail.message and allowed in detail.message
    assert "Input tag" not in detail.message and "dictionary" not in detail.message


def test_true_is_not_one() -> None:
    for field, value in {"best_of": True, "echo": 0, "suffix": 0, "logprobs": True, "max_tokens": True}.items():
        with pytest.raises(ValidationError):
            CompletionBody.model_validate({"prompt": "x", field: value})
    assert CompletionBody.model_validate({"prompt": "x", "best_of": 1, "echo": False, "suffix": ""})


def test_the_defaults_that_clients_send_are_accepted() -> None:
    body = chat(
        n=1,
        user="u",
        metadata={"a": "b"},
        presence_penalty=0.0,
        frequency_penalty=0,
        logit_bias={},
        logprobs=False,
        top_logprobs=0,
        tools=[],
        tool_choice="none",
        parallel_tool_calls=True,
        store=False,
        service_tier="auto",
        stream=False,
        stream_options=None,
        seed=None,
        stop=None,
        temperature=None,
        top_p=None,
        max_tokens=None,
        verbosity="medium",
        safety_identifier="someone",
        prompt_cache_key="some",
    )
    request = GenerationRequest.model_validate(body.generation_request("r", drawn_seed=7))
    assert request.sampling == SamplingParameters(seed=7)


def test_sampling_settings_reach_the_replica() -> None:
    body = chat(temperature=0, top_p=0.5, top_k=4, seed=-3, stop="END", max_tokens=9, max_completion_tokens=8)
    request = GenerationRequest.model_validate(body.generation_request("r", drawn_seed=7))
    assert request.sampling == SamplingParameters(
        max_tokens=8, temperature=0, top_p=0.5, top_k=4, seed=-3, stop=("END",)
    )


def test_messages_become_what_chat_templates_take() -> None:
    body = ChatCompletionBody.model_validate(
        {
            "messages": [
                {"role": "developer", "content": "be brief"},
                {
                    "role": "user",
                    "name": "ann",
                    "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
                },
                {"role": "assistant", "content": "c", "refusal": None, "tool_calls": None, "annotations": []},
            ]
        }
    )
    assert body.generation_request("r", drawn_seed=0)["messages"] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "ab", "name": "ann"},
        {"role": "assistant", "content": "c"},
    ]


@pytest.mark.parametrize(("given", "taken"), [("abc", "abc"), (["abc"], "abc"), ("", ""), ([1, 2], [1, 2])])
def test_prompts_of_the_older_endpoint(given: Any, taken: Any) -> None:
    request = CompletionBody.model_validate({"prompt": given}).generation_request("r", drawn_seed=0)
    assert request["prompt"] == taken
    assert request["sampling"]["max_tokens"] == 16
    GenerationRequest.model_validate(request)


@pytest.mark.parametrize("given", [[], ["a", 1], [[1], "a"], [[]], [True], ["a"] * 17, None, {"a": 1}])
def test_what_is_no_prompt_is_refused(given: Any) -> None:
    with pytest.raises(ValidationError, match="prompt"):
        CompletionBody.model_validate({"prompt": given})


def test_banned_words_beside_a_constraint_are_part_of_it() -> None:
    body = chat(response_format={"type": "json_object"}, banned_words={"words": ["bad"]})
    asked = body.specification
    assert asked is not None
    assert asked[0].model_dump() == {
        "type": "all_of",
        "specifications": [
            {"type": "json_object"},
            {"type": "banned_words", "words": ["bad"], "case_sensitive": False, "whole_words": False},
        ],
    }
    assert "banned_words" not in body.generation_request("r", drawn_seed=1)["sampling"]
    free = chat(banned_words={"words": ["bad"]})
    assert free.specification is None
    assert free.generation_request("r", drawn_seed=1)["sampling"]["banned_words"]["words"] == ("bad",)
