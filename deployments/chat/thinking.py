"""Models that think before they answer: how a section of thoughts is marked, opened or left out, and read.

    prompt ... <think>\n   thoughts   \n</think>\n\n   answer
               `-opens--'             `-- closes -'    constrained

The section is always opened, or left out, in the prompt: what is generated begins with thoughts, or with the answer. A
constraint holds for the answer; before it the text is free but for the marker that ends the section, which must come.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from typing import Any, Literal

from deployments.arguments import ThinkingArguments
from deployments.http.errors import ApiError, Places
from gpu_workers.model.text import beginning_of
from grammar_workers.specification import GrammarSpecification, StructuralTagSpecification, Tag


@dataclasses.dataclass(frozen=True)
class ThinkingMarkers:
    """The texts around thoughts, as the models of a family write them. Names of special tokens mean these tokens."""

    start: str
    end: str

    @property
    def opens(self) -> str:
        """What begins a section."""
        return f"{self.start}\n"

    @property
    def closes(self) -> str:
        """What stands between thoughts and answer."""
        return f"{self.end}{AFTER_END}"


AFTER_END = "\n\n"

FAMILIES = (
    ThinkingMarkers("<think>", "</think>"),
    ThinkingMarkers("[THINK]", "[/THINK]"),
    ThinkingMarkers("<seed:think>", "</seed:think>"),
    ThinkingMarkers("<mm:think>", "</mm:think>"),
)
"""Qwen, DeepSeek, GLM, Kimi, MiniMax M2 and most others; Mistral; Seed-OSS; MiniMax M3."""

SWITCHES = ("enable_thinking", "thinking")
"""The variables of chat templates by which models with and without thoughts are one model: Qwen's and GLM's, DeepSeek's
and Kimi's."""
PROMPTS: list[dict[str, Any]] = [dict.fromkeys(SWITCHES, True), dict.fromkeys(SWITCHES, False), {}]
"""Template arguments for what `Thinking.of_model` has to know: the prompt with thoughts, without, and by default."""
_BUDGET = "thinking_budget"
"""A variable of Seed-OSS, whose models think without being told."""
_ANSWER_MARKER = "<response>"
"""Granite puts its answer between markers, too; and these are text that it may leave out."""


@dataclasses.dataclass(frozen=True)
class ThoughtsLimit:
    """Thoughts are over at one of the texts `ends`; `closes` is written where none has come by then."""

    most: int
    ends: tuple[str, ...]
    closes: str

    def is_over(self, text: str) -> bool:
        """Whether the thoughts that a text begins with have ended."""
        return any(end in text for end in self.ends)


