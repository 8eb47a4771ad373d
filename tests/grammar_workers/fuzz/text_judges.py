"""Judges texts of all specifications but JSON Schemas: Python's `re` and V8, Lark, and a reading of the docs."""

from __future__ import annotations

import functools
import re
import string
from typing import Any

import lark

from grammar_workers import GrammarOptions
from tests.grammar_workers.fuzz.json_judge import JsonJudge
from tests.grammar_workers.fuzz.readings import DIALECTS, UnreadableError, is_doubtful, is_settled
from tests.grammar_workers.fuzz.spelling import NotJsonError, parse, plain, strings_in
from tests.grammar_workers.fuzz.verdicts import VALID, AllOf, Answer, Judge, Verdict, invalid, undecided

JSON_KINDS = ("json_schema", "json_object")
_LONGEST_PARSED = 24
"""Characters of the longest text that Lark gets, which takes cubic time."""


def judge_of(specification: dict[str, Any], options: GrammarOptions, notes: tuple[str, ...] = ()) -> Judge:
    """The judge of a specification."""
    kind = specification["type"]
    if kind == "json_schema":
        return JsonJudge(specification["schema"], options, notes)
    if kind == "json_object":
        return JsonJudge({"type": "object"}, options, notes)
    if kind == "all_of":
        parts = specification["specifications"]
        is_json = any(part["type"] in JSON_KINDS for part in parts)
        if any(part["type"] == "banned_words" for part in parts):
            # So that what is searched is all that is written.
            options = options.model_copy(update={"escapes": "minimal"})
        return AllOf([_part_judge(part, options, notes, is_json) for part in parts])
    return _part_judge(specification, options, notes, False)


def _part_judge(part: dict[str, Any], options: GrammarOptions, notes: tuple[str, ...], is_json: bool) -> Judge:
    match part["type"]:
        case "regex":
            return RegexJudge(part["pattern"])
        case "choice":
            return ChoiceJudge(part["choices"])
        case "positions":
            return PositionsJudge(part["allowed"])
        case "automaton":
            return AutomatonJudge(part)
        case "pattern":
            return ElementsJudge(part["elements"])
        case "substring":
            return SubstringJudge(part)
        case "grammar":
            return GrammarJudge(part["text"], part["syntax"])
        case "banned_words":
            return BannedJudge(part, is_json=is_json)
        case "structural_tag":
            return TagJudge(part, options)
    return judge_of(part, options, notes)


