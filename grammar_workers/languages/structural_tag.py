"""Structural tags: free text, searched for triggers, and the constrained regions that triggers open.

    free text  --trigger-->  rest of a `begin`  -->  CALL content  -->  `end`  -->  free text again, or the end
                                   ^                                            `-->  separator (no free text)
                                   `--------------------------------------------------------'

Free text is the search automaton of the triggers; where a trigger is complete, a tree tells the begins apart that start
with it. `begin` and `end` are *spellings*: runs of bytes, and special tokens of the vocabulary that they name.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from grammar_workers.dfa import charset
from grammar_workers.dfa.dfa import DEAD, Dfa, explore, intersect
from grammar_workers.errors import InvalidSpecificationError, UnsatisfiableError, UnsupportedFeatureError
from grammar_workers.languages.aho_corasick import OTHER, START, AhoCorasick
from grammar_workers.languages.scalar_values import has_surrogate
from grammar_workers.options import Limits
from grammar_workers.pushdown.builder import PushdownBuilder
from grammar_workers.pushdown.strings import StringLowering
from grammar_workers.specification import StructuralTagSpecification
from grammar_workers.types import TokenId
from grammar_workers.vocabulary.vocabulary import Vocabulary

Spelling: TypeAlias = tuple[bytes | TokenId, ...]
"""Text as it is generated: bytes, and special tokens in between."""
_TOKENS = 256
_NEVER, _FREE, _TRIGGERED = -1, 1, 2
"""Labels of free text: none of the triggers has been read; trigger i has just been completed (_TRIGGERED + i)."""
_GOES_ON = frozenset(b"0123456789.eE")
"""What may follow a digit of a number."""


class StructuralTag:
    """One structural tag as states in a builder.

    Constructing it checks begins, ends and triggers, and raises GrammarError with pointers into the specification.
    """

    def __init__(
        self,
        specification: StructuralTagSpecification,
        vocabulary: Vocabulary,
        builder: PushdownBuilder,
        limits: Limits,
    ) -> None:
        self._specification = specification
        self._vocabulary = vocabulary
        self._builder = builder
        self._limits = limits
        self._strings = StringLowering(builder)
        tags = list(enumerate(specification.tags))
        self._begins = [_symbols(self._spelling(tag.begin, f"/tags/{index}/begin")) for index, tag in tags]
        self._ends = [self._spelling(tag.end, f"/tags/{index}/end") for index, tag in tags]
        self._separator = None
        if specification.separator is not None:
            self._separator = _symbols(self._spelling(specification.separator, "/separator"))
        self._check_begins()
        self._triggers = [self._trigger(text, f"/triggers/{i}") for i, text in enumerate(specification.triggers)]
        self._members = self._match_triggers()

    def emit(self, contents: Sequence[Dfa | int]) -> int:
        """The first state. `contents` has a character automaton or the entry state of a rule for each tag."""
        builder = self._builder
        specification = self._specification
        # Free text is written last, so what leads back to it goes over a state that is filled in then.
        after = builder.state()
        calls = [self._region(index, content, after) for index, content in enumerate(contents)]
        if self._separator is not None:
            return self._regions_alone(calls, after, self._separator)
        openings = {
            trigger: self._tree([(self._begins[tag][len(self._triggers[trigger]) :], calls[tag]) for tag in members])
            for trigger, members in self._members.items()
        }
        if specification.stop_after_first:
            builder.set_op(after, builder.return_(0))
            return self._free_text(openings, accepts=not specification.at_least_one)
        again = self._free_text(openings, accepts=True)
        builder.set_op(after, builder.goto(again))
        return self._free_text(openings, accepts=False) if specification.at_least_one else again

    def _regions_alone(self, calls: Sequence[int], after: int, separator: Sequence[int]) -> int:
        """The first state of regions without free text; `calls[i]` is behind the i-th begin."""
        specification = self._specification
        entries = list(zip(self._begins, calls, strict=True))
        if specification.stop_after_first:
            self._builder.set_op(after, self._builder.return_(0))
        else:
            following = self._branch([((*separator, *begin), call) for begin, call in entries], exit_label=0)
            self._builder.set_op(after, self._builder.goto(following))
        return self._branch(entries, exit_label=-1 if specification.at_least_one else 0)

    # -- reading -----------------------------------------------------------------------------------------------------

    @functools.cached_property
    def _special_tokens(self) -> dict[str, TokenId]:
        """The special tokens that may be generated, by name; of several names that fit the longest comes first."""
        vocabulary = self._vocabulary
        named = sorted(vocabulary.special_tokens.items(), key=lambda item: -len(item[0]))
        return {
            name: token
            for name, token in named
            if name and vocabulary.is_special(token) and vocabulary.can_generate(token)
        }

    def _spelling(self, text: str, pointer: str) -> Spelling:
        """`text` with the special tokens that it names."""
        names = self._special_tokens
        pieces: list[bytes | TokenId] = []
        for piece in re.split(f"({'|'.join(map(re.escape, names))})", text) if names else [text]:
            if piece in names:
                pieces.append(names[piece])
            elif piece:
                self._check_characters(piece, pointer)
                pieces.append(piece.encode())
        return tuple(pieces)

    def _check_characters(self, text: str, pointer: str) -> None:
        if has_surrogate(text):
            raise InvalidSpecificationError("a lone surrogate, which no text holds", pointer=pointer)
        spellable = self._vocabulary.spellable
        for character in text:
            if spellable is not None and character not in spellable:
                raise UnsatisfiableError(f"the vocabulary cannot spell {character!r}", pointer=pointer)

    def _trigger(self, text: str, pointer: str) -> tuple[int, ...]:
        spelling = self._spelling(text, pointer)
        if len(spelling) != 1:
            raise InvalidSpecificationError("a trigger is plain text or exactly one special token", pointer=pointer)
        return _symbols(spelling)

    def _check_begins(self) -> None:
        for (first, one), (second, other) in itertools.combinations(enumerate(self._begins), 2):
            if _starts_with(one, other) or _starts_with(other, one):
                raise InvalidSpecificationError(
                    f"one of the begins of tags {first} and {second} begins with the other; it must be clear which tag "
                    "is meant when its begin is complete",
                    pointer=f"/tags/{second}/begin",
                )

    def _match_triggers(self) -> dict[int, list[int]]:
        """Trigger -> the tags that it opens; triggers that begin with another one are left out."""
        given = self._specification.triggers
        members: dict[int, list[int]] = {}
        used: set[int] = set()
        for tag, begin in enumerate(self._begins):
            opened = [t for t, trigger in enumerate(self._triggers) if _starts_with(begin, trigger)]
            if not opened:
                raise InvalidSpecificationError("no trigger starts this begin", pointer=f"/tags/{tag}/begin")
            members.setdefault(min(opened, key=lambda t: len(given[t])), []).append(tag)
            used.update(opened)
        for index in range(len(given)):
            if index not in used:
                raise InvalidSpecificationError("no begin starts with this trigger", pointer=f"/triggers/{index}")
        for one, other in itertools.permutations([t for t in members if not self._is_token(t)], 2):
            if given[one] in given[other]:
                raise InvalidSpecificationError(
                    f"the trigger {given[other]!r} holds the trigger {given[one]!r}, which opens a region first",
                    pointer=f"/triggers/{other}",
                )
        return members

    def _is_token(self, trigger: int) -> bool:
        return self._triggers[trigger][0] >= _TOKENS

    # -- writing -----------------------------------------------------------------------------------------------------

    def _region(self, index: int, content: Dfa | int, after: int) -> int:
        """The state behind a begin: it calls the content, goes on with the end, and then to `after`."""
        end = self._ends[index]
        if isinstance(content, Dfa):
            if end and isinstance(end[0], bytes):
                # The end is read as part of the content, for only together is it clear where they meet.
                content, end = self._up_to(content, end[0].decode()), end[1:]
            if content.is_empty:
                raise UnsatisfiableError("no text fits before the end of the tag", pointer=f"/tags/{index}/content")
            content = self._strings.raw_text(content)
        elif end and isinstance(end[0], bytes) and end[0][0] in _GOES_ON and self._may_be_number(content):
            raise UnsupportedFeatureError(
                f"an end that a number could go on with ({end[0][:1].decode()!r}), where the content may be a number",
                pointer=f"/tags/{index}/end",
            )
        following = self._spell(_symbols(end), after)
        return self._builder.state(op=self._builder.call(content, [following]))

    def _may_be_number(self, content: int) -> bool:
        """Whether the rule of a JSON value that begins in the state `content` has numbers."""
        targets = self._builder.row_targets(self._builder.row_of(content))
        return bool((targets[list(b"-0123456789")] >= 0).any())

    def _up_to(self, content: Dfa, end: str) -> Dfa:
        """`content` followed by `end`, which does not occur before: a subset construction.

        A state is where the content stands (DEAD: it cannot go on), and how many characters of `end` have been read
        since each place at which the content could have stopped.
        """
        once = self._search({end: _TRIGGERED}, accepts=False)
        starts = sorted({*content.starts, *once.starts})
        columns = [bisect.bisect_right(content.starts, start) - 1 for start in starts]

        def following(place: tuple[int, frozenset[int]]) -> Iterator[tuple[int, frozenset[int]] | None]:
            state, read = place
            self._builder.spend(len(starts))
            for start, column in zip(starts, columns, strict=True):
                target = DEAD if state == DEAD else content.moves[state][column]
                counts = {count + 1 for count in read if count < len(end) and ord(end[count]) == start}
                if target != DEAD and content.accepting[target]:
                    counts.add(0)
                yield (target, frozenset(counts)) if target != DEAD or counts else None

        first = (0, frozenset([0] if content.accepting[0] else []))
        ended = explore(first, following, lambda place: len(end) in place[1], starts, range(len(starts)))
        return intersect([ended, once], self._limits)

    def _spell(self, symbols: Sequence[int], target: int) -> int:
        """States that read exactly these symbols and go on to `target`."""
        first = self._builder.next_state
        self._append(symbols)
        self._builder.state(op=self._builder.goto(target))
        return first

    def _append(self, symbols: Sequence[int]) -> None:
        """States that read `symbols`, ending in the state appended next."""
        for symbol in symbols:
            if symbol < _TOKENS:
                self._builder.state(lit=symbol)
            else:
                state = self._builder.state()
                self._builder.token_edge(state, symbol - _TOKENS, state + 1)

    def _tree(self, entries: Sequence[tuple[Sequence[int], int]]) -> int:
        """States that tell apart symbols of which none is the beginning of another, each with where it leads."""
        if len(entries) == 1:
            return self._spell(*entries[0])
        shared = 0
        while len({symbols[shared] for symbols, _ in entries}) == 1:
            shared += 1
        first = self._builder.next_state
        self._append(entries[0][0][:shared])
        self._branch([(symbols[shared:], target) for symbols, target in entries])
        return first

    def _branch(self, entries: Sequence[tuple[Sequence[int], int]], exit_label: int = -1) -> int:
        """The state that reads the first of these symbols; with exit label 0 the text may end before it."""
        branch = self._builder.state()
        groups: dict[int, list[tuple[Sequence[int], int]]] = {}
        for symbols, target in entries:
            groups.setdefault(symbols[0], []).append((symbols[1:], target))
        row = {}
        for symbol, group in groups.items():
            state = self._tree(group)
            if symbol < _TOKENS:
                row[symbol] = state
            else:
                self._builder.token_edge(branch, symbol - _TOKENS, state)
        self._builder.fill(branch, row=self._builder.row(row), exit_label=exit_label)
        return branch

    def _free_text(self, openings: Mapping[int, int], *, accepts: bool) -> int:
        """States of text without triggers; returns the first. Trigger i leads to the state `openings[i]`."""
        given = self._specification.triggers
        words = {given[t]: _TRIGGERED + t for t in openings if not self._is_token(t)}
        for trigger in openings:
            if self._is_token(trigger) and not any(word in given[trigger] for word in words):
                words[given[trigger]] = _NEVER
        automaton = self._search(words, accepts=accepts)
        states = self._strings.raw_states(automaton, {_TRIGGERED + t: state for t, state in openings.items()})
        for state, label in zip(states, automaton.accepting, strict=True):
            for trigger, opening in openings.items():
                if label < _TRIGGERED and self._is_token(trigger):
                    self._builder.token_edge(state, self._triggers[trigger][0] - _TOKENS, opening)
        return states[0]

    def _search(self, labels: Mapping[str, int], *, accepts: bool) -> Dfa:
        """Labels a text that ends with the first occurrence of a word by that of the word, others _FREE if `accepts`.

        Texts in which a word labelled _NEVER occurs are dead.
        """
        search = AhoCorasick(list(labels), False, self._limits)
        label_of = {search.node(word): label for word, label in labels.items()}
        spellable = self._vocabulary.spellable
        letters = search.symbol_of.keys() if spellable is None else search.symbol_of.keys() | spellable
        starts = charset.class_starts([charset.singles(map(ord, letters))])
        symbols = [
            search.symbol_of.get(chr(start), OTHER) if spellable is None or chr(start) in spellable else DEAD
            for start in starts
        ]

        def following(node: int) -> Iterator[int | None]:
            for symbol in symbols:
                target = DEAD if symbol == DEAD or node in label_of else search.rows[node][symbol]
                yield None if target == DEAD or label_of.get(target) == _NEVER else target

        free = _FREE if accepts else 0
        return explore(START, following, lambda node: label_of.get(node, free), starts, range(len(starts)))


def _starts_with(symbols: Sequence[int], beginning: Sequence[int]) -> bool:
    return symbols[: len(beginning)] == beginning


def _symbols(spelling: Spelling) -> tuple[int, ...]:
    """One number per byte, and _TOKENS + id per special token."""
    return tuple(symbol for piece in spelling for symbol in ([_TOKENS + piece] if isinstance(piece, int) else [*piece]))
