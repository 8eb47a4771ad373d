"""Tools as the served model knows them: the constraint that makes calls exact, and the prompt that offers them."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from collections.abc import Sequence
from typing import Any, Literal

from deployments.chat.thinking import ThinkingMarkers
from deployments.chat.tool_calls import call_id
from deployments.chat.tool_formats import (
    FORMATS,
    ToolFormat,
    ToolFormatName,
    detected_format,
    renders_tools,
    takes_argument_text,
)
from deployments.chat.tool_formats.declaration import RawInput
from deployments.chat.tool_formats.tags import (
    answer_format,
    begins_json,
    begun_text,
    call_pointers,
    text_format,
    text_pointers,
    thoughts_and_answer,
)
from deployments.http.errors import ApiError, Places
from deployments.openai.tool_bodies import CustomTool, NamedTool, Tool
from grammar_workers.specification import GrammarSpecification, StructuralTagSpecification

Message = dict[str, Any]
"""One turn as chat templates take it."""


@dataclasses.dataclass(frozen=True)
class Offer:
    """The tools of one request; `allowed`: the names of those that may be called, where these are not all of them.

    `text`: the constraint of an answer without calls, where there is one.
    """

    tools: Sequence[Tool | CustomTool]
    choice: Literal["auto", "required"] | NamedTool
    parallel: bool
    allowed: frozenset[str] | None = None
    text: GrammarSpecification | None = None

    def callable_tools(self) -> list[tuple[int, Tool | CustomTool]]:
        """The tools that may be called, with their places in the request."""
        names = {self.choice.function.name} if isinstance(self.choice, NamedTool) else self.allowed
        return [(place, tool) for place, tool in enumerate(self.tools) if names is None or tool.function.name in names]

    def schemas(self) -> dict[str, Any]:
        """The JSON Schemas of the arguments of functions that may be called, in their order; `RawInput` of others."""
        return {tool.function.name: tool.function.arguments_schema() for _, tool in self.callable_tools()}


@dataclasses.dataclass(frozen=True)
class ToolDialect:
    """How the served model writes calls, and what its chat template does about tools.

    `by_template`: it tells the model about them. `argument_text`: it wants the arguments of earlier calls as JSON text.
    """

    format: ToolFormat
    by_template: bool
    argument_text: bool = False

    @classmethod
    def of_model(cls, name: ToolFormatName | Literal["auto"], chat_template: str | None) -> ToolDialect:
        """`name` as an operator configured it; `auto` looks at the chat template.

        A template that teaches a format which is none of ours is not asked to describe tools.
        """
        chosen = detected_format(chat_template) if name == "auto" else name
        by_template = renders_tools(chat_template) and (name, chosen) != ("auto", "turnstile")
        return cls(FORMATS[chosen], by_template, by_template and takes_argument_text(chat_template))

    def specification(self, offer: Offer, thoughts: ThinkingMarkers | None = None) -> StructuralTagSpecification:
        """Free text in which the model may call, or calls alone where the client demands one; behind `thoughts`.

        Beside a constraint of the text: calls alone, or such a text.

        Raises `ApiError`.
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
        """The specification of answers that say what this one allows, in the markup of the model; `places` for it."""
        if not self.format.texts:
            return specification, ()
        whole, pointer = text_format(self.format, {"type": "specification", "specification": specification})
        inside = f"/format{pointer}/specification"
        places = ((f"{inside}/schema", ""), (inside, ""))
        return StructuralTagSpecification.model_validate({"format": whole}), places

    def places(self, offer: Offer, thoughts: ThinkingMarkers | None = None) -> Places:
        """Prefixes of JSON Pointers into `specification`, and into the HTTP body in their stead."""
        answer = self._answer(offer, thoughts)
        pairs: list[tuple[str, str, str]] = []
        pointers = call_pointers(answer, "/format")
        # A call may come in several places.
        for (tag, schema), (place, _) in zip(pointers, itertools.cycle(offer.callable_tools()), strict=False):
            function = f"/tools/{place}/function"
            inside = [(f"{schema}/json_schema", f"{function}/parameters"), (f"{schema}/specification", function)]
            pairs += [(*pair, "tools") for pair in (*inside, (tag, function))]
        texts = [(f"{text}/schema", "") for text in text_pointers(answer, "/format")]
        return (*pairs, *texts, *((text.removesuffix("/schema"), "") for text, _ in texts))

    def _answer(self, offer: Offer, thoughts: ThinkingMarkers | None) -> dict[str, Any]:
        # Any text can be in an input, also what ends a call: only the end of the answer tells them apart.
        raw = any(isinstance(schema, RawInput) for schema in offer.schemas().values())
        one = isinstance(offer.choice, NamedTool) or not offer.parallel or raw
        asked: dict[str, Any] = {"demanded": offer.choice != "auto", "one": one}
        if offer.text is not None:
            asked["text"] = begun_text(self.text_begin(offer), offer.text)
        functions = list(offer.schemas().items())
        if thoughts is None:
            return answer_format(self.format, functions, **asked)
        return thoughts_and_answer(self.format, functions, **asked, end=thoughts.end, closes=thoughts.closes)

    def text_begin(self, offer: Offer) -> str | None:
        """Prefix of a text under a constraint, so that no text begins as calls do; None without a constraint."""
        if offer.text is None:
            return None
        trigger = self.format.trigger
        apart = self.format.texts or (offer.text.type in ("json_object", "json_schema") and not begins_json(trigger))
        return "" if apart else "\n"

    def prompt_fields(self, messages: list[Message], offer: Offer | None) -> dict[str, Any]:
        """`messages` and `tools` of a generation request; text in place of what the chat template does not know."""
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
        """Messages with ids and arguments of earlier calls as the chat template takes them."""
        ids: dict[str, str] = {}
        fitting: list[Message] = []
        for message in messages:
            one = dict(message)
            if message["role"] == "tool":
                given, name = message["tool_call_id"], message.get("name", "function")
                if given not in ids:  # its call is not there any more
                    self._earlier_call({"id": given, "function": {"name": name, "arguments": {}}}, ids)
                one["tool_call_id"] = ids[given]
            if "tool_calls" in message:
                one["tool_calls"] = [self._earlier_call(call, ids) for call in message["tool_calls"]]
            fitting.append(one)
        return fitting

    def _earlier_call(self, call: dict[str, Any], ids: dict[str, str]) -> dict[str, Any]:
        """The call; `ids` holds the new id of each call before it, and then this one's."""
        function = call["function"]
        new = call["id"]
        if not self.format.accepts_id(new, function["name"]):
            new = call_id(self.format, function["name"], len(ids), {}, call["id"])
        ids[call["id"]] = new
        if self.argument_text:
            function = {**function, "arguments": json.dumps(function["arguments"], ensure_ascii=False)}
        return {**call, "id": new, "function": function}

    def _described(self, tools: list[dict[str, Any]]) -> Message:
        """The system message for models whose chat template knows no tools."""
        lines = [json.dumps(tool["function"], ensure_ascii=False) for tool in tools]
        how = self.format.example()
        text = "\n".join(["You can call these functions:", *lines, f"To call one, write {how}"])
        return {"role": "system", "content": text}

    def _plain(self, message: Message) -> Message:
        """The message in the roles and fields that every chat template knows."""
        if message["role"] == "tool":
            return {"role": "user", "content": f"{message.get('name', 'A function')} returned: {message['content']}"}
        if "tool_calls" not in message:
            return message
        functions = [call["function"] for call in message["tool_calls"]]
        calls = [(one["name"], json.dumps(one["arguments"], ensure_ascii=False)) for one in functions]
        content = [*filter(None, [message["content"]]), self.format.write(calls)]
        return {"role": "assistant", "content": "\n".join(content)}
