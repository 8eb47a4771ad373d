"""What a tool format is: how the models of one family write calls, as data that writer, reader and constraint share.

Let me look. <|calls|>[ {"name": "f", "arguments": {...}} , {"name": "g", "arguments": {}} ]<|/calls|>
             `-- opens --'`----------- call ------------'`separator                      `- closes -'
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
    """Text in the place of arguments, where a tool takes no JSON."""

    specification: GrammarSpecification


@dataclasses.dataclass(frozen=True)
class TextRegion:
    """Text beside calls that some families put between markers; `kind` is the field of OpenAI's message it goes to."""

    opens: str
    closes: str
    kind: Literal["content", "reasoning_content"]
    last: bool = False
    """Whether the answer ends with it."""

    @property
    def markers(self) -> tuple[str, ...]:
        """The texts around it."""
        return (self.opens, self.closes) if self.closes else (self.opens,)


@dataclasses.dataclass(frozen=True)
class Parameters:
    """Arguments one after the other, each between texts: strings are written as they are, other values as JSON."""

    element: str
    """One argument, with `$key` and `$value` in their places, and maybe `$string`: whether it is a string."""
    separator: str = ""
    """Between two arguments."""
    notation: Literal["plain", "python", "bare"] = "plain"
    """`python`: all values are Python's literals, strings too. `bare`: names have no quotes, strings have `quote`s."""
    quote: str = ""

    @functools.cached_property
    def parts(self) -> tuple[str, ...]:
        """`element`, cut at its holes; these begin with `$`."""
        return tuple(filter(None, re.split(r"(\$key|\$value|\$string)", self.element)))

    def write(self, arguments: dict[str, Any]) -> str:
        """All arguments."""
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
    """The spelling of one family. Names of special tokens stand for these tokens where the vocabulary has them."""

    call: str
    """One call, with `$name` and `$arguments` in their places, and maybe `$count` (the number of the call, in decimal
    digits) or `$random` (`id_length` letters and digits), which the model writes as its id."""
    trigger: str
    """The beginning of a call, or of `opens`, that free text cannot go on from but with a call."""
    marks: tuple[str, ...] | None = None
    """Texts all of which the chat template of such a model has. None: `trigger`. Empty: none is known."""
    separator: str = ""
    """Between two calls: in a section, or where nothing but calls is allowed."""
    opens: str = ""
    """The beginning of a section that holds all calls of an answer; without sections calls stand in the text."""
    closes: str = ""
    parameters: Parameters | None = None
    """How arguments are written that are not one JSON object."""
    several: bool = True
    """Whether an answer may hold more than one call."""
    alone: bool = False
    """Whether calls are all of an answer: one that does not begin with `trigger` holds none."""
    ends_thoughts: bool = False
    """Whether a call may follow thoughts that no marker has ended."""
    names: str = "[a-zA-Z0-9_./-]+"
    """The regular expression of the names that a call can have."""
    texts: tuple[TextRegion, ...] = ()
    """Where there are any, text beside calls stands in one of them."""
    id_length: int = 24
    client_id: str = "call_$random"
    """Ids as clients see them, of `$name`, `$count` and `$random`; from the call, as far as it has them."""
    any_id: bool = True
    """Whether the chat template takes ids of another form, too."""

    @functools.cached_property
    def parts(self) -> tuple[str, ...]:
        """`call`, cut at its holes; these begin with `$`."""
        return tuple(filter(None, _HOLES.split(self.call)))

    @property
    def in_sections(self) -> bool:
        """Whether all calls of an answer stand in one section."""
        return bool(self.opens)

    @property
    def takes_text(self) -> bool:
        """True if text can stand in the place of arguments: the text around it shows where it begins and ends."""
        return "$name$arguments" not in self.call and "$" not in self.end

    def pattern(self, hole: str) -> str:
        """The regular expression of what may stand in a hole for an id."""
        return {"$count": "[0-9]+", "$random": f"[a-zA-Z0-9]{{{self.id_length}}}"}[hole]

    def begin(self, name: str, number: int = 0, random: str = "") -> str:
        """What stands before the arguments of a call of this function, the opening of a section left out."""
        made = {"$name": name, "$count": str(number), "$random": random}
        return _filled(self.call[: self.call.index("$arguments")], made)

    @property
    def end(self) -> str:
        """What stands behind the arguments of a call."""
        return self.call[self.call.index("$arguments") + len("$arguments") :]

    def write(self, calls: Sequence[tuple[str, str]]) -> str:
        """Calls of functions with JSON texts, as the model writes them."""
        written = [
            self.begin(name, number, str(number).zfill(self.id_length)) + self._arguments(arguments) + self.end
            for number, (name, arguments) in enumerate(calls)
        ]
        return self.opens + self.separator.join(written) + self.closes

    def _arguments(self, text: str) -> str:
        return text if self.parameters is None else self.parameters.write(json.loads(text))

    def example(self) -> str:
        """A call, for a description of the format."""
        return self.write([("NAME", "ARGUMENTS" if self.parameters is None else '{"PARAMETER": "VALUE"}')])

    def id_for_client(self, made: Mapping[str, str]) -> str:
        """A call's id from what stands for each hole."""
        return _filled(self.client_id, made)

    def accepts_id(self, identity: str, name: str) -> bool:
        """Whether the chat template takes this id of an earlier call."""
        parts = _HOLES.split(self.client_id)
        exact = {"$name": re.escape(name)}
        pattern = "".join(
            exact.get(part) or (self.pattern(part) if part.startswith("$") else re.escape(part)) for part in parts
        )
        return self.any_id or re.fullmatch(pattern, identity) is not None


def _filled(text: str, made: Mapping[str, str]) -> str:
    return _HOLES.sub(lambda hole: made[hole.group()], text)
