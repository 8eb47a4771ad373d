"""Formats as a nondeterministic automaton (Thompson's construction).

The ends of a tag are excluded from the free text that directly belongs to it: what `any_text`, `triggered_tags` and the
like hold inside of it, be it in a sequence, as an alternative or repeated, but not inside of another tag.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from grammar_workers import tag_formats as formats
from grammar_workers.budget import budget_of
from grammar_workers.dfa import charset
from grammar_workers.dfa.dfa import Dfa, intersect
from grammar_workers.errors import InvalidSpecificationError, LimitExceededError, UnsupportedFeatureError
from grammar_workers.languages.cfg.rule_nfa import RuleNfa
from grammar_workers.languages.tags.automaton import FormatNfa, State, Value
from grammar_workers.languages.tags.free_text import FREE, free_text
from grammar_workers.languages.tags.spelling import Speller, Spelling
from grammar_workers.options import Limits
from grammar_workers.types import TokenId
from grammar_workers.vocabulary.vocabulary import Vocabulary

Content: TypeAlias = Dfa | Value | RuleNfa | tuple[formats.Format, str]
"""Texts, a value with a rule of its own, a rule that calls values, or another format and its pointer."""


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


class Construction:
    """The automaton of one format."""

    def __init__(self, vocabulary: Vocabulary, limits: Limits, leaves: Leaves) -> None:
        self._vocabulary = vocabulary
        self._limits = limits
        self._budget = budget_of(limits)
        self._speller = Speller(vocabulary)
        self._leaves = leaves
        self._nfa = FormatNfa()

    def run(self, format_: formats.Format, pointer: str) -> FormatNfa:
        """Raises GrammarError with pointers that begin with `pointer`."""
        first = self._nfa.state()
        self._nfa.last = self._add(format_, pointer, first, _NONE)
        return self._nfa

    # -- formats -------------------------------------------------------------------------------------------------

    def _add(self, format_: formats.Format, pointer: str, first: State, ends: Ends) -> State:
        """Lay a format out from state `first`; the state behind it."""
        match format_:
            case formats.ConstStringFormat():
                return self._spell(self._speller.spell(format_.value, f"{pointer}/value"), first)
            case formats.AnyTextFormat():
                return self._any_text(format_, pointer, first, ends)
            case formats.TokenFormat():
                token = self._speller.token(format_.token, f"{pointer}/token")
                return self._token(frozenset([token]), first)
            case formats.ExcludeTokenFormat():
                named = f"{pointer}/exclude_tokens"
                return self._token(self._speller.tokens_but(format_.exclude_tokens, ends.tokens, named), first)
            case formats.AnyTokensFormat():
                return self._any_tokens(format_, pointer, first, ends)
            case formats.SequenceFormat():
                for index, element in enumerate(format_.elements):
                    first = self._add(element, f"{pointer}/elements/{index}", first, ends)
                return first
            case formats.OrFormat():
                return self._any_of(format_, pointer, first, ends)
            case formats.OptionalFormat():
                return self._repeat(format_.content, pointer, first, (0, 1), ends)
            case formats.PlusFormat():
                return self._repeat(format_.content, pointer, first, (1, -1), ends)
            case formats.StarFormat():
                return self._repeat(format_.content, pointer, first, (0, -1), ends)
            case formats.RepeatFormat():
                return self._repeat(format_.content, pointer, first, (format_.min, format_.max), ends)
            case formats.TagFormat():
                return self._tag(format_, pointer, first)
            case formats.TagsWithSeparatorFormat():
                return self._tags_with_separator(format_, pointer, first)
            case formats.TriggeredTagsFormat():
                return self._triggered_tags(format_, pointer, first, ends)
            case formats.DispatchFormat():
                return self._dispatch(format_, pointer, first)
            case formats.TokenTriggeredTagsFormat():
                return self._token_triggered_tags(format_, pointer, first, ends)
            case formats.TokenDispatchFormat():
                return self._token_dispatch(format_, pointer, first)
        found = self._leaves.format_content(format_, pointer)
        if isinstance(found, Dfa):
            if isinstance(format_, formats.SpecificationFormat) and ends.texts:
                found = intersect([found, self._free({}, ends.texts)], self._limits)
            return self._embed(found, first)
        if isinstance(found, RuleNfa):
            return self._embed_rule(found, first)
        if isinstance(found, Value):
            last = self._state()
            self._nfa.values[first].append((found, last))
            return last
        return self._add(*found, first, ends)

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
                lasts.append(self._add(element, place, self._fresh(first), ends))
        for alternatives in values.values():
            lasts.append(self._state())
            self._nfa.values[first].append((self._leaves.json_value(alternatives), lasts[-1]))
        return self._join(lasts)

    def _any_text(self, format_: formats.AnyTextFormat, pointer: str, first: State, ends: Ends) -> State:
        if format_.max_tokens is not None:
            raise UnsupportedFeatureError(
                "a number of tokens that text may have; give `max_chars`", pointer=f"{pointer}/max_tokens"
            )
        self._check_texts(format_.excludes, f"{pointer}/excludes")
        if "" in format_.excludes:  # the empty text is in every text but itself
            return first
        automaton = self._free({}, [*format_.excludes, *ends.texts])
        if format_.max_chars is None:
            return self._embed(automaton, first)
        return self._embed_up_to(automaton, format_.max_chars, first, pointer)

    def _any_tokens(self, format_: formats.AnyTokensFormat, pointer: str, first: State, ends: Ends) -> State:
        tokens = self._speller.tokens_but(format_.exclude_tokens, ends.tokens, f"{pointer}/exclude_tokens")
        if format_.max_tokens is None:
            loop = self._fresh(first)
            self._nfa.tokens[loop].append((tokens, loop))
            return self._fresh(loop)
        last = self._state()
        for _ in range(format_.max_tokens):
            self._nfa.silent[first].append(last)
            first = self._token(tokens, first)
        self._nfa.silent[first].append(last)
        return last

    def _repeat(
        self, content: formats.Format, pointer: str, first: State, times: tuple[int, int], ends: Ends
    ) -> State:
        low, high = times
        place = f"{pointer}/content"
        for _ in range(low):
            first = self._add(content, place, self._fresh(first), ends)
        if high < 0:
            loop = self._fresh(first)
            last = self._fresh(loop)
            self._nfa.silent[self._add(content, place, self._fresh(loop), ends)].append(loop)
            return last
        passed = [first]
        for _ in range(high - low):
            first = self._add(content, place, self._fresh(first), ends)
            passed.append(first)
        return self._join(passed)

    # -- tags ----------------------------------------------------------------------------------------------------

    def _tag(self, tag: formats.TagFormat, pointer: str, first: State) -> State:
        if isinstance(tag.begin, formats.TokenFormat):
            token = self._speller.token(tag.begin.token, f"{pointer}/begin/token")
            return self._behind_begin(tag, pointer, self._token(frozenset([token]), first))
        return self._behind_begin(tag, pointer, self._spell(self._speller.spell(tag.begin, f"{pointer}/begin"), first))

    def _behind_begin(self, tag: formats.TagFormat, pointer: str, first: State) -> State:
        if isinstance(tag.end, formats.TokenFormat):
            token = frozenset([self._speller.token(tag.end.token, f"{pointer}/end/token")])
            return self._token(token, self._add(tag.content, f"{pointer}/content", first, Ends(tokens=token)))
        places = [f"{pointer}/end"] if isinstance(tag.end, str) else [f"{pointer}/end/{i}" for i in range(len(tag.end))]
        self._check_texts(tag.ends, f"{pointer}/end")
        first = self._add(tag.content, f"{pointer}/content", first, Ends(texts=tuple(filter(None, tag.ends))))
        spellings = [self._speller.spell(end, place) for end, place in zip(tag.ends, places, strict=True)]
        return self._join([self._spell(spelling, self._fresh(first)) for spelling in spellings])

    def _tags_with_separator(self, format_: formats.TagsWithSeparatorFormat, pointer: str, first: State) -> State:
        before = self._fresh(first)
        after = self._any_tag(format_.tags, pointer, before)
        if not format_.stop_after_first:
            separator = self._speller.spell(format_.separator, f"{pointer}/separator")
            self._nfa.silent[self._spell(separator, after)].append(before)
        return self._join([after] if format_.at_least_one else [after, self._fresh(first)])

    def _any_tag(self, tags: Sequence[formats.TagFormat], pointer: str, first: State) -> State:
        return self._join([self._tag(tag, f"{pointer}/tags/{i}", self._fresh(first)) for i, tag in enumerate(tags)])

    def _triggered_tags(
        self, format_: formats.TriggeredTagsFormat, pointer: str, first: State, ends: Ends
    ) -> State:
        rules: list[tuple[str, str, list[tuple[int, Spelling]]]] = [
            (trigger, f"{pointer}/triggers/{index}", []) for index, trigger in enumerate(format_.triggers)
        ]
        for index, tag in enumerate(format_.tags):
            place = f"{pointer}/tags/{index}/begin"
            if isinstance(tag.begin, formats.TokenFormat):
                raise InvalidSpecificationError("a begin that is a token, where triggers are texts", pointer=place)
            opened = [rule for rule in rules if tag.begin.startswith(rule[0])]
            if len(opened) != 1:
                what = "no trigger starts this begin" if not opened else "more than one trigger starts this begin"
                raise InvalidSpecificationError(what, pointer=place)
            spelling = self._speller.spell(tag.begin, place)
            trigger = self._speller.spell(opened[0][0], opened[0][1])
            if isinstance(spelling[0], str) != isinstance(trigger[0], str):
                raise InvalidSpecificationError(
                    f"this begins with a special token, so the trigger must be that token, not {opened[0][0]!a}",
                    pointer=place,
                )
            opened[0][2].append((index, spelling))
        for trigger, place, begins in rules:
            if not begins:
                raise InvalidSpecificationError(f"no begin starts with the trigger {trigger!a}", pointer=place)
        entry = self._fresh(first)
        again = None if format_.stop_after_first else self._fresh(self._state())
        last = self._state()

        def region(trigger: Spelling, begins: list[tuple[int, Spelling]], begin: State) -> None:
            for index, spelling in begins:
                behind = self._spell(_rest(spelling, trigger), self._fresh(begin))
                behind = self._behind_begin(format_.tags[index], f"{pointer}/tags/{index}", behind)
                self._nfa.silent[behind].append(last if again is None else again)

        searched = [
            (trigger, place, lambda spelling, state, begins=begins: region(spelling, begins, state))
            for trigger, place, begins in rules
        ]
        if format_.at_least_one:
            for trigger, place, begins in rules:
                spelling = self._speller.spell(trigger, place)
                region(spelling, begins, self._spell(spelling, self._fresh(entry)))
        if again is not None or not format_.at_least_one:
            begin = entry if not format_.at_least_one else again
            assert begin is not None
            end = self._search(searched, [*format_.excludes, *ends.texts], f"{pointer}/excludes", begin)
            self._nfa.silent[end].append(last)
            if again is not None and again != begin:
                self._nfa.silent[again].append(begin)
        return last

    def _dispatch(self, format_: formats.DispatchFormat, pointer: str, first: State) -> State:
        begin, last = self._fresh(first), self._state()

        def following(index: int, state: State) -> None:
            content, place = format_.rules[index][1], f"{pointer}/rules/{index}/1"
            behind = self._add(content, place, self._fresh(state), _NONE)
            self._nfa.silent[behind].append(begin if format_.loop else last)

        searched = [
            (pattern, f"{pointer}/rules/{index}/0", lambda _, state, index=index: following(index, state))
            for index, (pattern, _) in enumerate(format_.rules)
        ]
        end = self._search(searched, format_.excludes, f"{pointer}/excludes", begin)
        self._nfa.silent[end].append(last)
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
        last = self._state()
        if "" in excludes:
            self._nfa.silent[begin].append(last)
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
                state = self._state()
                self._nfa.tokens[last].append((frozenset([piece]), state))
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
        excluded = [text for text in (*excludes, *hidden) if not any(word in text for word in words)]
        automaton = self._free(numbers, excluded)
        states = self._states_of(automaton, begin)
        for state, label in zip(states, automaton.accepting, strict=True):
            if label == FREE:
                self._nfa.silent[state].append(last)
        ends_of = {label: state for state, label in zip(states, automaton.accepting, strict=True) if label > FREE}
        for word, _, rest in texts:
            shortest = next(one for one in words if word.startswith(one))
            if numbers[shortest] in ends_of:
                behind = self._spell(tuple(filter(None, [word[len(shortest) :]])), self._fresh(ends_of[numbers[shortest]]))
                rest((word,), behind)
        return last

    # -- tags of tokens --------------------------------------------------------------------------------------------

    def _token_triggered_tags(
        self, format_: formats.TokenTriggeredTagsFormat, pointer: str, first: State, ends: Ends
    ) -> State:
        triggers = [
            self._speller.token(name, f"{pointer}/trigger_tokens/{i}") for i, name in enumerate(format_.trigger_tokens)
        ]
        last, again = self._state(), self._state()
        opened: dict[TokenId, list[int]] = {token: [] for token in triggers}
        for index, tag in enumerate(format_.tags):
            place = f"{pointer}/tags/{index}/begin"
            if not isinstance(tag.begin, formats.TokenFormat):
                raise InvalidSpecificationError("a begin that is a text, where triggers are tokens", pointer=place)
            token = self._speller.token(tag.begin.token, f"{place}/token")
            if token not in opened:
                raise InvalidSpecificationError("no trigger is this begin", pointer=place)
            opened[token].append(index)
        begin = self._fresh(first)
        for state in (begin, again):
            if state == again and format_.stop_after_first:
                break
            if state == again or not format_.at_least_one:
                named = f"{pointer}/exclude_tokens"
                free = self._speller.tokens_but(format_.exclude_tokens, ends.tokens | set(triggers), named)
                self._nfa.tokens[state].append((free, state))
                self._nfa.silent[state].append(last)
            for token, indexes in opened.items():
                behind = self._token(frozenset([token]), state)
                for index in indexes:
                    end = self._behind_begin(format_.tags[index], f"{pointer}/tags/{index}", self._fresh(behind))
                    self._nfa.silent[end].append(last if format_.stop_after_first else again)
        return last

    def _token_dispatch(self, format_: formats.TokenDispatchFormat, pointer: str, first: State) -> State:
        begin, last = self._fresh(first), self._state()
        patterns = [
            self._speller.token(name, f"{pointer}/rules/{index}/0") for index, (name, _) in enumerate(format_.rules)
        ]
        free = self._speller.tokens_but(format_.exclude_tokens, frozenset(patterns), f"{pointer}/exclude_tokens")
        self._nfa.tokens[begin].append((free, begin))
        self._nfa.silent[begin].append(last)
        for index, (pattern, (_, content)) in enumerate(zip(patterns, format_.rules, strict=True)):
            behind = self._token(frozenset([pattern]), begin)
            behind = self._add(content, f"{pointer}/rules/{index}/1", behind, _NONE)
            self._nfa.silent[behind].append(begin if format_.loop else last)
        return last

    # -- states ----------------------------------------------------------------------------------------------------

    def _state(self) -> State:
        self._budget.spend(4)
        if len(self._nfa) >= self._limits.max_states:
            raise LimitExceededError(f"the tags need more than {self._limits.max_states} states (limit max_states)")
        return self._nfa.state()

    def _fresh(self, first: State) -> State:
        """A new state behind `first`: what is laid out from it cannot be re-entered from elsewhere."""
        state = self._state()
        self._nfa.silent[first].append(state)
        return state

    def _join(self, states: Sequence[State]) -> State:
        last = self._state()
        for state in states:
            self._nfa.silent[state].append(last)
        return last

    def _token(self, tokens: frozenset[TokenId], first: State) -> State:
        last = self._state()
        self._nfa.tokens[first].append((tokens, last))
        return last

    def _spell(self, spelling: Spelling, first: State) -> State:
        for piece in spelling:
            if isinstance(piece, int):
                first = self._token(frozenset([piece]), first)
                continue
            for character in piece:
                following = self._state()
                self._nfa.characters[first].append((((ord(character), ord(character)),), following))
                first = following
        return first

    def _free(self, words: dict[str, int], excludes: Sequence[str]) -> Dfa:
        return free_text(words, [text for text in dict.fromkeys(excludes) if text], self._vocabulary, self._limits)

    def _states_of(self, automaton: Dfa, first: State) -> list[State]:
        """States that move like those of an automaton; `first` leads to the first of them."""
        states = [self._state() for _ in automaton.accepting]
        self._nfa.silent[first].append(states[0])
        for number, state in enumerate(states):
            by_target: dict[int, list[tuple[int, int]]] = {}
            for low, high, target in automaton.ranges(number):
                by_target.setdefault(target, []).append((low, high))
            for target, intervals in by_target.items():
                self._budget.spend(1 + len(intervals) // 8)
                self._nfa.characters[state].append((charset.make(intervals), states[target]))
        return states

    def _embed(self, automaton: Dfa, first: State) -> State:
        last = self._state()
        for state, label in zip(self._states_of(automaton, first), automaton.accepting, strict=True):
            if label:
                self._nfa.silent[state].append(last)
        return last

    def _embed_rule(self, rule: RuleNfa, first: State) -> State:
        """The same for the deterministic automaton of a rule of a grammar."""
        states = [self._state() for _ in range(len(rule))]
        self._nfa.silent[first].append(states[0])
        for state, moves in zip(states, rule.edges, strict=True):
            for label, target in moves:
                if isinstance(label, int):
                    self._nfa.values[state].append((label, states[target]))
                else:
                    self._nfa.characters[state].append((label, states[target]))
        return self._join([states[number] for number in rule.finals])

    def _embed_up_to(self, automaton: Dfa, most: int, first: State, pointer: str) -> State:
        """The same with at most so many characters: a copy of the automaton for each."""
        many = (most + 1) * automaton.many_states
        if many > self._limits.max_regex_states * 4:
            raise LimitExceededError(
                f"{most} characters need {many} states, more than {self._limits.max_regex_states * 4} "
                "(limit max_regex_states)",
                pointer=f"{pointer}/max_chars",
            )
        last = self._state()
        alphabet = charset.ALL
        here = {0: self._fresh(first)}
        for count in range(most + 1):
            following: dict[int, State] = {}
            for number, state in here.items():
                if automaton.accepting[number]:
                    self._nfa.silent[state].append(last)
                if count == most:
                    continue
                by_target: dict[int, list[tuple[int, int]]] = {}
                for low, high, target in automaton.ranges(number):
                    by_target.setdefault(target, []).append((low, high))
                for target, intervals in by_target.items():
                    if target not in following:
                        following[target] = self._state()
                    label = charset.intersect(charset.make(intervals), alphabet)
                    self._nfa.characters[state].append((label, following[target]))
            here = following
        return last

    def _check_texts(self, texts: Sequence[str], pointer: str) -> None:
        for index, text in enumerate(texts):
            if any("\ud800" <= character <= "\udfff" for character in text):
                raise InvalidSpecificationError(
                    "a lone surrogate, which no text holds", pointer=f"{pointer}/{index}"
                )


def _rest(spelling: Spelling, beginning: Spelling) -> Spelling:
    """What of a spelling follows one that it begins with."""
    (first,) = beginning
    if isinstance(first, int):
        return spelling[1:]
    assert isinstance(spelling[0], str)
    return tuple(filter(lambda piece: piece != "", [spelling[0][len(first) :], *spelling[1:]]))
