"""Tools of one request to the served model: the constraint for valid tool calls, and the prompt with the tools."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from collections.abc import Sequence
from typing import Any, Literal

from deployments.chat.thinking import ThinkingMarkers
from deployments.chat.tool_bodies import CustomTool, NamedTool, Tool
from deployments.chat.tool_calls import call_id
from deployments.chat.tool_formats import (
    TOOL_FORMATS,
    ToolFormat,
    ToolFormatName,
    detected_format,
    renders_tools,
    takes_argument_text,
)
from deployments.chat.tool_formats.declaration import RawInput
from deployments.chat.tool_formats.tags import (
    WantedCalls,
    answer_format,
    begins_json,
    begun_text,
    call_pointers,
    text_format,
    text_pointers,
    thoughts_and_answer,
)
from deployments.http.errors import ApiError, Places
from grammar_workers.specification import GrammarSpecification, StructuralTagSpecification

# Message as chat templates take it.
Message = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Offer:
    """Tools that one request offers to the model, and the constraint on a response without calls.

    Attributes:
        tools: All tools of the request, in their order.
        choice: `auto`: the model writes text or calls tools. `required`: it must call a tool. `NamedTool`: it must call
            the named function.
        parallel: True if one response may have several calls.
        allowed: Names of the tools that may be called if `choice` names no function. None: all tools may be called.
        text: Constraint on a response without calls. None: free text.
    """

    tools: Sequence[Tool | CustomTool]
    choice: Literal["auto", "required"] | NamedTool
    parallel: bool
    allowed: frozenset[str] | None = None
    text: GrammarSpecification | None = None

    def callable_tools(self) -> list[tuple[int, Tool | CustomTool]]:
        """Return the tools that may be called, each as a pair (index in the request, tool)."""
        names = {self.choice.function.name} if isinstance(self.choice, NamedTool) else self.allowed
        return [(place, tool) for place, tool in enumerate(self.tools) if names is None or tool.function.name in names]

    def schemas(self) -> dict[str, Any]:
        """Return the argument schemas of the tools that may be called.

        Returns:
            Name of a tool -> JSON Schema of the arguments object. A custom tool, which takes text instead of JSON
            arguments, has a `RawInput` (constraint on the text) in place of the schema.
        """
        return {tool.function.name: tool.function.arguments_schema() for _, tool in self.callable_tools()}


@dataclasses.dataclass(frozen=True)
class ToolDialect:
    """Format in which the served model writes tool calls, and the support for tools in its chat template.

    Attributes:
        format: Format of the calls.
        by_template: True if the chat template describes the tools to the model. False: a system message describes them.
        argument_text: True if the chat template takes the arguments of earlier calls as JSON text. False: as a dict.
    """

    format: ToolFormat
    by_template: bool
    argument_text: bool = False

    @classmethod
    def of_model(cls, name: ToolFormatName | Literal["auto"], chat_template: str | None) -> ToolDialect:
        """Return the tool call format of a model, and the support for tools in its chat template.

        With `auto`, the format is detected from the template. If no known format is found, the format is `turnstile`,
        and a system message describes the tools, in place of the template.

        Args:
            name: Setting of the operator: a format, or `auto` for detection.
            chat_template: Source of the chat template (Jinja). None: the model has none.
        """
        chosen = detected_format(chat_template) if name == "auto" else name
        by_template = renders_tools(chat_template) and (name, chosen) != ("auto", "turnstile")
        return cls(TOOL_FORMATS[chosen], by_template, by_template and takes_argument_text(chat_template))

    def specification(self, offer: Offer, thoughts: ThinkingMarkers | None = None) -> StructuralTagSpecification:
        """Return the constraint on an output that may call tools.

        If the client also constrains the text, the response has either calls, or text that matches the client's
        constraint. If the client requires a call, the response consists of calls.

        Args:
            offer: The tools of the request.
            thoughts: Markers of the reasoning section. The constraint then describes reasoning before the response.
                None: the output has no reasoning.

        Returns:
            Structural tag (description of a text with constrained regions).

        Raises:
            ApiError: 400 if the model's format does not allow the name of a tool, or if a tool is a custom tool (it
                takes text instead of JSON arguments) and the format has no place for text.
        """
        for place, tool in offer.callable_tools():
            if re.fullmatch(self.format.names, tool.function.name) is None:
                message = f"the model's calls cannot name {tool.function.name!a}: names match {self.format.names}"
                raise ApiError(400, message, param=f"tools[{place}].function.name", code="invalid_value")
            if isinstance(tool, CustomTool) and not self.format.takes_text:
                message = "the model's calls cannot hold plain text: offer a function with a parameter for it"
                raise ApiError(400, message, param=f"tools[{place}]", code="invalid_value")
        return StructuralTagSpecification.model_validate({"format": self._answer(offer, thoughts)})

    def in_text(self, specification: GrammarSpecification) -> tuple[GrammarSpecification, tuple[tuple[str, str], ...]]:
        """Return the constraint on a response without calls, including the markers that the model writes around text.

        Args:
            specification: The constraint on the text between the markers.

        Returns:
            The constraint on the whole response, and a translation of JSON Pointers for errors. An entry of the
            translation is (prefix of a pointer into the returned constraint, replacement for a pointer into
            `specification`). If the model writes no markers: `specification` itself, and no entries.
        """
        if not self.format.texts:
            return specification, ()
        whole, pointer = text_format(self.format, {"type": "specification", "specification": specification})
        inside = f"/format{pointer}/specification"
        places = ((f"{inside}/schema", ""), (inside, ""))
        return StructuralTagSpecification.model_validate({"format": whole}), places

    def places(self, offer: Offer, thoughts: ThinkingMarkers | None = None) -> Places:
        """Return how JSON Pointers into `specification(offer, thoughts)` become JSON Pointers into the request body.

        Error messages use the result.

        Args:
            offer: The tools of the request, as for `specification`.
            thoughts: Markers of the reasoning section, as for `specification`.

        Returns:
            For pointers into the schema of a tool: entries (prefix of a pointer, replacement, `tools`), where `tools`
            is the field of the body. For pointers into the client's constraint on the text: entries (prefix of a
            pointer, replacement).
        """
        answer = self._answer(offer, thoughts)
        pairs: list[tuple[str, str, str]] = []
        pointers = call_pointers(answer, "/format")
        # The specification may contain a call several times.
        for (tag, schema), (place, _) in zip(pointers, itertools.cycle(offer.callable_tools()), strict=False):
            function = f"/tools/{place}/function"
            inside = [(f"{schema}/json_schema", f"{function}/parameters"), (f"{schema}/specification", function)]
            pairs += [(*pair, "tools") for pair in (*inside, (tag, function))]
        texts = [(f"{text}/schema", "") for text in text_pointers(answer, "/format")]
        return (*pairs, *texts, *((text.removesuffix("/schema"), "") for text, _ in texts))

    def _answer(self, offer: Offer, thoughts: ThinkingMarkers | None) -> dict[str, Any]:
        # The input of a custom tool may contain any text, also the end of a call. So the call ends with the response.
        raw = any(isinstance(schema, RawInput) for schema in offer.schemas().values())
        one = isinstance(offer.choice, NamedTool) or not offer.parallel or raw
        text = None if offer.text is None else begun_text(self.text_begin(offer), offer.text)
        wanted = WantedCalls(list(offer.schemas().items()), offer.choice != "auto", one, text)
        if thoughts is None:
            return answer_format(self.format, wanted)
        return thoughts_and_answer(self.format, wanted, end=thoughts.end, closes=thoughts.closes)

    def text_begin(self, offer: Offer) -> str | None:
        """Return the text before the content of a constrained response without calls. It marks that no call follows.

        Args:
            offer: The tools of the request.

        Returns:
            A line break, or an empty text if constrained text and calls have different first characters anyway. None if
            the client does not constrain the text.
        """
        if offer.text is None:
            return None
        trigger = self.format.trigger
        apart = self.format.texts or (offer.text.type in ("json_object", "json_schema") and not begins_json(trigger))
        return "" if apart else "\n"

    def prompt_fields(self, messages: list[Message], offer: Offer | None) -> dict[str, Any]:
        """Return the fields `messages` and `tools` of a replica's generation request.

        If the chat template does not support tools, the field `tools` is absent. A system message then describes the
        tools, and earlier calls and their results are converted to messages with text.

        Args:
            messages: The conversation as plain data, in the form that chat templates take; not changed.
            offer: The tools of the request. None: the request has no tools.
        """
        tools = [] if offer is None else [tool.template_input() for tool in offer.tools]
        if self.by_template:
            return {"messages": self._for_template(messages), "tools": tools or None}
        described = [self._described(tools)] if tools else []
        plain = [self._plain(message) for message in messages]
        if described and plain[0]["role"] == "system":
            first = plain.pop(0)
            described[0]["content"] = f"{first['content']}\n\n{described[0]['content']}"
        return {"messages": described + plain}

    def _for_template(self, messages: list[Message]) -> list[Message]:
        """Return messages with the ids and arguments of earlier calls in the form that the chat template takes."""
        ids: dict[str, str] = {}
        fitting: list[Message] = []
        for message in messages:
            one = dict(message)
            if message["role"] == "tool":
                given, name = message["tool_call_id"], message.get("name", "function")
                if given not in ids:  # the call is not in the messages
                    self._earlier_call({"id": given, "function": {"name": name, "arguments": {}}}, ids)
                one["tool_call_id"] = ids[given]
            if "tool_calls" in message:
                one["tool_calls"] = [self._earlier_call(call, ids) for call in message["tool_calls"]]
            fitting.append(one)
        return fitting

    def _earlier_call(self, call: dict[str, Any], ids: dict[str, str]) -> dict[str, Any]:
        """Return the call with a valid id. Add the id to `ids`, which maps the client's ids to valid ones."""
        function = call["function"]
        new = call["id"]
        if not self.format.accepts_id(new, function["name"]):
            new = call_id(self.format, function["name"], len(ids), {}, call["id"])
        ids[call["id"]] = new
        if self.argument_text:
            function = {**function, "arguments": json.dumps(function["arguments"], ensure_ascii=False)}
        return {**call, "id": new, "function": function}

    def _described(self, tools: list[dict[str, Any]]) -> Message:
        """Return the system message for models whose chat template does not support tools."""
        lines = [json.dumps(tool["function"], ensure_ascii=False) for tool in tools]
        how = self.format.example()
        text = "\n".join(["You can call these functions:", *lines, f"To call one, write {how}"])
        return {"role": "system", "content": text}

    def _plain(self, message: Message) -> Message:
        """Return the message with the roles and fields that every chat template supports."""
        if message["role"] == "tool":
            return {"role": "user", "content": f"{message.get('name', 'A function')} returned: {message['content']}"}
        if "tool_calls" not in message:
            return message
        functions = [call["function"] for call in message["tool_calls"]]
        calls = [(one["name"], json.dumps(one["arguments"], ensure_ascii=False)) for one in functions]
        content = [*filter(None, [message["content"]]), self.format.write(calls)]
        return {"role": "assistant", "content": "\n".join(content)}
