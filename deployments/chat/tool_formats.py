"""How families of models write tool calls, as data, and which family a chat template belongs to.

    <tool_call>\n{"name": "   get_weather   ", "arguments":   {"city": "Paris"}   }\n</tool_call>
    `------ before_name ---'                `before_arguments'                   `---- end ----'

A new family is a new entry of `FORMATS`; nothing else knows how any of them looks.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Literal

ToolFormatName = Literal["hermes", "llama3", "mistral", "mistral_list", "turnstile"]


@dataclasses.dataclass(frozen=True)
class ToolFormat:
    """The spelling of one family. Names of special tokens stand for these tokens where the vocabulary has them."""

    trigger: str
    """The beginning of `before_name` that free text cannot go on from but with a call."""
    before_name: str
    before_arguments: str
    end: str
    separator: str
    """What stands between two calls where nothing but calls is allowed."""
    marks: tuple[str, ...]
    """Texts all of which the chat template of such a model has; the first format that fits is taken."""
    several: bool = True
    """Whether an answer may hold more than one call."""
    id_length: int = 24
    """Characters of a call's id; some templates accept only ids of their own length."""
    id_prefix: str = "call_"

    def begin(self, name: str) -> str:
        """What stands before the arguments of a call of this function."""
        return f"{self.before_name}{name}{self.before_arguments}"

    def spell(self, name: str, arguments: str) -> str:
        """A call; `arguments` is JSON text."""
        return f"{self.begin(name)}{arguments}{self.end}"


FORMATS: dict[ToolFormatName, ToolFormat] = {
    "hermes": ToolFormat(
        trigger="<tool_call>",
        before_name='<tool_call>\n{"name": "',
        before_arguments='", "arguments": ',
        end="}\n</tool_call>",
        separator="\n",
        marks=("<tool_call>", '"arguments": '),
    ),
    "mistral": ToolFormat(
        trigger="[TOOL_CALLS]",
        before_name="[TOOL_CALLS]",
        before_arguments="[ARGS]",
        end="",
        separator="",
        marks=("[TOOL_CALLS]", "[ARGS]"),
        id_length=9,
        id_prefix="",
    ),
    "mistral_list": ToolFormat(
        trigger="[TOOL_CALLS]",
        before_name='[TOOL_CALLS][{"name": "',
        before_arguments='", "arguments": ',
        end="}]",
        separator="",
        marks=("[TOOL_CALLS]",),
        id_length=9,
        id_prefix="",
    ),
    "llama3": ToolFormat(
        trigger='{"name": "',
        before_name='{"name": "',
        before_arguments='", "parameters": ',
        end="}",
        separator="; ",
        marks=("<|start_header_id|>", '"parameters": '),
        several=False,  # the templates refuse answers with more
    ),
    "turnstile": ToolFormat(
        trigger="<call:",
        before_name="<call:",
        before_arguments=">",
        end="</call>",
        separator="\n",
        marks=(),
    ),
}
"""By the names that the `tool_format` of a configuration takes. `turnstile` is for models that know no tools: it has
few words, and the arguments stand in it as plain JSON."""


def detected_format(chat_template: str | None) -> ToolFormatName:
    """The format of the model that this chat template was written for; `turnstile` for any other."""
    # Templates quote JSON in different ways inside their own string literals.
    text = (chat_template or "").replace('\\"', '"')
    return next(name for name, one in FORMATS.items() if all(mark in text for mark in one.marks))


def renders_tools(chat_template: str | None) -> bool:
    """Whether the template tells the model which tools there are."""
    return re.search(r"\btools\b", chat_template or "") is not None