class RegexJudge:
    """What both dialects match as a whole is valid, and nothing else."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern

    def verdict(self, text: str) -> Verdict:
        if not is_settled(text):
            return undecided("characters that only some versions of Unicode know")
        try:
            for patterns in DIALECTS:
                if not patterns.fullmatch(self._pattern, text):
                    return invalid(f"{patterns.name} does not match it")
        except UnreadableError as error:
            return undecided(str(error))
        return undecided("parts may be read in two ways") if is_doubtful(self._pattern, text) else VALID


class ChoiceJudge:
    def __init__(self, choices: list[str]) -> None:
        self._choices = choices

    def verdict(self, text: str) -> Verdict:
        return VALID if text in self._choices else invalid("not listed")


class SubstringJudge:
    """Of spans of a text, by equality, or by `re.IGNORECASE`."""

    def __init__(self, part: dict[str, Any]) -> None:
        text: str = part["text"]
        self._any_case = not part.get("case_sensitive", True)
        places = [
            place
            for place in range(len(text) + 1)
            if not (part.get("whole_words") and re.fullmatch(r"\w\w", text[max(place - 1, 0) : place + 1]))
        ]
        self._text = text
        self._places = set(places)

    def verdict(self, text: str) -> Verdict:
        for begin in self._places:
            end = begin + len(text)
            if end in self._places and self._is_spelled(self._text[begin:end], text):
                ordinary = all(
                    len(one.lower()) == 1 and one.upper().lower() == one.lower() == one.casefold()
                    for one in text + self._text
                )
                return VALID if ordinary or not self._any_case else undecided("characters of unusual case")
        return invalid("no span of the text")

    def _is_spelled(self, span: str, text: str) -> bool:
        return span == text or (self._any_case and re.fullmatch(re.escape(span), text, re.IGNORECASE) is not None)


class PositionsJudge:
    """Of positions of characters."""

    def __init__(self, allowed: list[list[str]]) -> None:
        self._allowed = allowed

    def verdict(self, text: str) -> Verdict:
        fits = len(text) == len(self._allowed) and all(c in step for c, step in zip(text, self._allowed, strict=True))
        return VALID if fits else invalid("not at these positions")


class AutomatonJudge:
    """Of a table of transitions on characters, each as a regular expression of a whole text."""

    def __init__(self, part: dict[str, Any]) -> None:
        self._initial, self._accepting = part["initial"], part["accepting"]
        self._transitions = [(one["from"], one["to"], RegexJudge(one["pattern"])) for one in part["transitions"]]

    def verdict(self, text: str) -> Verdict:
        state = self._initial
        for character in text:
            found = [
                (target, judge.verdict(character)) for source, target, judge in self._transitions if source == state
            ]
            if unsure := next((one for _, one in found if one.answer == Answer.OPEN), None):
                return unsure
            targets = [target for target, one in found if one.answer == Answer.VALID]
            if not targets:
                return invalid("no transition")
            state = targets[0]
        return VALID if state in self._accepting else invalid("not an accepting state")


_CLASSES = {
    "UPPER": "[A-Z]", "LOWER": "[a-z]", "LETTER": "[A-Za-z]", "DIGIT": "[0-9]", "SPACE": "[ \t]", "NEWLINE": "\n",
    "PUNCT": f"[{re.escape(string.punctuation)}]", "ANY": "(?s:.)",
}  # fmt: skip
"""The classes of token patterns."""


class ElementsJudge:
    """Of a token pattern, as a regular expression of Python."""

    def __init__(self, elements: list[list[str]]) -> None:
        parts = (
            f"(?:{_CLASSES.get(text, re.escape(text))}){'' if quantifier == '1' else quantifier}"
            for text, quantifier in elements
        )
        self._pattern = re.compile("".join(parts))

    def verdict(self, text: str) -> Verdict:
        return VALID if self._pattern.fullmatch(text) else invalid("the elements do not match it")


class GrammarJudge:
    """Lark's Earley parser; a grammar in the other notation is translated, as far as the fuzzer makes any."""

    def __init__(self, text: str, syntax: str) -> None:
        self._parser = _parser(text if syntax == "lark" else gbnf_as_lark(text))

    def verdict(self, text: str) -> Verdict:
        if len(text) > _LONGEST_PARSED:
            return undecided("too long for Lark")
        try:
            self._parser.parse(text)
        except lark.exceptions.UnexpectedInput:
            return invalid("Lark does not parse it")
        except (RuntimeError, AssertionError) as error:
            return undecided(f"Lark fails: {error}")
        # Grammars whose terminals look at the text around them generate no noncharacters (docs/constraints.md).
        return undecided("a noncharacter") if re.search("[\ufdd0-\ufdef]", text) else VALID


@functools.lru_cache(maxsize=500)
def _parser(text: str) -> lark.Lark:
    return lark.Lark(text, parser="earley", lexer="dynamic_complete")


def gbnf_as_lark(text: str) -> str:
    """The same grammar in Lark's notation, one rule to a line."""
    part = re.compile(r'("(?:[^"\\]|\\.)*")|(\[[^\]]+\])|\{(\d+),(\d+)\}')

    def translated(found: re.Match[str]) -> str:
        if found[2]:
            return f"/{found[2]}/"
        if found[3]:
            return f" ~ {found[3]}..{found[4]}"
        return found[1] if found[1] != '""' else ""

    return re.sub(r"\broot\b", "start", part.sub(translated, text).replace("::=", ":"))


