"""Fields that clients send for other servers: those that are ignored, and those that have another name here."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import model_validator
from pydantic_core import PydanticCustomError

from grammar_workers.validation import StrictModel

if TYPE_CHECKING:
    from ray.util.metrics import Counter

IGNORED: dict[str, dict[str, str]] = {
    "a request": {
        "cache_control": "prompt caching of Anthropic",
        "cache_prompt": "prompt caching of llama.cpp",
        "cache_salt": "prompt caching of vLLM",
        "client_metadata": "a label of the caller",
        "context_management": "the whole conversation is the prompt",
        "guided_decoding_backend": "there is one backend",
        "keep_alive": "models stay loaded",
        "litellm_metadata": "a label of the caller",
        "max_tool_calls": "a limit on tools that OpenAI runs",
        "metadata": "a label of the caller; `/v1/responses` returns it",
        "prediction": "a hint for speed",
        "priority": "scheduling of vLLM",
        "prompt_cache_key": "prompt caching of OpenAI",
        "prompt_cache_options": "prompt caching of OpenAI",
        "prompt_cache_retention": "prompt caching of OpenAI",
        "provider": "routing of OpenRouter",
        "safety_identifier": "a label of the caller",
        "service_tier": "scheduling of OpenAI and Anthropic",
        "store": "nothing is stored",
        "transforms": "prompt compression of OpenRouter",
        "usage": "token counts are always reported",
        "user": "a label of the caller",
        "verbosity": "a hint for the length of the text; state it in a message",
    },
    "text": {"verbosity": "as in a request"},
    "a message or item": {
        "agent": "the agent that wrote it",
        "annotations": "sources of the text",
        "async": "of a call that OpenAI runs",
        "async_": "the name of `async` in OpenAI's Python package",
        "cache_control": "prompt caching of Anthropic",
        "caller": "the caller of a tool",
        "created_by": "the author",
        "id": "nothing is stored",
        "images": "images that another model made",
        "metadata": "a label of the caller",
        "parsed": "the value of the text, as client packages parse it",
        "parsed_arguments": "the value of the arguments, as client packages parse it",
        "phase": "a label of the text",
        "provider_specific_fields": "fields of LiteLLM",
        "reasoning_details": "reasoning of OpenRouter; `reasoning` and `reasoning_content` are read",
        "status": "the state of an item",
        "thinking_blocks": "reasoning of Anthropic; `reasoning` and `reasoning_content` are read",
    },
    "a part or block": {
        "annotations": "sources of the text",
        "cache_control": "prompt caching of Anthropic",
        "caller": "the caller of a tool",
        "citations": "sources of the text",
        "id": "nothing is stored",
        "index": "its number in a stream",
        "logprobs": "log-probabilities of an earlier response",
        "parsed": "the value of the text, as client packages parse it",
        "parsed_output": "the value of the text, as client packages parse it",
        "prompt_cache_breakpoint": "prompt caching of OpenAI",
        "signature": "a signature of thoughts",
        "toolset_name": "the origin of a tool",
    },
    "a tool": {
        "cache_control": "prompt caching of Anthropic",
        "eager_input_streaming": "arguments are always streamed",
        "input_examples": "examples for a prompt that is not used here",
        "output_schema": "the schema of results",
    },
    "a tool call": {
        "cache_control": "prompt caching of Anthropic",
        "caller": "the caller of a tool",
        "extra_content": "fields of Gemini",
        "index": "its number in a stream",
        "parsed_arguments": "the value of the arguments, as client packages parse it",
        "provider_specific_fields": "fields of LiteLLM",
    },
}
"""Fields that cannot change the output, or that clients send unasked, by the kind of object: why they are ignored."""

_CONSTRAINTS = {
    **dict.fromkeys(("choice", "guided_choice"), 'structured_outputs: {"choice": ...}'),
    **dict.fromkeys(("ebnf", "grammar", "guided_grammar"), 'structured_outputs: {"grammar": ...}'),
    **dict.fromkeys(("guided_regex", "regex"), 'structured_outputs: {"regex": ...}'),
    "format": "response_format",
    "guided_json": 'structured_outputs: {"json": ...}',
    "json_schema": 'response_format: {"type": "json_schema", "schema": ...}',
    "structural_tag": 'structured_outputs: {"structural_tag": ...}',
}
RENAMED: dict[str, dict[str, str]] = {
    "a request": {
        **_CONSTRAINTS,
        "enable_thinking": "thinking",
        "input": "messages",
        **dict.fromkeys(("instructions", "system"), "a message of the role `system`"),
        **dict.fromkeys(("max_new_tokens", "max_output_tokens", "n_predict", "num_predict"), "max_tokens"),
        "repeat_penalty": "repetition_penalty",
        "stop_sequences": "stop",
        "text": "response_format",
    },
    "a request of /v1/responses": {
        **dict.fromkeys(_CONSTRAINTS, "text.format"),
        **dict.fromkeys(("max_completion_tokens", "max_tokens"), "max_output_tokens"),
        "messages": "input",
        **dict.fromkeys(("reasoning_effort", "thinking"), "reasoning.effort"),
        "response_format": "text.format",
        "system": "instructions",
    },
    "a request of /v1/messages": {
        **_CONSTRAINTS,
        **dict.fromkeys(("format", "json_schema", "response_format"), "output_config.format"),
        "max_completion_tokens": "max_tokens",
        "reasoning_effort": "thinking",
        "stop": "stop_sequences",
    },
    "a body of /v1/grammars": {
        **_CONSTRAINTS,
        **dict.fromkeys(("json", "schema"), 'structured_outputs: {"json": ...}'),
        "type": 'specification: {"type": ...}',
    },
    "json_object": {"schema": "the type `json_schema`", "json_schema": "the type `json_schema`"},
    "a tool": {
        "description": "`description` inside of `function`",
        **dict.fromkeys(("input_schema", "parameters"), "`parameters` inside of `function`"),
        "name": "`name` inside of `function`",
        "strict": "`strict` inside of `function`",
    },
    "a function": {"input_schema": "parameters"},
    "a flat tool": {"function": "its fields beside `type`", "input_schema": "parameters"},
    "a tool of /v1/messages": {"function": "its fields beside `type`", "parameters": "input_schema"},
}
"""Fields that would change the output, by the kind of object: what to send instead of them."""


class ClientModel(StrictModel):
    """A part of a body. Null and empty lists in unknown fields are ignored, too: they ask for nothing."""

    ignores: ClassVar[str] = ""
    """The entry of `IGNORED`."""
    renames: ClassVar[str] = ""
    """The entry of `RENAMED`."""

    @model_validator(mode="before")
    @classmethod
    def _without_foreign_fields(cls, value: Any) -> Any:
        foreign = [name for name in value if name not in _known(cls)] if isinstance(value, dict) else []
        if not foreign:
            return value
        ignored, renamed = IGNORED.get(cls.ignores, {}), RENAMED.get(cls.renames, {})
        kept = dict(value)
        for name in foreign:
            if name in ignored or value[name] is None or value[name] == []:
                del kept[name]
            elif name in renamed:
                raise PydanticCustomError("unknown_field", "unknown field", {"param": name, "instead": renamed[name]})
            if name in ignored and value[name] is not None:
                _counter().inc(tags={"field": name})
        return kept


@functools.cache
def _known(model: type[ClientModel]) -> frozenset[str]:
    """Names of the fields as clients write them."""
    return frozenset(field.alias or name for name, field in model.model_fields.items())


@functools.cache
def _counter() -> Counter:
    from ray.util.metrics import Counter  # vLLM's plugin has these models, too, and need not have Ray

    return Counter("turnstile_ignored_fields_total", "Fields of requests that are ignored.", ("field",))
