r"""Reasoning section of an output: its markers, the prompt and the constraint that it requires, and its parser.

    prompt ... <think>\n   reasoning   \n</think>\n\n   answer
               `-opens--'                `-- closes -'  constrained

The *reasoning section* is the text between the two markers. If the model is to reason, the prompt ends with the start
marker, and the output starts with the reasoning. Otherwise the output starts with the answer. The answer is the text
after the section. Only the answer must match the constraint. The reasoning is free text that must end with the end
marker.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from typing import Any, Literal

from pydantic import Field

from deployments.http.errors import ApiError, Places
from gpu_workers.model.text import beginning_of
from grammar_workers.specification import GrammarSpecification, StructuralTagSpecification, Tag
from grammar_workers.validation import DocumentedModel


class ThinkingArguments(DocumentedModel, extra="forbid"):
    """Markers of the reasoning section in a model's output, from the config file. They replace detected markers."""

    start: str = Field(min_length=1)
    """Start marker: a text, or the name of a special token."""
    end: str = Field(min_length=1)
    """End marker: a text, or the name of a special token."""
    by_default: bool = True
    """`true`: the model reasons, unless the request turns reasoning off."""


@dataclasses.dataclass(frozen=True)
class ThinkingMarkers:
    """Texts before and after the reasoning in a model's output.

    A marker that is the name of a special token stands for that token.

    Attributes:
        start: Start marker, such as `<think>`.
        end: End marker, such as `</think>`.
    """

    start: str
    end: str

    @property
    def opens(self) -> str:
        r"""Text that opens a reasoning section: the start marker and a line break, such as `<think>\n`."""
        return f"{self.start}\n"

    @property
    def closes(self) -> str:
        r"""Text between the reasoning and the answer: the end marker and two line breaks, such as `</think>\n\n`."""
        return f"{self.end}{AFTER_END}"


# White space between the end marker and the answer.
AFTER_END = "\n\n"

# Markers by model family: Qwen, DeepSeek, GLM, Kimi, MiniMax M2 and most others; Mistral; Seed-OSS; MiniMax M3.
FAMILIES = (
    ThinkingMarkers("<think>", "</think>"),
    ThinkingMarkers("[THINK]", "[/THINK]"),
    ThinkingMarkers("<seed:think>", "</seed:think>"),
    ThinkingMarkers("<mm:think>", "</mm:think>"),
)

# Variables of chat templates that turn reasoning on or off: of Qwen and GLM; of DeepSeek and Kimi.
SWITCHES = ("enable_thinking", "thinking")
# Template arguments of the prompts for `Thinking.of_model`: with reasoning, without reasoning, and by default.
PROMPTS: list[dict[str, Any]] = [dict.fromkeys(SWITCHES, True), dict.fromkeys(SWITCHES, False), {}]
# Variable in the chat template of Seed-OSS, whose models reason without a switch.
_BUDGET = "thinking_budget"
# Marker that Granite writes before the answer. Such models are not supported, because the marker is ordinary text that
# the model may omit.
_ANSWER_MARKER = "<response>"


@dataclasses.dataclass(frozen=True)
class ThoughtsLimit:
    """Limit on the reasoning tokens of a response, and the texts that end its reasoning.

    Attributes:
        most: Maximum number of reasoning tokens, at least 1.
        ends: Texts that end the reasoning: the end marker, and the beginning of a tool call for some models. The
            reasoning ends at the first occurrence of one of them.
        closes: Text (end marker and line breaks) that is inserted after `most` tokens, if the reasoning has not ended
            before.
    """

    most: int
    ends: tuple[str, ...]
    closes: str

    def is_over(self, text: str) -> bool:
        """Return whether the reasoning at the beginning of an output has ended: the output contains a text of `ends`.

        Args:
            text: The output so far, from its beginning.
        """
        return any(end in text for end in self.ends)