class BannedJudge:
    """No word in the text; in JSON, nor in any decoded string."""

    def __init__(self, part: dict[str, Any], *, is_json: bool) -> None:
        self._is_json = is_json
        self._fold = (lambda text: text) if part.get("case_sensitive") else str.casefold
        self._whole = bool(part.get("whole_words"))
        self._words = [self._fold(word) for word in part["words"]]

    def verdict(self, text: str) -> Verdict:
        texts = [text]
        if self._is_json:
            try:
                texts += strings_in(plain(parse(text)))
            except NotJsonError:
                return invalid("not JSON")
        found = next((word for word in self._words if any(self._occurs(word, one) for one in texts)), None)
        return VALID if found is None else invalid(f"{found!r} is banned")

    def _occurs(self, word: str, text: str) -> bool:
        folded = self._fold(text)
        return any(
            not self._whole or self._is_whole(folded, place, place + len(word))
            for place in range(len(folded) - len(word) + 1)
            if folded.startswith(word, place)
        )

    @staticmethod
    def _is_whole(text: str, start: int, end: int) -> bool:
        return not any(re.fullmatch(r"\w", c) for c in (text[max(start - 1, 0) : start], text[end : end + 1]) if c)


class TagJudge:
    """Free text and regions, tried in every way; see `StructuralTagSpecification`."""

    def __init__(self, part: dict[str, Any], options: GrammarOptions) -> None:
        self._part = part
        self._tags = [
            (tag["begin"], judge_of(tag["content"], options), tag["content"]["type"] in JSON_KINDS, tag["end"])
            for tag in part["tags"]
        ]

    def verdict(self, text: str) -> Verdict:
        answer = self._free(text, 0, 0)
        return VALID if answer == Answer.VALID else Verdict(answer, "free text and regions do not fit")

    def _free(self, text: str, start: int, regions: int) -> Answer:
        """What the text from `start` on is, after so many regions."""
        if regions and self._part.get("stop_after_first"):
            return Answer.VALID if start == len(text) else Answer.INVALID
        triggers = self._part["triggers"]
        found = [(at + len(trigger), at) for trigger in triggers if (at := text.find(trigger, start)) >= 0]
        if not found:
            wanting = self._part.get("at_least_one") and not regions
            return Answer.INVALID if wanting else Answer.VALID
        end, at = min(found)
        trigger = text[at:end]
        answers = [Answer.INVALID]
        for begin, judge, is_json, closing in self._tags:
            if begin.startswith(trigger) and text.startswith(begin, at):
                answers += self._region(text, at + len(begin), judge, is_json, closing, regions)
        return min(answers, key=_BEST_FIRST.index)

    def _region(self, text: str, start: int, judge: Judge, is_json: bool, closing: str, regions: int) -> list[Answer]:
        answers = []
        for end in range(start, len(text) + 1):
            if not text.startswith(closing, end):
                continue
            answer = judge.verdict(text[start:end]).answer
            if answer != Answer.INVALID:
                answers.append(max(answer, self._free(text, end + len(closing), regions + 1), key=_BEST_FIRST.index))
            if closing and not is_json:
                break
        return answers


_BEST_FIRST = [Answer.VALID, Answer.OPEN, Answer.INVALID]


def is_about_json(specification: dict[str, Any]) -> bool:
    """Whether the texts are JSON documents."""
    parts = specification["specifications"] if specification["type"] == "all_of" else [specification]
    return any(part["type"] in JSON_KINDS for part in parts)


def json_parts(judge: Judge) -> list[JsonJudge]:
    """The judges of schemas inside a judge."""
    parts = judge.judges if isinstance(judge, AllOf) else [judge]
    return [part for part in parts if isinstance(part, JsonJudge)]