@dataclasses.dataclass(frozen=True)
class Thinking:
    """What the served model does about thoughts; `markers` None: it has none.

    `by_default`: for requests that do not say. `prompt_on` and `prompt_off` are what its chat template puts before an
    answer with its `switch` true and false.
    """

    markers: ThinkingMarkers | None
    by_default: bool
    prompt_on: str
    prompt_off: str
    switch: str = SWITCHES[0]

    @classmethod
    def of_model(
        cls,
        configured: ThinkingArguments | Literal["auto", "off"],
        chat_template: str | None,
        prompt_on: str,
        prompt_off: str,
        prompt: str,
    ) -> Thinking:
        """As an operator configured it; `auto`: the chat template has markers, and a switch or an open section.

        `prompt`: what the template puts before an answer by itself; it tells whether the model thinks by default.
        """
        template = chat_template or ""
        switch = next((one for one in SWITCHES if re.search(rf"\b{one}\b", template)), None)
        with_switch = functools.partial(cls, switch=switch or SWITCHES[0])
        if isinstance(configured, ThinkingArguments):
            markers = ThinkingMarkers(configured.start, configured.end)
            return with_switch(markers, configured.by_default, prompt_on, prompt_off)
        if configured != "off" and _ANSWER_MARKER not in template:
            for markers in FAMILIES:
                opened = prompt_on.rstrip().endswith(markers.start)
                if markers.end in template and (switch is not None or opened or _BUDGET in template):
                    by_default = prompt == prompt_on or prompt != prompt_off
                    return with_switch(markers, by_default, prompt_on, prompt_off)
        return cls(None, False, prompt_on, prompt_off)

    def wanted(self, asked: bool | None, param: str = "thinking") -> bool:
        """Return whether a request thinks, given what its field `param` says.

        Raises `ApiError` 400 where the model cannot.
        """
        if asked and self.markers is None:
            message = f"the served model has no thinking section: leave `{param}` out"
            raise ApiError(400, message, param=param, code="no_thinking")
        return self.by_default if asked is None else asked

    def prompt_fields(self, asked: bool | None) -> dict[str, Any]:
        """Fields of a generation request: the template's switch, and what is missing behind what it renders."""
        if self.markers is None or (asked is None and not self.by_default):
            return {}
        thinks = self.wanted(asked)
        before = self.prompt_on if thinks else self.prompt_off
        opened = before.rstrip().endswith(self.markers.start)
        missing = "" if opened else self.markers.opens
        if not thinks:
            missing = "" if before.rstrip().endswith(self.markers.end) else f"{missing}\n{self.markers.closes}"
        return {"template_arguments": {self.switch: thinks}, "answer_prefix": missing}

    def specification(self, answer: GrammarSpecification) -> StructuralTagSpecification:
        """Thoughts, which must end, and then what `answer` allows."""
        assert self.markers is not None
        tag = Tag(begin=self.markers.closes, content=answer, end="")
        return StructuralTagSpecification(
            tags=[tag], triggers=[self.markers.end], at_least_one=True, stop_after_first=True
        )

    @staticmethod
    def places(inner: Places) -> Places:
        """`ApiError.of_grammar`'s places for `specification`, given those of the answer's specification."""
        inside = tuple((f"/tags/0/content{pointer}", *place) for pointer, *place in inner)
        return (*inside, ("/tags/0/content/schema", ""), ("/tags/0/content", ""))


class ReasoningParser:
    """Cuts one choice's text, which begins with thoughts, into thoughts and answer.

    White space before the marker is dropped, and so is as much behind it as a constraint puts there. Where an answer
    may begin without the marker, `begins` is what it begins with then. `answer_at`: how many characters of the text
    stand before the answer; None while it has not begun.
    """

    def __init__(self, markers: ThinkingMarkers, begins: str | None = None) -> None:
        self.answer_at: int | None = None
        self._end = markers.end
        self._ends = (markers.end,) if begins is None else (markers.end, begins)
        self._held = ""
        self._read = 0
        self._skip = AFTER_END

    def feed(self, text: str) -> tuple[str, str]:
        """The thoughts and the part of the answer that are certain now."""
        self._read += len(text)
        if self.answer_at is not None:
            return "", self._answer(text)
        self._held += text
        found, end = min(((place, end) for end in self._ends if (place := self._held.find(end)) >= 0), default=(-1, ""))
        if found >= 0:
            if end != self._end:
                end, self._skip = "", ""
            rest = self._held[found + len(end) :]
            thoughts, self._held = self._held[:found].rstrip(), ""
            self.answer_at = self._read - len(rest)
            return thoughts, self._answer(rest)
        held = max(beginning_of(end, self._held) for end in self._ends)
        certain = self._held[: len(self._held) - held].rstrip()
        self._held = self._held[len(certain) :]
        return certain, ""

    def finish(self) -> str:
        """Thoughts held back, when no more text comes."""
        rest, self._held = self._held, ""
        return rest

    def _answer(self, text: str) -> str:
        assert self.answer_at is not None
        while self._skip and text:
            if text[0] != self._skip[0]:
                self._skip = ""
                break
            text, self._skip = text[1:], self._skip[1:]
            self.answer_at += 1
        return text
