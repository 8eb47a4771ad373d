"""Declarations of tool call formats: data from which the constraint, the parser and the prompt are derived.

A *tool format* describes how the models of one family write calls, here after the text "Let me look. ":

Let me look. <|calls|>[ {"name": "f", "arguments": {...}} , {"name": "g", "arguments": {}} ]<|/calls|>
             `-- opens --'`----------- call ------------'`separator                      `- closes -'

The text from `opens` to `closes` is a *section*. A declaration has *holes*: placeholders, such as `$name`, for the
parts that differ from call to call.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from grammar_workers.notations import bare_literal, python_literal
from grammar_workers.specification import GrammarSpecification

_HOLES = re.compile(r"(\$name|\$arguments|\$count|\$random)")


@dataclasses.dataclass(frozen=True)
class RawInput:
    """Constraint on the input of a custom tool (tool that takes text instead of JSON arguments).

    In code that handles all tools, it takes the place of the JSON Schema of a function's arguments.

    Attributes:
        specification: Constraint on the text.
    """

    specification: GrammarSpecification


@dataclasses.dataclass(frozen=True)
class TextRegion:
    """Declaration of a text between two markers. Some model families write all text, except tool calls, in this way.

    Attributes:
        opens: Marker before the text.
        closes: Marker after the text. Empty: the text ends with the response.
        kind: Field of OpenAI's response message that gets the text.
        last: True if the response ends after this text.
    """

    opens: str
    closes: str
    kind: Literal["content", "reasoning_content"]
    last: bool = False


@dataclasses.dataclass(frozen=True)
class Parameters:
    """Notation of tool call arguments for models that do not write them as one JSON object.

    The model writes one element per argument, such as `<parameter=city>Paris</parameter>`.

    Attributes:
        element: Template of one argument, such as `<parameter=$key>$value</parameter>`. It has the holes (placeholders)
            `$key` and `$value`. The hole `$string` is optional: it is `true` for a string value, else `false`.
        separator: Text between two arguments.
        notation: Notation of values. `plain`: strings without quotes, other values as JSON. `python`: Python literals.
            `bare`: JSON with names without quotes, and with `quote` before and after each string.
        quote: Text before and after a string in the notation `bare`.
    """

    element: str
    separator: str = ""
    notation: Literal["plain", "python", "bare"] = "plain"
    quote: str = ""

    @functools.cached_property
    def parts(self) -> tuple[str, ...]:
        """Parts of `element` in order: holes (placeholders, which start with `$`) and the fixed texts between them."""
        return tuple(filter(None, re.split(r"(\$key|\$value|\$string)", self.element)))

    def write(self, arguments: dict[str, Any]) -> str:
        """Return the text of the arguments of a call in this notation.

        Args:
            arguments: Name -> value of each argument, as parsed JSON.
        """
        written = []
        for key, value in arguments.items():
            if self.notation == "python":
                text = python_literal(value)
            elif self.notation == "bare":
                text = bare_literal(value, self.quote)
            else:
                text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            made = {"$key": key, "$value": text, "$string": json.dumps(isinstance(value, str))}
            written.append("".join(made.get(part, part) for part in self.parts))
        return self.separator.join(written)


@dataclasses.dataclass(frozen=True)
class ToolFormat:
    """Format of the tool calls of one model family.

    A *hole* is a placeholder in a text, such as `$name`. A *section* is the text from `opens` to `closes`. A text that
    is the name of a special token in the vocabulary stands for that token.

    Attributes:
        call: Template of one call, with the holes `$name` and `$arguments`. A third hole is possible, for an id that
            the model writes: `$count` (decimal digits) or `$random` (`id_length` letters and digits).
        trigger: Beginning of `call` or of `opens`. When the output contains this text, a call must follow.
        marks: Texts for the detection of the format: a chat template that contains all of them has this format, unless
            an earlier format matches. None: the text is `trigger`. Empty: the format is never detected.
        separator: Text between two calls in a section, or in a response that has calls only. Empty: the next call
            follows at once. In a response that may also have free text, calls outside of a section may have any text
            between them.
        opens: Beginning of the section with all calls of a response. Empty: calls are not in a section.
        closes: End of the section.
        parameters: Notation of the arguments. None: one JSON object.
        several: True if a response may have several calls.
        alone: True if a response has either calls or text, not both. A response that does not start with `trigger` is
            text.
        ends_thoughts: True if a call may end the reasoning, without the end marker of the reasoning. Set this for a
            model family that reasons and sometimes calls a tool without the end marker.
        names: Regular expression that a whole function name must match.
        texts: Regions (text between markers) that contain all text except calls. Empty: text has no markers.
        id_length: Number of characters in `$random`.
        client_id: Template of the ids in responses to clients, with the holes `$name`, `$count` and `$random`. If
            `call` also has the hole `$count` or `$random`, the text that the model has written there is used.
        any_id: True if the chat template also accepts ids that do not have the form `client_id`.
    """

    call: str
    trigger: str
    marks: tuple[str, ...] | None = None
    separator: str = ""
    opens: str = ""
    closes: str = ""
    parameters: Parameters | None = None
    several: bool = True
    alone: bool = False
    ends_thoughts: bool = False
    names: str = "[a-zA-Z0-9_./-]+"
    texts: tuple[TextRegion, ...] = ()
    id_length: int = 24
    client_id: str = "call_$random"
    any_id: bool = True

    @functools.cached_property
    def parts(self) -> tuple[str, ...]:
        """Parts of `call` in order: holes (placeholders, which start with `$`) and the fixed texts between them."""
        return tuple(filter(None, _HOLES.split(self.call)))

    @property
    def in_sections(self) -> bool:
        """True if all calls of a response are written between one opening and one closing text."""
        return bool(self.opens)

    @property
    def takes_text(self) -> bool:
        """True if a call can contain text instead of JSON arguments, as custom tools require.

        The condition is that fixed texts in the format mark the start and the end of the arguments.
        """
        return "$name$arguments" not in self.call and "$" not in self.end

    def pattern(self, hole: str) -> str:
        """Return the regular expression of the id that the model writes in a call, such as `[0-9]+`.

        Args:
            hole: Placeholder of the id in the declaration: `$count` or `$random`. Another text raises `KeyError`.
        """
        return {"$count": "[0-9]+", "$random": f"[a-zA-Z0-9]{{{self.id_length}}}"}[hole]

    def begin(self, name: str, number: int = 0, random: str = "") -> str:
        """Return the text of a call before its arguments, without the text that opens a section of calls.

        Args:
            name: Name of the called function.
            number: Index of the call in the response, from 0. It replaces `$count`.
            random: Letters and digits that replace `$random`.
        """
        made = {"$name": name, "$count": str(number), "$random": random}
        return _filled(self.call[: self.call.index("$arguments")], made)

    @property
    def end(self) -> str:
        """Text of a call after its arguments, without the text that closes a section of calls."""
        return self.call[self.call.index("$arguments") + len("$arguments") :]

    def write(self, calls: Sequence[tuple[str, str]]) -> str:
        """Return the text of a response that consists of the given calls, in this format.

        Args:
            calls: Pairs (name of the function, JSON text of the arguments object), in the order of the calls.
        """
        written = [
            self.begin(name, number, str(number).zfill(self.id_length)) + self._arguments(arguments) + self.end
            for number, (name, arguments) in enumerate(calls)
        ]
        return self.opens + self.separator.join(written) + self.closes

    def _arguments(self, text: str) -> str:
        return text if self.parameters is None else self.parameters.write(json.loads(text))

    def example(self) -> str:
        """Return the text of an example call with placeholder names, to show the format to the model in a prompt."""
        return self.write([("NAME", "ARGUMENTS" if self.parameters is None else '{"PARAMETER": "VALUE"}')])

    def id_for_client(self, made: Mapping[str, str]) -> str:
        """Return the id of a call in the response to the client: `client_id` with its placeholders replaced.

        Args:
            made: Placeholder (`$name`, `$count` or `$random`) -> text that replaces it. All three must be present.
        """
        return _filled(self.client_id, made)

    def accepts_id(self, identity: str, name: str) -> bool:
        """Return whether the chat template accepts the id of an earlier call.

        Args:
            identity: Id of the call, which the client has sent back.
            name: Name of the called function. Some formats require it in the id.
        """
        parts = _HOLES.split(self.client_id)
        exact = {"$name": re.escape(name)}
        pattern = "".join(
            exact.get(part) or (self.pattern(part) if part.startswith("$") else re.escape(part)) for part in parts
        )
        return self.any_id or re.fullmatch(pattern, identity) is not None


def _filled(text: str, made: Mapping[str, str]) -> str:
    return _HOLES.sub(lambda hole: made[hole.group()], text)
