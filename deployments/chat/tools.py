"""Tools as the served model knows them: the constraint that makes calls exact, and the prompt that offers them."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Literal

from deployments.chat.tool_formats import FORMATS, ToolFormat, ToolFormatName, detected_format, renders_tools
from deployments.openai.tool_bodies import NamedTool, Tool
from grammar_workers.specification import JsonSchemaSpecification, StructuralTagSpecification, Tag

Message = dict[str, Any]
"""One turn as chat templates take it."""


@dataclasses.dataclass(frozen=True)
class Offer:
    """The tools of one request; `allowed`: the names of those that may be called, where these are not all of them."""

    tools: list[Tool]
    choice: Literal["auto", "required"] | NamedTool
    parallel: bool
    allowed: frozenset[str] | None = None

    def callable_tools(self) -> list[tuple[int, Tool]]:
        """The tools that may be called, with their places in the request."""
        names = {self.choice.function.name} if isinstance(self.choice, NamedTool) else self.allowed
        return [(place, tool) for place, tool in enumerate(self.tools) if names is None or tool.function.name in names]

    def places(self) -> tuple[tuple[str, str], ...]:
        """Prefixes of JSON Pointers into `ToolDialect.specification`, and into the HTTP body in their stead."""
        pairs: list[tuple[str, str]] = []
        for index, (place, _) in enumerate(self.callable_tools()):
            function = f"/tools/{place}/function"
            pairs += [(f"/tags/{index}/content/schema", f"{function}/parameters"), (f"/tags/{index}", function)]
        return tuple(pairs)


@dataclasses.dataclass(frozen=True)
class ToolDialect:
    """How the served model writes calls, and whether its chat template tells it about tools (`by_template`)."""

    format: ToolFormat
    by_template: bool

    @classmethod
    def of_model(cls, name: ToolFormatName | Literal["auto"], chat_template: str | None) -> ToolDialect:
        """`name` as an operator configured it; `auto` looks at the chat template.

        A template that teaches a format which is none of ours is not asked to describe tools.
        """
        chosen = detected_format(chat_template) if name == "auto" else name
        return cls(FORMATS[chosen], renders_tools(chat_template) and (name, chosen) != ("auto", "turnstile"))

    def specification(self, offer: Offer) -> StructuralTagSpecification:
        """Free text in which the model may call, or calls alone where the client demands one."""
        tags = [
            Tag(
                begin=self.format.begin(tool.function.name),
                content=JsonSchemaSpecification(json_schema=tool.function.arguments_schema()),
                end=self.format.end,
            )
            for _, tool in offer.callable_tools()
        ]
        demanded = offer.choice != "auto"
        return StructuralTagSpecification(
            tags=tags,
            triggers=[self.format.trigger],
            at_least_one=demanded,
            stop_after_first=isinstance(offer.choice, NamedTool) or not (offer.parallel and self.format.several),
            separator=self.format.separator if demanded else None,
        )

    def prompt_fields(self, messages: list[Message], offer: Offer | None) -> dict[str, Any]:
        """`messages` and `tools` of a generation request; text in place of what the chat template does not know."""
        tools = [] if offer is None else [tool.template_input() for tool in offer.tools]
        if self.by_template:
            return {"messages": messages, "tools": tools or None}
        described = [self._described(tools)] if tools else []
        plain = [self._plain(message) for message in messages]
        if described and plain[0]["role"] == "system":
            first = plain.pop(0)
            described[0]["content"] = f"{first['content']}\n\n{described[0]['content']}"
        return {"messages": described + plain}

    def _described(self, tools: list[dict[str, Any]]) -> Message:
        """The system message for models whose chat template knows no tools."""
        lines = [json.dumps(tool["function"], ensure_ascii=False) for tool in tools]
        how = self.format.spell("NAME", "ARGUMENTS")
        text = "\n".join(["You can call these functions:", *lines, f"To call one, write {how}"])
        return {"role": "system", "content": text}

    def _plain(self, message: Message) -> Message:
        """The message in the roles and fields that every chat template knows."""
        if message["role"] == "tool":
            return {"role": "user", "content": f"{message['name']} returned: {message['content']}"}
        if "tool_calls" not in message:
            return message
        functions = [call["function"] for call in message["tool_calls"]]
        calls = [self.format.spell(one["name"], json.dumps(one["arguments"], ensure_ascii=False)) for one in functions]
        return {
            "role": "assistant",
            "content": self.format.separator.join([*filter(None, [message["content"]]), *calls]),
        }
