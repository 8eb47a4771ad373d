"""Requests that the OpenAPI document shows, one for each extension; a test sends them all."""

from __future__ import annotations

from typing import Any

PROMPT = "Extract the person: Alice Moore is 34 years old and lives in Paris."
_PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "city": {"type": "string", "maxLength": 40},
    },
    "required": ["name", "age", "city"],
    "additionalProperties": False,
}
AS_PERSON = {"type": "json_schema", "schema": _PERSON}
_TOOL = {"name": "save_person", "description": "Stores a person.", "parameters": _PERSON}


def _chat(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 200, **fields}


def _outputs(**fields: Any) -> dict[str, Any]:
    return _chat(structured_outputs=fields)


def _shown(requests: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {summary: {"summary": summary, "value": value} for summary, value in requests.items()}


CHAT_COMPLETIONS = _shown(
    {
        "JSON Schema": _chat(
            response_format={"type": "json_schema", "json_schema": {"name": "person", "schema": _PERSON}}
        ),
        "JSON Schema, short": _chat(response_format=AS_PERSON),
        "any JSON object": _chat(response_format={"type": "json_object"}),
        "regular expression": _chat(response_format={"type": "regex", "pattern": "[A-Z][a-z]{2,9} [0-9]{1,3}"}),
        "grammar": _chat(response_format={"type": "grammar", "grammar": 'root ::= "yes" | "no" " thanks"?'}),
        "structured_outputs: json": _outputs(json=_PERSON),
        "structured_outputs: regex": _outputs(regex="[a-z]{1,9}"),
        "structured_outputs: choice": _outputs(choice=["yes", "no"]),
        "structured_outputs: grammar": _outputs(grammar='start: "a" "b"~1..5'),
        "structured_outputs: structural_tag": _outputs(
            structural_tag={
                "type": "structural_tag",
                "triggers": ["<person>"],
                "structures": [{"begin": "<person>", "schema": _PERSON, "end": "</person>"}],
            }
        ),
        "structured_outputs: pattern": _outputs(pattern=[["UPPER", "+"], [":", "1"], [" ", "1"], ["LOWER", "{2,5}"]]),
        "structured_outputs: positions": _outputs(positions=[["a", "b"], ["1", "2", "3"]]),
        "structured_outputs: automaton": _outputs(
            automaton={
                "initial": "begin",
                "accepting": ["number"],
                "transitions": [
                    {"from": "begin", "to": "number", "pattern": "[0-9]"},
                    {"from": "number", "to": "number", "pattern": "[0-9]"},
                    {"from": "number", "to": "begin", "pattern": "-"},
                ],
            }
        ),
        "structured_outputs: banned_words": _outputs(banned_words=["Paris", "London"]),
        "structured_outputs: all_of": _outputs(
            all_of=[
                AS_PERSON,
                {"type": "banned_words", "words": ["Alice"], "case_sensitive": True},
            ]
        ),
        "banned words in free text": _chat(banned_words={"words": ["Paris"], "whole_words": True}, max_tokens=40),
        "complete within the budget": _chat(response_format=AS_PERSON, finish_within_budget=True, max_tokens=60),
        "what the mask did": _chat(
            structured_outputs={"choice": ["yes", "no"]},
            logprobs=True,
            top_logprobs=2,
            raw_logprobs=True,
            diagnostics=True,
        ),
        "beam search": _chat(beam_search={"num_beams": 3}, response_format=AS_PERSON),
        "conditional sampling": _chat(
            conditional_sampling={"particles": 4, "resample_below": 0.5},
            response_format=AS_PERSON,
        ),
        "sampling beyond OpenAI's": _chat(
            top_k=20,
            min_p=0.05,
            repetition_penalty=1.1,
            min_tokens=3,
            stop_token_ids=[5],
            ignore_eos=False,
            max_tokens=20,
        ),
        "tools": _chat(
            tools=[{"type": "function", "function": _TOOL}], tool_choice="required", parallel_tool_calls=False
        ),
        "thoughts before the answer": _chat(thinking=True, response_format=AS_PERSON, finish_within_budget=True),
        "a stream with usage": _chat(stream=True, stream_options={"include_usage": True}, max_tokens=20),
        "who asks": _chat(user="u-17", metadata={"experiment": "4"}, max_completion_tokens=20, max_tokens=None),
    }
)

COMPLETIONS = _shown(
    {
        "text": {"prompt": "Once upon a time", "max_tokens": 20, "seed": 7},
        "choice": {"prompt": "The answer is", "structured_outputs": {"choice": [" yes", " no"]}},
        "token ids": {"prompt": [5, 6, 7], "max_tokens": 5, "logprobs": 1},
    }
)

RESPONSES = _shown(
    {
        "text": {"input": "Hello", "instructions": "Be brief.", "max_output_tokens": 20},
        "JSON Schema": {
            "input": PROMPT,
            "text": {"format": {"type": "json_schema", "name": "person", "schema": _PERSON, "strict": True}},
        },
        "regular expression": {"input": PROMPT, "text": {"format": {"type": "regex", "pattern": "[a-z]{3}"}}},
        "tools": {
            "input": [{"role": "user", "content": PROMPT}],
            "tools": [{"type": "function", **_TOOL}],
            "tool_choice": {"type": "function", "name": "save_person"},
        },
    }
)

_MESSAGE = {"model": "turnstile-tiny", "max_tokens": 100, "messages": [{"role": "user", "content": PROMPT}]}
MESSAGES = _shown(
    {
        "text": {**_MESSAGE, "system": "Be brief.", "max_tokens": 20},
        "JSON Schema": {**_MESSAGE, "output_config": {"format": AS_PERSON}},
        "tools": {
            **_MESSAGE,
            "tools": [{"name": "save_person", "description": "Stores a person.", "input_schema": _PERSON}],
            "tool_choice": {"type": "tool", "name": "save_person"},
        },
    }
)

COUNT_TOKENS = _shown({"text": {key: value for key, value in _MESSAGE.items() if key != "max_tokens"}})
TOKENIZE = _shown({"text": {"prompt": PROMPT}, "conversation": {"messages": [{"role": "user", "content": PROMPT}]}})
DETOKENIZE = _shown({"token ids": {"tokens": [72, 105]}})

GRAMMARS = _shown(
    {
        "a specification": {"specification": {"type": "regex", "pattern": "[a-z]+"}},
        "as in a completion": {"response_format": AS_PERSON},
        "in the background": {"structured_outputs": {"choice": ["yes", "no"]}, "wait": False},
    }
)
