"""Thompson's construction for structural tags: converts a format to a nondeterministic automaton.

A *format* is a node of a structural tag. Some formats, such as `any_text` and `triggered_tags`, contain free text. In a
tag, free text must not contain the end texts or end tokens of the tag. There are two exceptions: a nested tag has only
its own ends, and the free text of a `dispatch` format has only its own `excludes`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import TypeAlias

from grammar_workers import tag_formats as formats
from grammar_workers.budget import budget_of, limits_at
from grammar_workers.dfa.dfa import Dfa
from grammar_workers.errors import (
    GrammarError,
    InvalidSpecificationError,
    UnsatisfiableError,
    UnsupportedFeatureError,
)
from grammar_workers.languages.tags.automaton import FormatNfa, State, Value
from grammar_workers.languages.tags.free_text import FREE, free_text, up_to_end
from grammar_workers.languages.tags.layout import Layout
from grammar_workers.languages.tags.leaves import Content, TagLeaves
from grammar_workers.languages.tags.lower import GrammarRule
from grammar_workers.languages.tags.nested_values import Listed
from grammar_workers.languages.tags.spelling import Speller, Spelling, rest_of
from grammar_workers.memo import memoized
from grammar_workers.options import Limits
from grammar_workers.scalar_values import has_surrogate
from grammar_workers.types import TokenId
from grammar_workers.vocabulary.vocabulary import Vocabulary


@dataclasses.dataclass(frozen=True)
class Ends:
    """The texts and tokens that end a tag. Free text in the tag must not contain them.

    Attributes:
        texts: The end texts, each of them nonempty.
        tokens: IDs of the end tokens.
    """

    texts: tuple[str, ...] = ()
    tokens: frozenset[TokenId] = frozenset()


# A trigger of free text: the word, its JSON Pointer, and a function that appends what follows. The function takes the
# words that have been read, and the state after them.
_Trigger: TypeAlias = tuple[str, str, Callable[[Spelling, State], None]]
# A trigger with its JSON Pointer, and the tags that it opens: index and begin of each.
_Opening: TypeAlias = tuple[str, str, list[tuple[int, Spelling]]]
_NONE = Ends()
_TIMES = {"optional": (0, 1), "plus": (1, None), "star": (0, None)}
# Budget steps for each copy of a format; a repetition creates several copies.
_FORMAT_STEPS = 16


class Construction:
    """Builder of the nondeterministic automaton of one structural tag.

    Args:
        vocabulary: The tokens of the model.
        limits: Bounds on states and on steps of work. If one is exceeded, LimitExceededError is raised.
        leaves: Compiler of the formats of other languages, such as JSON and regular expressions.
    """

    def __init__(self, vocabulary: Vocabulary, limits: Limits, leaves: TagLeaves) -> None:
        self._vocabulary = vocabulary
        self._limits = limits
        self._budget = budget_of(limits)
        self._speller = Speller(vocabulary)
        self._leaves = leaves
        self._laid = Layout(limits)
        # Contents by the identity of the format, because repetitions use them again. The format is stored too, so that
        # its `id` is not reused.
        self._contents: dict[int, tuple[formats.Format, Content]] = {}

    def run(self, format_: formats.Format, pointer: str) -> tuple[FormatNfa, dict[Value, FormatNfa]]:
        """Convert a whole structural tag. Call this method once.

        A malformed, unsupported or too large format raises GrammarError. Its JSON Pointer begins with `pointer`.

        Args:
            format_: The root format (node) of the structural tag.
            pointer: JSON Pointer of `format_` in the specification.

        Returns:
            The automaton of the tag, and the automaton of each grammar rule that it calls.
        """
        tag = self._automaton(functools.partial(self._add, format_, pointer, ends=_NONE))
        # The list grows: rules contain formats, which may call JSON values.
        rules = {
            value: self._automaton(functools.partial(self._add_rule, rule, ends=_NONE))
            for value, rule in enumerate(self._leaves.values.rules)
            if isinstance(rule, GrammarRule)
        }
        return tag, rules

    def _automaton(self, add: Callable[..., State]) -> FormatNfa:
        """Return a new automaton of what `add` appends."""
        self._laid.nfa = nfa = FormatNfa()
        nfa.finals.add(add(first=self._laid.state()))
        return nfa

    # -- formats -------------------------------------------------------------------------------------------------

    def _add(self, format_: formats.Format, pointer: str, first: State, ends: Ends) -> State:
        """Return the state after a format that is appended to `first`. Exceeded limits get its pointer."""
        with limits_at(pointer):
            return self._lay_out(format_, pointer, first, ends)

    def _lay_out(self, format_: formats.Format, pointer: str, first: State, ends: Ends) -> State:
        self._budget.spend(_FORMAT_STEPS)
        match format_:
            case formats.ConstStringFormat():
                return self._laid.spell(self._speller.spell(format_.value, f"{pointer}/value"), first)
            case formats.AnyTextFormat():
                return self._any_text(format_, pointer, first, ends)
            case formats.TokenFormat():
                token = self._speller.token(format_.token, f"{pointer}/token")
                return self._laid.token(frozenset([token]), first)
            case formats.ExcludeTokenFormat():
                named = f"{pointer}/exclude_tokens"
                return self._laid.token(self._speller.tokens_but(format_.exclude_tokens, ends.tokens, named), first)
            case formats.AnyTokensFormat():
                return self._any_tokens(format_, pointer, first, ends)
            case formats.SequenceFormat():
                for index, element in enumerate(format_.elements):
                    first = self._add(element, f"{pointer}/elements/{index}", first, ends)
                return first
            case formats.OrFormat():
                return self._any_of(format_, pointer, first, ends)
            case formats.OptionalFormat() | formats.PlusFormat() | formats.StarFormat():
                return self._repeat(format_.content, pointer, first, *_TIMES[format_.type], ends)
            case formats.RepeatFormat():
                high = None if format_.max < 0 else format_.max
                return self._repeat(format_.content, pointer, first, format_.min, high, ends)
            case formats.TagFormat():
                return self._tag(format_, pointer, first)
            case formats.TagsWithSeparatorFormat():
                return self._tags_with_separator(format_, pointer, first)
            case formats.TriggeredTagsFormat():
                return self._triggered_tags(format_, pointer, first, ends)
            case formats.DispatchFormat():
                return self._dispatch(format_, pointer, first, ends)
            case formats.TokenTriggeredTagsFormat():
                return self._token_triggered_tags(format_, pointer, first, ends)
            case formats.TokenDispatchFormat():
                return self._token_dispatch(format_, pointer, first, ends)
            case Listed():
                return self._listed(format_, pointer, first, ends)
        content = self._compiled(format_, functools.partial(self._leaves.format_content, format_, pointer))
        if isinstance(content, Dfa) and isinstance(format_, formats.SpecificationFormat):
            for end in ends.texts:
                content = self._up_to_end(content, end)
            if content.is_empty:
                raise UnsatisfiableError("no text fits before the end of the tag", pointer=pointer)
        return self._embed(content, pointer, first, ends)

    def _compiled(self, format_: formats.Format, compile_: Callable[[], Content]) -> Content:
        """Return the content of a leaf format. `compile_` compiles it when it is needed for the first time."""
        if id(format_) not in self._contents:
            self._contents[id(format_)] = format_, compile_()
        return self._contents[id(format_)][1]

    @memoized
    def _up_to_end(self, content: Dfa, end: str) -> Dfa:
        return up_to_end(content, end, self._vocabulary, self._limits)

    def _embed(self, content: Content, pointer: str, first: State, ends: Ends) -> State:
        """Return the state after the content of a leaf format."""
        if isinstance(content, Dfa):
            return self._laid.embed(content, first)
        if isinstance(content, GrammarRule):
            return self._add_rule(content, first, ends)
        if isinstance(content, int):
            return self._laid.read(content, first)
        inside, place = content
        try:
            return self._add(inside, place, first, ends)
        except GrammarError as error:
            # The client did not write the format that a leaf was rewritten to: the error names the leaf.
            if place == pointer and error.pointer is not None:
                error.pointer = pointer
            raise

    def _add_rule(self, rule: GrammarRule, first: State, ends: Ends) -> State:
        last, between = self._laid.embed_rule(rule.automaton, len(rule.formats), first)
        for number, state, target in between:
            format_, position = rule.formats[number]
            try:
                behind = self._add(format_, rule.pointer, self._laid.fresh(state), ends)
            except GrammarError as error:
                error.pointer, error.position = rule.pointer or None, position
                raise
            self._laid.nfa.silent[behind].append(target)
        return last

    def _any_of(self, format_: formats.OrFormat, pointer: str, first: State, ends: Ends) -> State:
        """Return the state after alternatives. JSON alternatives in one style become one value.

        Their first bytes do not determine which one is meant.
        """
        values: dict[str, list[tuple[formats.JsonSchemaFormat, str]]] = {}
        lasts = []
        for index, element in enumerate(format_.elements):
            place = f"{pointer}/elements/{index}"
            if isinstance(element, formats.JsonSchemaFormat) and element.style == "json":
                spelling = element.model_dump_json(exclude={"json_schema"})
                values.setdefault(spelling, []).append((element, place))
            else:
                lasts.append(self._add(element, place, self._laid.fresh(first), ends))
        for alternatives in values.values():
            value = self._compiled(alternatives[0][0], functools.partial(self._leaves.json_value, alternatives))
            lasts.append(self._embed(value, pointer, first, ends))
        return self._laid.join(lasts)

    def _listed(self, listed: Listed, pointer: str, first: State, ends: Ends) -> State:
        separator = self._speller.spell(listed.separator, pointer)
        empty: State | None = first
        begun: State | None = None
        for index, (element, must_come) in enumerate(listed.elements):
            befores = [] if empty is None else [self._laid.fresh(empty)]
            if begun is not None:
                befores.append(self._laid.spell(separator, self._laid.fresh(begun)))
            place = f"{pointer}/elements/{index}"
            lasts = [self._add(element, place, before, ends) for before in befores]
            if must_come:
                empty = None
            elif begun is not None:
                lasts.append(begun)
            begun = self._laid.join(lasts)
            if not separator:
                empty, begun = begun if empty is None else self._laid.join([empty, begun]), None
        return self._laid.join([state for state in (empty, begun) if state is not None])

    def _any_text(self, format_: formats.AnyTextFormat, pointer: str, first: State, ends: Ends) -> State:
        self._check_texts(format_.excludes, f"{pointer}/excludes")
        # If the empty text is excluded, no other text is allowed.
        if "" in format_.excludes or format_.max_tokens == 0:
            return first
        automaton = self._free({}, [*format_.excludes, *ends.texts])
        return self._laid.embed_limited(automaton, format_.max_chars, format_.max_tokens, first, pointer)

    def _any_tokens(self, format_: formats.AnyTokensFormat, pointer: str, first: State, ends: Ends) -> State:
        tokens = self._speller.tokens_but(format_.exclude_tokens, ends.tokens, f"{pointer}/exclude_tokens")
        return self._laid.repeat(functools.partial(self._laid.token, tokens), first, 0, format_.max_tokens)

    def _repeat(
        self, content: formats.Format, pointer: str, first: State, low: int, high: int | None, ends: Ends
    ) -> State:
        def add(state: State) -> State:
            return self._add(content, f"{pointer}/content", self._laid.fresh(state), ends)

        return self._laid.repeat(add, first, low, high)

    # -- tags ----------------------------------------------------------------------------------------------------

    def _tag(self, tag: formats.TagFormat, pointer: str, first: State) -> State:
        if isinstance(tag.begin, formats.TokenFormat):
            begin: Spelling = (self._speller.token(tag.begin.token, f"{pointer}/begin/token"),)
        else:
            begin = self._speller.spell(tag.begin, f"{pointer}/begin")
        return self._behind_begin(tag, pointer, self._laid.spell(begin, first))

    def _behind_begin(self, tag: formats.TagFormat, pointer: str, first: State) -> State:
        return self._end_of(tag, pointer, self._content_of(tag, pointer, first))

    def _content_of(self, tag: formats.TagFormat, pointer: str, first: State) -> State:
        """Append the content of a tag. Return the state after it."""
        if isinstance(tag.end, formats.TokenFormat):
            ends = Ends(tokens=self._end_token(tag.end, pointer))
        else:
            ends = Ends(texts=tuple(filter(None, tag.ends)))
        return self._add(tag.content, f"{pointer}/content", first, ends)

    def _end_of(self, tag: formats.TagFormat, pointer: str, first: State) -> State:
        """Append the end of a tag, after its content. Return the state after it."""
        if isinstance(tag.end, formats.TokenFormat):
            return self._laid.token(self._end_token(tag.end, pointer), first)
        places = [f"{pointer}/end"] if isinstance(tag.end, str) else [f"{pointer}/end/{i}" for i in range(len(tag.end))]
        self._check_texts(tag.ends, f"{pointer}/end")
        spellings = [self._speller.spell(end, place) for end, place in zip(tag.ends, places, strict=True)]
        return self._laid.join([self._laid.spell(spelling, self._laid.fresh(first)) for spelling in spellings])

    def _end_token(self, end: formats.TokenFormat, pointer: str) -> frozenset[int]:
        return frozenset([self._speller.token(end.token, f"{pointer}/end/token")])

    def _tags_with_separator(self, format_: formats.TagsWithSeparatorFormat, pointer: str, first: State) -> State:
        before = self._laid.fresh(first)
        after = self._any_tag(format_.tags, pointer, before)
        if not format_.stop_after_first:
            separator = self._speller.spell(format_.separator, f"{pointer}/separator")
            self._laid.nfa.silent[self._laid.spell(separator, after)].append(before)
        return self._laid.join([after] if format_.at_least_one else [after, self._laid.fresh(first)])

    def _any_tag(self, tags: Sequence[formats.TagFormat], pointer: str, first: State) -> State:
        return self._laid.join(
            [self._tag(tag, f"{pointer}/tags/{i}", self._laid.fresh(first)) for i, tag in enumerate(tags)]
        )

    def _triggered_tags(self, format_: formats.TriggeredTagsFormat, pointer: str, first: State, ends: Ends) -> State:
        rules = self._openings(format_, pointer)
        entry, last = self._laid.fresh(first), self._laid.state()
        again = last if format_.stop_after_first else self._laid.state()
        opened_by: dict[str, State] = {}
        ended_by: dict[str, State] = {}

        def open_by(rule: _Opening, opening: Spelling, state: State) -> None:
            word, _, begins = rule
            if word not in opened_by:
                opened_by[word] = self._laid.state()
                for index, spelling in begins:
                    tag, place = format_.tags[index], f"{pointer}/tags/{index}"
                    behind = self._laid.spell(rest_of(spelling, opening), self._laid.fresh(opened_by[word]))
                    content_end = self._content_of(tag, place, behind)
                    # Tags with equal ends share the states of the end, because the same text follows.
                    if (end := str(tag.end)) not in ended_by:
                        ended_by[end] = self._laid.state()
                        self._laid.nfa.silent[self._end_of(tag, place, ended_by[end])].append(again)
                    self._laid.nfa.silent[content_end].append(ended_by[end])
            self._laid.nfa.silent[state].append(opened_by[word])

        def search_from(state: State) -> State:
            searched = [(word, place, functools.partial(open_by, rule)) for rule in rules for word, place, _ in [rule]]
            return self._search(searched, [*format_.excludes, *ends.texts], f"{pointer}/excludes", state)

        if format_.at_least_one:
            for rule in rules:
                spelling = self._speller.spell(rule[0], rule[1])
                open_by(rule, spelling, self._laid.spell(spelling, self._laid.fresh(entry)))
        elif format_.required:
            search_from(entry)
        has_begun = format_.at_least_one or format_.required
        if not (has_begun and format_.stop_after_first):
            free = again if has_begun else entry
            self._laid.nfa.silent[search_from(free)].append(last)
            if not format_.stop_after_first and not has_begun:
                self._laid.nfa.silent[again].append(free)
        return last

    def _openings(self, format_: formats.TriggeredTagsFormat, pointer: str) -> list[_Opening]:
        """Return the triggers that open tags. A tag is opened by the shortest trigger that starts its begin."""
        rules: list[_Opening] = [
            (trigger, f"{pointer}/triggers/{index}", []) for index, trigger in enumerate(format_.triggers)
        ]
        used: set[str] = set()
        for index, tag in enumerate(format_.tags):
            place = f"{pointer}/tags/{index}/begin"
            if isinstance(tag.begin, formats.TokenFormat):
                raise InvalidSpecificationError("a begin that is a token, where triggers are texts", pointer=place)
            opened = [rule for rule in rules if tag.begin.startswith(rule[0])]
            if not opened:
                raise InvalidSpecificationError(
                    "`begin` starts with none of the `triggers`; change one of them", pointer=place
                )
            used.update(word for word, _, _ in opened)
            # The shortest trigger is complete first.
            trigger, where, begins = min(opened, key=lambda rule: len(rule[0]))
            begin = self._speller.spell(tag.begin, place)
            if isinstance(begin[0], str) != isinstance(self._speller.spell(trigger, where)[0], str):
                raise InvalidSpecificationError(
                    f"this begins with a special token, so the trigger must be that token, not {trigger!a}",
                    pointer=place,
                )
            begins.append((index, begin))
        for word, place, _ in rules:
            if word not in used:
                raise InvalidSpecificationError(f"no begin starts with the trigger {word!a}", pointer=place)
        return [rule for rule in rules if rule[2]]

    def _dispatch(self, format_: formats.DispatchFormat, pointer: str, first: State, ends: Ends) -> State:
        begin, last = self._laid.fresh(first), self._laid.state()

        def following(index: int, _: Spelling, state: State) -> None:
            content, place = format_.rules[index][1], f"{pointer}/rules/{index}/1"
            behind = self._add(content, place, self._laid.fresh(state), ends)
            self._laid.nfa.silent[behind].append(begin if format_.loop else last)

        searched = [
            (pattern, f"{pointer}/rules/{index}/0", functools.partial(following, index))
            for index, (pattern, _) in enumerate(format_.rules)
        ]
        end = self._search(searched, format_.excludes, f"{pointer}/excludes", begin)
        self._laid.nfa.silent[end].append(last)
        return last

    def _search(self, rules: Sequence[_Trigger], excludes: Sequence[str], pointer: str, begin: State) -> State:
        """Append free text in which the words of `rules` are triggers.

        A trigger that is neither plain text nor exactly one special token raises InvalidSpecificationError. A trigger
        that contains another trigger, which would be complete first, raises UnsupportedFeatureError.

        Args:
            rules: The triggers.
            excludes: Texts that must not occur.
            pointer: JSON Pointer of `excludes`.
            begin: The state in which the free text begins.

        Returns:
            The state in which the free text may end.
        """
        self._check_texts(excludes, pointer)
        last = self._laid.state()
        if "" in excludes:
            self._laid.nfa.silent[begin].append(last)
            return last
        texts, hidden = self._texts_of(rules, last)
        # Triggers that contain an excluded text are dropped.
        texts = [one for one in texts if not any(text in one[0] for text in excludes)]
        numbers = _searched(texts)
        words = list(numbers)
        excluded = [text for text in (*excludes, *hidden) if not any(word in text[:-1] for word in words)]
        automaton = self._free(numbers, excluded)
        base = self._laid.copy(self._laid.rule_of(automaton), begin)
        ends_of = {label: state for state, label in enumerate(automaton.accepting, base) if label > FREE}
        for state, label in enumerate(automaton.accepting, base):
            if label == FREE:
                self._laid.nfa.silent[state].append(last)
        for word, _, rest in texts:
            shortest = next(one for one in words if word.startswith(one))
            if numbers[shortest] in ends_of:
                end = self._laid.fresh(ends_of[numbers[shortest]])
                rest((word,), self._laid.spell((word[len(shortest) :],), end))
        return last

    def _texts_of(self, rules: Sequence[_Trigger], last: State) -> tuple[list[_Trigger], list[str]]:
        """Append the triggers that are tokens after `last`. Return the other triggers, and the names of the tokens."""
        spellings = [self._speller.spell(word, place) for word, place, _ in rules]
        texts, hidden = [], []
        for spelling, rule in zip(spellings, rules, strict=True):
            word, place, rest = rule
            if len(spelling) != 1:
                raise InvalidSpecificationError("a trigger is plain text or exactly one special token", pointer=place)
            (piece,) = spelling
            if isinstance(piece, str):
                texts.append(rule)
            else:
                # The token is the trigger; its name written as text is not.
                hidden.append(word)
                rest(spelling, self._laid.token(frozenset([piece]), last))
        return texts, hidden

    # -- tags of tokens --------------------------------------------------------------------------------------------

    def _token_triggered_tags(
        self, format_: formats.TokenTriggeredTagsFormat, pointer: str, first: State, ends: Ends
    ) -> State:
        triggers = [
            self._speller.token(name, f"{pointer}/trigger_tokens/{i}") for i, name in enumerate(format_.trigger_tokens)
        ]
        last, again = self._laid.state(), self._laid.state()
        opened: dict[TokenId, list[int]] = {token: [] for token in triggers}
        for index, tag in enumerate(format_.tags):
            place = f"{pointer}/tags/{index}/begin"
            if not isinstance(tag.begin, formats.TokenFormat):
                raise InvalidSpecificationError("a begin that is a text, where triggers are tokens", pointer=place)
            token = self._speller.token(tag.begin.token, f"{place}/token")
            if token not in opened:
                raise InvalidSpecificationError("no trigger is this begin", pointer=place)
            opened[token].append(index)
        begin = self._laid.fresh(first)
        for state in (begin, again):
            if state == again and format_.stop_after_first:
                break
            if state == again or not format_.at_least_one:
                named = f"{pointer}/exclude_tokens"
                free = self._speller.tokens_but(format_.exclude_tokens, ends.tokens | set(triggers), named)
                self._laid.token(free, state, state)
                self._laid.nfa.silent[state].append(last)
            for token, indexes in opened.items():
                behind = self._laid.token(frozenset([token]), state)
                for index in indexes:
                    end = self._behind_begin(format_.tags[index], f"{pointer}/tags/{index}", self._laid.fresh(behind))
                    self._laid.nfa.silent[end].append(last if format_.stop_after_first else again)
        return last

    def _token_dispatch(self, format_: formats.TokenDispatchFormat, pointer: str, first: State, ends: Ends) -> State:
        begin, last = self._laid.fresh(first), self._laid.state()
        patterns = [
            self._speller.token(name, f"{pointer}/rules/{index}/0") for index, (name, _) in enumerate(format_.rules)
        ]
        free = self._speller.tokens_but(format_.exclude_tokens, frozenset(patterns), f"{pointer}/exclude_tokens")
        self._laid.token(free, begin, begin)
        self._laid.nfa.silent[begin].append(last)
        for index, (pattern, (_, content)) in enumerate(zip(patterns, format_.rules, strict=True)):
            behind = self._laid.token(frozenset([pattern]), begin)
            behind = self._add(content, f"{pointer}/rules/{index}/1", behind, ends)
            self._laid.nfa.silent[behind].append(begin if format_.loop else last)
        return last

    def _free(self, words: dict[str, int], excludes: Sequence[str]) -> Dfa:
        return self._free_text(tuple(words.items()), tuple(text for text in dict.fromkeys(excludes) if text))

    @memoized
    def _free_text(self, words: tuple[tuple[str, int], ...], excludes: tuple[str, ...]) -> Dfa:
        return free_text(dict(words), excludes, self._vocabulary, self._limits)

    def _check_texts(self, texts: Sequence[str], pointer: str) -> None:
        for index, text in enumerate(texts):
            if has_surrogate(text):
                raise InvalidSpecificationError("a lone surrogate, which no text holds", pointer=f"{pointer}/{index}")


def _searched(texts: Sequence[_Trigger]) -> dict[str, int]:
    """Return a label for each trigger to search for. Others begin with one of these, and are reached through it."""
    numbers: dict[str, int] = {}
    for index, (word, place, _) in enumerate(texts):
        others = [other for other, _, _ in texts if other != word and other in word]
        for other in others:
            if not word.startswith(other):
                raise UnsupportedFeatureError(
                    f"{word!a} holds {other!a}, which leads on before it is complete", pointer=place
                )
        if not others:
            numbers.setdefault(word, FREE + 1 + index)
    return numbers
