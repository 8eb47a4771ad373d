"""The recognizer over a deterministic `PushdownAutomaton`: compiled kernels, and the return stacks they share."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from grammar_workers.budget import Budget
from grammar_workers.errors import LimitExceededError
from grammar_workers.matching.kernels import arrays as kernel_arrays
from grammar_workers.matching.kernels import entry, mask, prefetch, step
from grammar_workers.matching.kernels.mask_classes import MaskClasses
from grammar_workers.matching.kernels.step import FRAME_DEPTH, FRAME_PARENT, FRAME_SAVED, FRAME_SITE
from grammar_workers.matching.kernels.trie_walks import PATH_COLUMNS
from grammar_workers.matching.long_rows import WalkedTrees
from grammar_workers.matching.recognizer import Configuration, PrefetchedRows, Reached, check_bytes
from grammar_workers.matching.spelling import spell
from grammar_workers.options import Limits
from grammar_workers.pushdown.automaton import PushdownAutomaton
from grammar_workers.pushdown.instructions import (
    EDGE_FIRST,
    EDGE_LAST,
    FAR,
    SILENT_MOVES,
    START,
)
from grammar_workers.pushdown.repeated_text import Text
from grammar_workers.pushdown.shortest import shortest_text
from grammar_workers.types import MaskRow, TokenId
from grammar_workers.vocabulary.vocabulary import Vocabulary

_FIRST_FRAMES = 256
_GROWTH = 4
"""Growing costs more than a row: rarely used code and pages that are new."""


class PushdownRecognizer:
    """A `Recognizer` whose configurations are (pushdown automaton state, counter, frame), see `step`."""

    KIND: ClassVar[bytes] = b"M"
    remembers_values: ClassVar[bool] = False

    def __init__(self, pushdown: PushdownAutomaton, vocabulary: Vocabulary, limits: Limits) -> None:
        self._pushdown = pushdown
        self._vocabulary = vocabulary
        self._limits = limits
        # Frame 0 is the bottom of every stack. Memory that nobody has written to costs nothing until then. There are
        # buckets for the table once grown, which then need not be laid anew.
        frames = np.empty((_FIRST_FRAMES, step.FRAME_COLUMNS), np.int64)
        frames[0] = 0
        self._stack = step.Stack(
            frames,
            np.full(2 * _GROWTH * _FIRST_FRAMES, -1, np.int64),
            np.ones(1, np.int64),
            np.zeros(step.TRACE_FIRST_LEVEL + step.TRACE_COLUMNS * step.TRACE_LEVELS, np.int64),
            np.full((step.EVENTS, 2), -1, np.int64),
        )
        self._mask_classes = MaskClasses()
        # How many places ahead have been looked at. Classes overlap: another time, others would stand for the rest.
        self._ahead = 0
        self._walks = 0
        self._path = np.zeros((vocabulary.longest_token + 3, PATH_COLUMNS), np.int64)
        self._entries = self._note_arrays()
        self._trees = WalkedTrees(pushdown.tables, vocabulary, self._entries)
        _check_tokens(pushdown, vocabulary)
        self._token_edges = pushdown.token_edges_of
        self._is_named = np.zeros(vocabulary.size if self._token_edges else 0, np.bool_)
        for first, last in pushdown.token_edges[:, [EDGE_FIRST, EDGE_LAST]].tolist():
            self._is_named[first : last + 1] = True
        self._boundaries = dict(pushdown.boundaries.tolist())

    @property
    def nbytes(self) -> int:
        stack = self._stack.frames.nbytes + self._stack.buckets.nbytes
        return self._pushdown.nbytes + stack + self._mask_classes.nbytes

    @property
    def size(self) -> int:
        return len(self._pushdown.states)

    def start(self) -> Configuration:
        return self.next_token(self._arrive(START, 0, 0))

    def fill_row(self, configuration: Configuration, row: MaskRow) -> int:
        # What a row with token edges depends on is known only after they have been looked at.
        noting = int(not self._token_edges)
        state, _, frame = configuration
        found = self._walk(functools.partial(entry.make_row, self._entries, noting, *configuration, row), state)
        if found >= 0 or noting:
            return found
        self._add_named(configuration, row)
        return int(entry.note_class(self._entries, state, frame))

    def fill_whole_row(self, configuration: Configuration, row: MaskRow) -> None:
        """Like `fill_row`, but the row is filled whether its class is known or not, and no class is noted."""
        self._walk(functools.partial(entry.fill_row, self._entries, *configuration, row), configuration[0])
        if self._token_edges:
            self._add_named(configuration, row)

    def _walk(self, fill: Callable[[int], int], state: int) -> int:
        """What a kernel answers that is told which tree to walk from `state`, once it has all the room it needs."""
        walked = mask.TREE_IF_SHORT
        while True:
            found = fill(walked)
            if found == mask.WIDE:
                walked = self._trees.choose(state)
            elif not self._make_room(found):
                return found

    def _make_room(self, status: int) -> bool:
        """Make room where a kernel has answered `status` for lack of it; whether it has."""
        if status == mask.CLASSES_FULL:
            self._grow_classes()
        elif status == step.FRAMES_FULL:
            self._grow_frames()
        else:
            return False
        return True

    def _add_named(self, configuration: Configuration, row: MaskRow) -> None:
        """Add the tokens that edges name to a row."""
        named = np.zeros(len(row) * 32, np.bool_)
        for first, last, _ in self._token_targets(configuration):
            named[first : last + 1] = True
        row |= np.packbits(named, bitorder="little").view(np.uint32)

    def advance(self, configuration: Configuration, token_id: TokenId) -> Reached | None:
        if (named := self.named(configuration, token_id)) is not None:
            return named, self.may_end(named), int(entry.find_class(self._entries, *named))
        while True:
            state, counter, frame, ends, row_class = entry.advance(self._entries, token_id, *configuration)
            if state >= 0 and ends >= 0:
                if state in self._boundaries:
                    state, counter, frame = self.next_token((state, counter, frame))
                    row_class = int(entry.find_class(self._entries, state, counter, frame))
                return (state, counter, frame), ends == 1, row_class
            if step.FRAMES_FULL not in (state, ends):
                return None
            self._grow_frames()

    def may_end(self, configuration: Configuration) -> bool:
        while (status := entry.may_end(self._entries, *configuration)) == step.FRAMES_FULL:
            self._grow_frames()
        return bool(status)

    def targets(self, configuration: Configuration, row: MaskRow) -> tuple[list[Configuration], NDArray[np.int32]]:
        capacity = 1024
        while True:
            found = np.empty((capacity, 3), np.int64)
            seen = np.full(capacity * 4, -1, np.int32)
            places = np.full(self._vocabulary.size, -1, np.int32)
            many = entry.pushdown_targets(self._entries, *configuration, found, seen, places)
            if many >= 0:
                break
            if many == step.FRAMES_FULL:
                self._grow_frames()
            else:
                capacity *= 8
        configurations = list(map(tuple, found[:many].tolist()))
        # Of several targets of a token, the first one counts.
        for first, last, reached in reversed(self._token_targets(configuration)):
            places[first : last + 1] = len(configurations)
            configurations.append(reached)
        if self._boundaries:
            numbers: dict[Configuration, int] = {}
            moved = [numbers.setdefault(self.next_token(one), len(numbers)) for one in configurations[:many]]
            moved += [numbers.setdefault(one, len(numbers)) for one in configurations[many:]]
            places, configurations = np.array([*moved, -1], np.int32)[places], list(numbers)
        return configurations, places

    def look_ahead(self, max_places: int) -> Iterator[PrefetchedRows]:
        # The kernel knows nothing of boundaries.
        if max_places <= self._ahead or self._boundaries:
            return
        self._walks += 1
        walk = prefetch.begin_walk(self._pushdown, self._vocabulary, max_places, self._walks)
        prefetch.add_place(walk, *self.start())
        status = prefetch.MORE
        while status != prefetch.OVER:
            status = entry.look_ahead(self._entries, walk, bool(self._token_edges), status)
            many = walk.counters[prefetch.COUNT_ROWS]
            wanted = tuple(walk.places[status].tolist()) if status >= 0 else None
            # Before anything can go wrong: nobody else makes the rows of classes that have been noted.
            yield PrefetchedRows(list(walk.rows[:many]), walk.classes[:many].tolist(), wanted)
            for _, _, named in self._token_targets(wanted) if wanted else ():
                prefetch.add_place(walk, *named)
            self._make_room(status)
        self._ahead = FAR if walk.counters[prefetch.COUNT_BUDGET] else max_places
        # Not when somebody waits for a row.
        if self._mask_classes.is_half_full:
            self._grow_classes()

    def shortest(self, configuration: Configuration, limit: int) -> list[TokenId]:
        return spell(self.shortest_text(configuration), self._vocabulary, limit)

    def shortest_text(self, configuration: Configuration, budget: Budget | None = None) -> Text:
        """A shortest text to a configuration where the text may stop, see `shortest`; the search spends of `budget`."""
        state, counter, frame = configuration
        frames = self._stack.frames
        callers: list[tuple[int, int]] = []
        while frame:
            frame, site, saved = frames[frame, [FRAME_PARENT, FRAME_SITE, FRAME_SAVED]].tolist()
            callers.append((site, saved))
        return shortest_text(self._pushdown, state, counter, callers, self._vocabulary.spellable, budget)

    def to_bytes(self) -> bytes:
        return self._pushdown.to_bytes()

    @classmethod
    def from_bytes(cls, data: bytes, vocabulary: Vocabulary, limits: Limits) -> PushdownRecognizer:
        """The inverse of `to_bytes`. Trusts nothing: raises ValueError for malformed tables."""
        pushdown = PushdownAutomaton.from_bytes(data)
        if len(pushdown.distinct):
            raise ValueError("malformed automaton: distinct values for a recognizer that knows of none")
        return cls(pushdown, vocabulary, limits)

    # -- what `distinct.recognizer` builds on ------------------------------------------------------------------------

    @property
    def pushdown(self) -> PushdownAutomaton:
        return self._pushdown

    def frame(self, frame: int) -> tuple[int, int]:
        """How many frames are below a frame, and its site."""
        depth, site = self._stack.frames[frame, [FRAME_DEPTH, FRAME_SITE]].tolist()
        return depth, site

    def read_byte(
        self, state: int, counter: int, frame: int, byte: int
    ) -> tuple[int, int, int, Sequence[Sequence[int]]]:
        """Where a byte leads to (a state below 0: nowhere), and the events on the way as (frame, event).

        An event is `kernels.step.CALLED`, `READ` where a caller has read the byte, or the label of a return.
        """
        while True:
            *reached, many = entry.step_noting(self._entries, state, counter, frame, byte)
            if reached[0] != step.FRAMES_FULL:
                break
            self._grow_frames()
        if many == 0:
            return *reached, ()
        if many == step.EVENTS - 1:
            raise LimitExceededError(f"a byte calls rules and returns from them more than {many - 1} times")
        return *reached, self._stack.events[1 : many + 1].tolist()

    def leave(self, configuration: Configuration) -> Configuration:
        """Where the caller goes on when what is read here, which is not self-delimiting, ends; a state below 0: it
        does not."""
        return self._move(entry.leave, *configuration)

    def named(self, configuration: Configuration, token_id: TokenId) -> Configuration | None:
        """Where an edge that names the token leads, if one does."""
        if self._token_edges and self._is_named[token_id]:
            for first, last, reached in self._token_targets(configuration):
                if first <= token_id <= last:
                    return reached
        return None

    def next_token(self, configuration: Configuration) -> Configuration:
        """Where a token begins that follows one that ended here."""
        state, counter, frame = configuration
        target = self._boundaries.get(state)
        return configuration if target is None else self._arrive(target, counter, frame)

    def _token_targets(self, configuration: Configuration) -> list[tuple[TokenId, TokenId, Configuration]]:
        """Where the tokens that edges name (first, last) lead from here; a trace that has been begun goes on.

        Of several entries of a token the first one counts.
        """
        targets: list[tuple[TokenId, TokenId, Configuration]] = []
        if not self._token_edges:
            return targets
        state, counter, frame = configuration
        for _ in range(SILENT_MOVES):
            arrived: dict[int, Configuration] = {}
            for first, last, target in self._token_edges.get(state, ()):
                if target not in arrived:
                    arrived[target] = self.next_token(self._arrive(target, counter, frame))
                if arrived[target][0] >= 0:
                    targets.append((first, last, arrived[target]))
            # What is not self-delimiting ends where the token belongs to the caller, as in `step`.
            state, counter, frame = self.leave((state, counter, frame))
            if state < 0:
                break
        return targets

    def _arrive(self, state: int, counter: int, frame: int) -> Configuration:
        return self._move(entry.arrive, state, counter, frame)

    def _move(self, kernel: Callable[..., Configuration], state: int, counter: int, frame: int) -> Configuration:
        """What a kernel answers once there is room for all frames."""
        while True:
            reached = kernel(self._entries, state, counter, frame)
            if reached[0] != step.FRAMES_FULL:
                return reached
            self._grow_frames()

    def _grow_frames(self) -> None:
        """Make room for more frames. Their numbers stay; only the hash chains are laid anew."""
        check_bytes(self.nbytes, self._limits, "the automaton holds", " of return stacks")
        many = len(self._stack.frames)
        frames = np.empty((_GROWTH * many, step.FRAME_COLUMNS), np.int64)
        frames[:many] = self._stack.frames
        buckets = self._stack.buckets
        if len(buckets) < 2 * len(frames):
            buckets = np.full(2 * len(frames), -1, np.int64)
            step.rehash_frames(frames, buckets, many)
        self._stack = self._stack._replace(frames=frames, buckets=buckets)
        kernel_arrays.note_arrays(self._entries, kernel_arrays.STACK, self._stack)

    def _grow_classes(self) -> None:
        self._mask_classes.grow(self._stack)
        kernel_arrays.note_arrays(self._entries, kernel_arrays.CLASSES, self._mask_classes.tables)

    def _note_arrays(self) -> NDArray[np.int64]:
        """Where all arrays of this recognizer lie, see `kernels.arrays`."""
        entries = kernel_arrays.entries_of(self._vocabulary)
        for place, arrays in (
            (kernel_arrays.TABLES, self._pushdown.tables),
            (kernel_arrays.STACK, self._stack),
            (kernel_arrays.CLASSES, self._mask_classes.tables),
            (kernel_arrays.PATH, (self._path,)),
        ):
            kernel_arrays.note_arrays(entries, place, arrays)
        return entries


def _check_tokens(pushdown: PushdownAutomaton, vocabulary: Vocabulary) -> None:
    """Raise ValueError for an edge of a token that cannot be generated."""
    ends = np.array(vocabulary.eos_token_ids)
    first, last = pushdown.token_edges[:, [EDGE_FIRST, EDGE_LAST]].T
    if (last >= vocabulary.size).any() or (np.searchsorted(ends, first) != np.searchsorted(ends, last, "right")).any():
        raise ValueError("malformed automaton: an edge of a token that cannot be generated")
