"""Formats as a nondeterministic automaton (Thompson's construction).

The ends of a tag are excluded from the free text that directly belongs to it: what `any_text`, `triggered_tags` and the
like hold inside of it, be it in a sequence, as an alternative or repeated, but not inside of another tag. The free text
of a `dispatch` has its own `excludes` for that.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from grammar_workers import tag_formats as formats
from grammar_workers.budget import budget_of, limits_at
from grammar_workers.dfa.dfa import Dfa
from grammar_workers.errors import (
    GrammarError,
    InvalidSpecificationError,
    UnsatisfiableError,
    UnsupportedFeatureError,
)
from grammar_workers.languages.cfg.reading import RuleOfFormats
from grammar_workers.languages.cfg.rule_nfa import RuleNfa
from grammar_workers.languages.tags.automaton import FormatNfa, State, Value
from grammar_workers.languages.tags.free_text import FREE, free_text, up_to_end
from grammar_workers.languages.tags.layout import Layout
from grammar_workers.languages.tags.nested_values import Listed
from grammar_workers.languages.tags.spelling import Speller, Spelling, rest_of
from grammar_workers.memo import memoized
from grammar_workers.options import Limits
from grammar_workers.types import TokenId
from grammar_workers.vocabulary.vocabulary import Vocabulary

Content: TypeAlias = Dfa | Value | RuleNfa | RuleOfFormats | tuple[formats.Format, str]
"""Texts, a value with a rule of its own, a rule that calls values or formats, or another format and its pointer."""


class Leaves(Protocol):
    """What reads the formats that are languages of their own."""

    def format_content(self, format_: formats.Format, pointer: str) -> Content:
        """What a format allows."""

    def json_value(self, alternatives: Sequence[tuple[formats.JsonSchemaFormat, str]]) -> Value:
        """The value that one of these formats, which differ in their schemas alone, allows."""


@dataclasses.dataclass(frozen=True)
class Ends:
    """The ends of the tag around a format, which its free text does not hold."""

    texts: tuple[str, ...] = ()
    tokens: frozenset[TokenId] = frozenset()


_NONE = Ends()
_TIMES = {"optional": (0, 1), "plus": (1, -1), "star": (0, -1)}
_FORMAT_STEPS = 16
"""A format, laid out once more wherever it is repeated."""


class Construction:
    """The automaton of one format."""

    def __init__(self, vocabulary: Vocabulary, limits: Limits, leaves: Leaves) -> None:
        self._vocabulary = vocabulary
        self._limits = limits
        self._budget = budget_of(limits)
        self._speller = Speller(vocabulary)
        self._leaves = leaves
        self._laid = Layout(limits)
        # What formats that are repeated allow, by identity; each is kept, so that no other one gets its identity.
        self._contents: dict[tuple[int, Ends], tuple[formats.Format, Content]] = {}

    def run(self, format_: formats.Format, pointer: str) -> FormatNfa:
        """Raises GrammarError with pointers that begin with `pointer`."""
        first = self._laid.nfa.state()
        self._laid.nfa.finals.add(self._add(format_, pointer, first, _NONE))
        return self._laid.nfa

    # -- formats -------------------------------------------------------------------------------------------------

    def _add(self, format_: formats.Format, pointer: str, first: State, ends: Ends) -> State:
        """Lay a format out from state `first`; the state behind it. Limits that it exceeds get its pointer."""
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
                return self._repeat(format_.content, pointer, first, _TIMES[format_.type], ends)
            case formats.RepeatFormat():
                return self._repeat(format_.content, pointer, first, (format_.min, format_.max), ends)
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
        if isinstance(format_, Listed):
            return self._listed(format_, pointer, first, ends)
        _, found = self._contents.get((id(format_), ends)) or self._contents.setdefault(
            (id(format_), ends), (format_, self._content(format_, pointer, ends))
        )
        if isinstance(found, Dfa):
            return self._laid.embed(found, first)
        if isinstance(found, RuleNfa):
            return self._laid.embed_rule(found, first)[0]
        if isinstance(found, RuleOfFormats):
            if ends.texts:
                raise UnsupportedFeatureError(
                    "tokens or `%json` in a grammar inside a tag that ends with a text; end the tag with a token",
                    pointer=pointer,
                )
            return self._formats_of(found, pointer, first, ends)
        if isinstance(found, Value):
            last = self._laid.state()
            self._laid.nfa.edges[first].append((found, last))
            return last
        inside, place = found
        try:
            return self._add(inside, place, first, ends)
        except GrammarError as error:
            # What a format was rewritten to is not the client's.
            if place == pointer and error.pointer is not None:
                error.pointer = pointer
            raise

    def _formats_of(self, grammar: RuleOfFormats, pointer: str, first: State, ends: Ends) -> State:
        last, between = self._laid.embed_rule(grammar.rule, first)
        for number, state, target in between:
            format_, position = grammar.formats[number]
            try:
                behind = self._add(format_, pointer, self._laid.fresh(state), ends)
            except GrammarError as error:
                error.pointer, error.position = pointer or None, position
                raise
            self._laid.nfa.silent[behind].append(target)
        return last

    def _content(self, format_: formats.Format, pointer: str, ends: Ends) -> Content:
        """Return the texts that a leaf allows before the ends of its tag."""
        found = self._leaves.format_content(format_, pointer)
        if isinstance(found, Dfa) and isinstance(format_, formats.SpecificationFormat):
            for end in ends.texts:
                found = up_to_end(found, end, self._vocabulary, self._limits)
            if found.is_empty:
                raise UnsatisfiableError("no text fits before the end of the tag", pointer=pointer)
        return found

    def _any_of(self, format_: formats.OrFormat, pointer: str, first: State, ends: Ends) -> State:
        """The alternatives; JSON in one style is one value, for its beginning does not tell which is meant."""
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
            lasts.append(self._laid.state())
            self._laid.nfa.edges[first].append((self._leaves.json_value(alternatives), lasts[-1]))
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
        # The empty text is in every text but itself.
        if "" in format_.excludes or format_.max_tokens == 0:
            return first
        automaton = self._free({}, [*format_.excludes, *ends.texts])
        return self._laid.embed_limited(automaton, format_.max_chars, format_.max_tokens, first, pointer)

    def _any_tokens(self, format_: formats.AnyTokensFormat, pointer: str, first: State, ends: Ends) -> State:
        tokens = self._speller.tokens_but(format_.exclude_tokens, ends.tokens, f"{pointer}/exclude_tokens")
        if format_.max_tokens is None:
            loop = self._laid.fresh(first)
            self._laid.nfa.tokens[loop].append((tokens, loop))
            return self._laid.fresh(loop)
        last = self._laid.state()
        for _ in range(format_.max_tokens):
            self._laid.nfa.silent[first].append(last)
            first = self._laid.token(tokens, first)
        self._laid.nfa.silent[first].append(last)
        return last

    def _repeat(self, content: formats.Format, pointer: str, first: State, times: tuple[int, int], ends: Ends) -> State:
        low, high = times
        place = f"{pointer}/content"
        for _ in range(low):
            first = self._add(content, place, self._laid.fresh(first), ends)
        if high < 0:
            loop = self._laid.fresh(first)
            last = self._laid.fresh(loop)
            self._laid.nfa.silent[self._add(content, place, self._laid.fresh(loop), ends)].append(loop)
            return last
        passed = [first]
        for _ in range(high - low):
            first = self._add(content, place, self._laid.fresh(first), ends)
            passed.append(first)
        return self._laid.join(passed)

    # -- tags ----------------------------------------------------------------------------------------------------

    def _tag(self, tag: formats.TagFormat, pointer: str, first: State) -> State:
        if isinstance(tag.begin, formats.TokenFormat):
            begin: Spelling = (self._speller.token(tag.begin.token, f"{pointer}/begin/token"),)
        else:
            begin = self._speller.spell(tag.begin, f"{pointer}/begin")
        return self._behind_begin(tag, pointer, self._laid.spell(begin, first))

    def _behind_begin(self, tag: formats.TagFormat, pointer: str, first: State) -> State:
        if isinstance(tag.end, formats.TokenFormat):
            token = frozenset([self._speller.token(tag.end.token, f"{pointer}/end/token")])
            return self._laid.token(token, self._add(tag.content, f"{pointer}/content", first, Ends(tokens=token)))
        places = [f"{pointer}/end"] if isinstance(tag.end, str) else [f"{pointer}/end/{i}" for i in range(len(tag.end))]
        self._check_texts(tag.ends, f"{pointer}/end")
        spellings = [self._speller.spell(end, place) for end, place in zip(tag.ends, places, strict=True)]
        first = self._add(tag.content, f"{pointer}/content", first, Ends(texts=tuple(filter(None, tag.ends))))
        return self._laid.join([self._laid.spell(spelling, self._laid.fresh(first)) for spelling in spellings])

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
        rules: list[tuple[str, str, list[tuple[int, Spelling]]]] = [
            (trigger, f"{pointer}/triggers/{index}", []) for index, trigger in enumerate(format_.triggers)
        ]
        used: set[str] = set()
        for index, tag in enumerate(format_.tags):
            place = f"{pointer}/tags/{index}/begin"
            if isinstance(tag.begin, formats.TokenFormat):
                raise InvalidSpecificationError("a begin that is a token, where triggers are texts", pointer=place)
            opened = [rule for rule in rules if tag.begin.startswith(rule[0])]
            if not opened:
                raise InvalidSpecificationError("no trigger starts this begin", pointer=place)
            used.update(word for word, _, _ in opened)
            # The shortest one is complete first.
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
        rules = [rule for rule in rules if rule[2]]
        entry, last = self._laid.fresh(first), self._laid.state()
        again = last if format_.stop_after_first else self._laid.state()
        opened_by: dict[str, State] = {}

        def open_by(rule: tuple[str, str, list[tuple[int, Spelling]]], opening: Spelling, state: State) -> None:
            word, _, begins = rule
            if word not in opened_by:
                opened_by[word] = self._laid.state()
                for index, spelling in begins:
                    behind = self._laid.spell(rest_of(spelling, opening), self._laid.fresh(opened_by[word]))
                    behind = self._behind_begin(format_.tags[index], f"{pointer}/tags/{index}", behind)
                    self._laid.nfa.silent[behind].append(again)
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

    def _search(
        self,
        rules: Sequence[tuple[str, str, Callable[[Spelling, State], None]]],
        excludes: Sequence[str],
        pointer: str,
        begin: State,
    ) -> State:
        """Free text from `begin`, in which the words of `rules` (word, pointer, what lays out its rest) lead on.

        Returns the state in which the text may go on with something else.
        """
        self._check_texts(excludes, pointer)
        last = self._laid.state()
        if "" in excludes:
            self._laid.nfa.silent[begin].append(last)
            return last
        spelled = [(self._speller.spell(word, place), word, place, rest) for word, place, rest in rules]
        texts, hidden = [], []
        for spelling, word, place, rest in spelled:
            if len(spelling) != 1:
                raise InvalidSpecificationError("a trigger is plain text or exactly one special token", pointer=place)
            (piece,) = spelling
            if isinstance(piece, str):
                texts.append((piece, place, rest))
            else:
                # The token opens the region; its name, spelt as text, does not stand for it.
                hidden.append(word)
                state = self._laid.state()
                self._laid.nfa.tokens[last].append((frozenset([piece]), state))
                rest(spelling, state)
        # What can never be complete is left out, and so is what is searched for as the beginning of something shorter.
        texts = [one for one in texts if not any(text in one[0] for text in excludes)]
        numbers: dict[str, int] = {}
        for index, (word, place, _) in enumerate(texts):
            for other, _, _ in texts:
                if other != word and other in word and not word.startswith(other):
                    raise UnsupportedFeatureError(
                        f"{word!a} holds {other!a}, which leads on before it is complete", pointer=place
                    )
            shorter = [other for other, _, _ in texts if other != word and word.startswith(other)]
            if not shorter:
                numbers.setdefault(word, FREE + 1 + index)
        words = list(numbers)
        excluded = [text for text in (*excludes, *hidden) if not any(word in text[:-1] for word in words)]
        automaton = self._free(numbers, excluded)
        states = self._laid.states_of(automaton, begin)
        for state, label in zip(states, automaton.accepting, strict=True):
            if label == FREE:
                self._laid.nfa.silent[state].append(last)
        ends_of = {label: state for state, label in zip(states, automaton.accepting, strict=True) if label > FREE}
        for word, _, rest in texts:
            shortest = next(one for one in words if word.startswith(one))
            if numbers[shortest] in ends_of:
                behind = self._laid.spell(
                    tuple(filter(None, [word[len(shortest) :]])), self._laid.fresh(ends_of[numbers[shortest]])
                )
                rest((word,), behind)
        return last

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
                self._laid.nfa.tokens[state].append((free, state))
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
        self._laid.nfa.tokens[begin].append((free, begin))
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
            if any("\ud800" <= character <= "\udfff" for character in text):
                raise InvalidSpecificationError("a lone surrogate, which no text holds", pointer=f"{pointer}/{index}")