@dataclasses.dataclass(frozen=True)
class Thinking:
    """Reasoning of the served model: its markers, and the variable of the chat template that turns it on or off.

    Attributes:
        markers: Markers of the reasoning section. None: the model has no such section.
        by_default: True if the model reasons for a request that does not turn reasoning on or off.
        prompt_on: Text that the chat template adds before the output if `switch` is true.
        prompt_off: Text that the chat template adds before the output if `switch` is false.
        switch: Name of the variable of the chat template that turns reasoning on or off, such as `enable_thinking`.
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
        """Detect the reasoning markers of the served model, or take them from the configuration.

        With `auto`, the model has a reasoning section if its chat template contains the end marker of a model family
        (`FAMILIES`), and if at least one of these statements is true:

        - The template contains a variable that turns reasoning on or off (`SWITCHES`), such as `enable_thinking`.
        - The template contains the variable `thinking_budget`.
        - `prompt_on` ends with the start marker.

        A model whose template contains `<response>` (Granite) is treated as a model without reasoning.

        Args:
            configured: Setting of the operator: markers, `auto` for detection, or `off` for a model without reasoning.
            chat_template: Source of the chat template (Jinja). None: the model has none.
            prompt_on: Text that the template adds before the output if the variables of `SWITCHES` are true.
            prompt_off: Text that the template adds before the output if the variables of `SWITCHES` are false.
            prompt: Text that the template adds before the output if these variables are not set. With `auto`, the model
                reasons by default unless `prompt` equals `prompt_off` and differs from `prompt_on`.

        Returns:
            The markers and settings. `markers` is None if the model has no reasoning section.
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
        """Return whether the output of a request must start with reasoning.

        Args:
            asked: True: the request turns reasoning on. False: the request turns it off. None: the default of the model
                applies.
            param: Name of the request field that contains `asked`, for the error.

        Raises:
            ApiError: 400 if `asked` is true and the model has no reasoning section.
        """
        if asked and self.markers is None:
            message = f"the served model has no thinking section: leave `{param}` out"
            raise ApiError(400, message, param=param, code="no_thinking")
        return self.by_default if asked is None else asked

    def prompt_fields(self, asked: bool | None) -> dict[str, Any]:
        """Return the fields of a replica's generation request that turn reasoning on or off.

        Args:
            asked: True: the client turns reasoning on. False: the client turns it off. None: the default of the model
                applies.

        Returns:
            A dict with two fields. `template_arguments` sets the variable of the chat template that turns reasoning on
            or off. `answer_prefix` is text to append to the rendered prompt: it opens a reasoning section, or (with
            reasoning off) completes an empty one. `answer_prefix` is empty if the rendered prompt already ends in this
            way. The dict is empty if the model has no reasoning section, or if `asked` is None and the model does not
            reason by default.
        """
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
        """Return the constraint on an output that consists of reasoning and an answer.

        The model must have a reasoning section (`markers` must be set).

        Args:
            answer: Constraint on the answer: the text after the end marker and two line breaks. The reasoning before
                the end marker is free text.
        """
        assert self.markers is not None
        tag = Tag(begin=self.markers.closes, content=answer, end="")
        return StructuralTagSpecification(
            tags=[tag], triggers=[self.markers.end], at_least_one=True, stop_after_first=True
        )

    @staticmethod
    def places(inner: Places) -> Places:
        """Return how JSON Pointers into a result of `specification` become JSON Pointers into the request body.

        Error messages use the result.

        Args:
            inner: The entries for pointers into the constraint on the answer (the output without its reasoning). An
                entry is (prefix of a pointer, replacement of the prefix) or (prefix, replacement, field of the body).
                For example, with `("/format", "/function", "tools")` the pointer `/format/x` becomes `/function/x` in
                the field `tools`.

        Returns:
            Entries of the same form. Their prefixes lead into the constraint on the whole output.
        """
        inside = tuple((f"/tags/0/content{pointer}", *place) for pointer, *place in inner)
        return (*inside, ("/tags/0/content/schema", ""), ("/tags/0/content", ""))


class ReasoningParser:
    """Incremental parser that splits generated text into reasoning and answer. The text must start with reasoning.

    White space before the end marker is dropped. After the end marker, up to two line breaks are dropped.

    Args:
        markers: Markers of the reasoning section. The parser searches only for the end marker, because the start marker
            is part of the prompt.
        begins: Marker of a tool call, which also ends the reasoning. The answer then begins with this marker. None:
            only the end marker ends the reasoning.

    Attributes:
        answer_at: Number of characters of the output before the answer. None: the answer has not started.
    """

    def __init__(self, markers: ThinkingMarkers, begins: str | None = None) -> None:
        self.answer_at: int | None = None
        self._end = markers.end
        self._ends = (markers.end,) if begins is None else (markers.end, begins)
        self._held = ""
        self._read = 0
        self._skip = AFTER_END

    def feed(self, text: str) -> tuple[str, str]:
        """Parse the next piece of the output.

        Text that may be the beginning of a marker is held back, and returned later.

        Args:
            text: The next piece of text.

        Returns:
            (reasoning, answer): text to append to the reasoning, and text to append to the answer. Each may be empty.
        """
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
        """Return the reasoning that was held back. Call this method after the output has ended.

        The text is empty if the answer has started, or if nothing was held back.
        """
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
