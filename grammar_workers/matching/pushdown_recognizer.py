"""The recognizer of pushdown automata: reads tokens, and computes masks of allowed tokens in compiled kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from grammar_workers.budget import Budget
from grammar_workers.errors import LimitExceededError
from grammar_workers.matching.kernels import arrays as kernel_arrays
from grammar_workers.matching.kernels import entry, mask, prefetch, step, transitions
from grammar_workers.matching.kernels.mask_classes import MaskClasses
from grammar_workers.matching.kernels.step import FRAME_DEPTH, FRAME_PARENT, FRAME_SAVED, FRAME_SITE
from grammar_workers.matching.kernels.trie_walks import PATH_COLUMNS
from grammar_workers.matching.long_rows import WalkedTrees
from grammar_workers.matching.recognizer import Configuration, PrefetchedMasks, Reached, check_bytes
from grammar_workers.matching.spelling import spell
from grammar_workers.options import Limits
from grammar_workers.pushdown.automaton import PushdownAutomaton
from grammar_workers.pushdown.instructions import EDGE_FIRST, EDGE_LAST, FAR, SILENT_MOVES, START
from grammar_workers.pushdown.repeated_text import Text
from grammar_workers.pushdown.shortest import ShortestSearch
from grammar_workers.types import MaskRow, TokenId
from grammar_workers.vocabulary.vocabulary import Vocabulary

_FIRST_FRAMES = 256
# Growth factor of the frame table. Growing costs more than a mask: it runs rare code and touches new memory pages.
_GROWTH = 4


class PushdownRecognizer:
    """A `Recognizer` (reads tokens and computes masks) of an automaton whose masks do not depend on seen values.

    A configuration is (state, counter, frame). `frame` is the number of the topmost frame of the return stack; 0 is the
    bottom of every stack.

    Args:
        pushdown: The automaton. If it has transitions over a token that cannot be generated, ValueError is raised.
        vocabulary: Tokens of the model.
        limits: `max_fsm_bytes` limits the memory. Methods that exceed it raise LimitExceededError.

    Attributes:
        KIND: Byte that selects this class in an artifact.
        remembers_values: False: configurations do not depend on seen values.
    """

    KIND: ClassVar[bytes] = b"M"
    remembers_values: ClassVar[bool] = False

    def __init__(self, pushdown: PushdownAutomaton, vocabulary: Vocabulary, limits: Limits) -> None:
        self._pushdown = pushdown
        self._vocabulary = vocabulary
        self._limits = limits
        # Frame 0 is the bottom of every stack. The operating system provides memory pages at the first write, so unused
        # rows are free. There are enough buckets for the enlarged table, so growing need not rebuild the chains.
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
        # Number of configurations that prefetching has visited. A second search of the same size is skipped: classes
        # overlap, so it would only choose other representatives.
        self._ahead = 0
        self._path = np.zeros((vocabulary.longest_token + 3, PATH_COLUMNS), np.int64)
        self._entries = kernel_arrays.entries_of(vocabulary).copy()
        kernel_arrays.note_arrays(self._entries, kernel_arrays.TABLES, pushdown.tables)
        kernel_arrays.note_arrays(self._entries, kernel_arrays.STACK, self._stack)
        kernel_arrays.note_arrays(self._entries, kernel_arrays.CLASSES, self._mask_classes.tables)
        kernel_arrays.note_arrays(self._entries, kernel_arrays.PATH, (self._path,))
        self._trees = WalkedTrees(pushdown.tables, vocabulary, self._entries)
        _check_tokens(pushdown, vocabulary)
        self._token_edges = pushdown.token_edges_of
        self._is_named = np.zeros(vocabulary.size if self._token_edges else 0, np.bool_)
        for first, last in pushdown.token_edges[:, [EDGE_FIRST, EDGE_LAST]].tolist():
            self._is_named[first : last + 1] = True
        self._boundaries = dict(pushdown.boundaries.tolist())

    @property
    def nbytes(self) -> int:
        """Memory of the automaton, the return stacks and the mask equivalence classes, in bytes."""
        stack = self._stack.frames.nbytes + self._stack.buckets.nbytes
        return self._pushdown.nbytes + stack + self._mask_classes.nbytes

    @property
    def size(self) -> int:
        """Number of states of the pushdown automaton."""
        return len(self._pushdown.states)

    def start(self) -> Configuration:
        """Return the configuration (state, counter, frame) in which matching begins."""
        return self.next_token(self._move(entry.arrive, START, 0, 0))

    def find_or_fill_mask(self, configuration: Configuration, row: MaskRow) -> int:
        """Compute the mask (bit set of allowed tokens) of a configuration, or find its mask equivalence class.

        LimitExceededError is raised if the memory limit is exceeded.

        Args:
            configuration: (state, counter, frame).
            row: Receives the mask without end tokens, uint32 [words]. It is unchanged if the returned class was
                returned or prefetched before.

        Returns:
            The mask equivalence class, numbered from 0: all configurations of a class have equal masks. -1 if the
            configuration has no class.
        """
        # With token edges, the trace of a mask is complete only after the edges have been followed.
        noting = int(not self._token_edges)
        state, _, frame = configuration
        found = self._walk(partial(entry.find_or_fill_mask, self._entries, noting, *configuration, row), state)
        if found >= 0 or noting:
            return found
        self._add_named(configuration, row)
        return int(entry.note_class(self._entries, state, frame))

    def fill_mask(self, configuration: Configuration, row: MaskRow) -> None:
        """Compute the mask of a configuration, even if another configuration with the same mask is known.

        LimitExceededError is raised if the memory limit is exceeded.

        Args:
            configuration: (state, counter, frame).
            row: Receives the mask without end tokens, uint32 [words]. Its former content is overwritten.
        """
        self._walk(partial(entry.fill_mask, self._entries, *configuration, row), configuration[0])
        if self._token_edges:
            self._add_named(configuration, row)

    def _walk(self, fill: Callable[[int], int], state: int) -> int:
        """Return the result of a kernel that takes the tree to walk from `state`, after making all necessary room."""
        walked = mask.TREE_IF_SHORT
        while True:
            found = fill(walked)
            if found == mask.WIDE:
                walked = self._trees.choose(state)
            elif not self._make_room(found):
                return found

    def _make_room(self, status: int) -> bool:
        """Enlarge the table that `status` reports as full. Return False if it reports none."""
        if status == mask.CLASSES_FULL:
            self._grow_classes()
        elif status == step.FRAMES_FULL:
            self._grow_frames()
        return status in (mask.CLASSES_FULL, step.FRAMES_FULL)

    def _add_named(self, configuration: Configuration, row: MaskRow) -> None:
        """Set the bits of the tokens of token edges in a mask."""
        named = np.zeros(len(row) * 32, np.bool_)
        for first, last, _ in self._token_targets(configuration):
            named[first : last + 1] = True
        row |= np.packbits(named, bitorder="little").view(np.uint32)

    def advance(self, configuration: Configuration, token_id: TokenId) -> Reached | None:
        """Return the configuration after a token.

        LimitExceededError is raised if the memory limit is exceeded.

        Args:
            configuration: (state, counter, frame) before the token.
            token_id: ID of a token other than an end token.

        Returns:
            A triple: the configuration after the token; True if the output may end there; its mask equivalence class
            (-1: not known). None if the token is not allowed.
        """
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
        """Return whether the output may end in a configuration (state, counter, frame)."""
        while (status := entry.may_end(self._entries, *configuration)) == step.FRAMES_FULL:
            self._grow_frames()
        return bool(status)

    def targets(self, configuration: Configuration, row: MaskRow) -> tuple[list[Configuration], NDArray[np.int32]]:
        """Compute the configurations after all tokens that a configuration allows.

        LimitExceededError is raised if the memory limit is exceeded.

        Args:
            configuration: (state, counter, frame) before the token.
            row: Ignored.

        Returns:
            The distinct configurations, and for each token the index of its configuration in this list, int32 [V]. The
            index is -1 for disallowed tokens and end tokens.
        """
        capacity = 1024
        while True:
            found = np.empty((capacity, 3), np.int64)
            seen = np.full(capacity * 4, -1, np.int32)
            places = np.full(self._vocabulary.size, -1, np.int32)
            many = transitions.pushdown_targets(self._entries, *configuration, found, seen, places)
            if many >= 0:
                break
            if many == step.FRAMES_FULL:
                self._grow_frames()
            else:
                capacity *= 8
        configurations = list(map(tuple, found[:many].tolist()))
        # If a token has several targets, the first one counts, so it is written last.
        for first, last, reached in reversed(self._token_targets(configuration)):
            places[first : last + 1] = len(configurations)
            configurations.append(reached)
        if self._boundaries:
            numbers: dict[Configuration, int] = {}
            moved = [numbers.setdefault(self.next_token(one), len(numbers)) for one in configurations[:many]]
            moved += [numbers.setdefault(one, len(numbers)) for one in configurations[many:]]
            places, configurations = np.array([*moved, -1], np.int32)[places], list(numbers)
        return configurations, places

    def look_ahead(self, max_places: int) -> Iterator[PrefetchedMasks]:
        """Prefetch the masks of configurations that can be reached through ASCII characters (see `Recognizer`).

        LimitExceededError is raised if the memory limit is exceeded.

        Args:
            max_places: Maximum number of configurations to visit.

        Yields:
            Batches of masks. Nothing if an earlier search visited as many configurations, or if the automaton counts
            tokens (has boundaries).
        """
        # The kernel does not support boundaries.
        if max_places <= self._ahead or self._boundaries:
            return
        self._mask_classes.begin_search()
        search = prefetch.new_search(self._pushdown, self._vocabulary, max_places)
        prefetch.add_place(search, *self.start())
        status = prefetch.MORE
        while status != prefetch.OVER:
            status = prefetch.look_ahead(self._entries, search, bool(self._token_edges), status)
            many = search.counters[prefetch.COUNT_ROWS]
            wanted = tuple(search.places[status].tolist()) if status >= 0 else None
            # Deliver the masks before anything can fail, because masks of existing classes are not computed again.
            yield PrefetchedMasks(list(search.rows[:many]), search.classes[:many].tolist(), wanted)
            for _, _, named in self._token_targets(wanted) if wanted else ():
                prefetch.add_place(search, *named)
            self._make_room(status)
        self._ahead = FAR if search.counters[prefetch.COUNT_BUDGET] else max_places
        # Growing now is better than when a request waits for a mask.
        if self._mask_classes.is_half_full:
            self._grow_classes()
        if 2 * int(self._stack.used[0]) > len(self._stack.frames):
            self._grow_frames()

    def shortest(self, configuration: Configuration, limit: int) -> list[TokenId]:
        """Return the tokens of a completion (text up to the end of the output) with the fewest bytes.

        TooManyTokensError is raised if the completion has more than `limit` tokens, LimitExceededError if the search
        visits too many nodes.

        Args:
            configuration: (state, counter, frame) where the completion begins.
            limit: Maximum number of tokens.

        Returns:
            Token IDs. Empty if the output may end in the configuration.
        """
        return spell(self.shortest_text(configuration), self._vocabulary, limit)

    def shortest_text(self, configuration: Configuration, budget: Budget | None = None) -> Text:
        """Return a completion (text up to the end of the output) with the fewest bytes. Repeated parts are stored once.

        LimitExceededError is raised if the search visits too many nodes or exhausts `budget`.

        Args:
            configuration: (state, counter, frame) where the completion begins.
            budget: Work budget to which the search is charged. None: no budget.
        """
        state, counter, frame = configuration
        frames = self._stack.frames
        callers: list[tuple[int, int]] = []
        while frame:
            frame, site, saved = frames[frame, [FRAME_PARENT, FRAME_SITE, FRAME_SAVED]].tolist()
            callers.append((site, saved))
        return ShortestSearch(self._pushdown, counter, callers, self._vocabulary.spellable, budget).run(state)

    def to_bytes(self) -> bytes:
        """Return the pushdown automaton as bytes, for `from_bytes`. They do not contain the visited configurations."""
        return self._pushdown.to_bytes()

    @classmethod
    def from_bytes(cls, data: bytes, vocabulary: Vocabulary, limits: Limits) -> PushdownRecognizer:
        """Return the recognizer of a serialized automaton, which may come from an untrusted source.

        Args:
            data: Serialized automaton, from `to_bytes`.
            vocabulary: Tokens of the model.
            limits: `max_fsm_bytes` limits the memory.

        Raises:
            ValueError: The tables are malformed, or the automaton has unique items.
        """
        pushdown = PushdownAutomaton.from_bytes(data)
        if len(pushdown.distinct):
            raise ValueError("malformed automaton: distinct values for a recognizer that knows of none")
        return cls(pushdown, vocabulary, limits)

    # -- what `distinct.recognizer` builds on ------------------------------------------------------------------------

    def frame(self, frame: int) -> tuple[int, int]:
        """Return the depth of a stack frame, and the return site of the call that pushed it.

        Args:
            frame: Number of the frame (index into the frame table). 0 is the bottom of every return stack.

        Returns:
            A pair: the number of frames below this frame, and the index in `PushdownAutomaton.returns` where the
            return states of the call begin.
        """
        depth, site = self._stack.frames[frame, [FRAME_DEPTH, FRAME_SITE]].tolist()
        return depth, site

    def read_byte(
        self, state: int, counter: int, frame: int, byte: int
    ) -> tuple[int, int, int, Sequence[Sequence[int]]]:
        """Return the configuration after a byte, and the events (calls and returns of rules) that the byte caused.

        Args:
            state: State before the byte.
            counter: Counter before the byte.
            frame: Frame (top of the return stack) before the byte.
            byte: The byte, 0 to 255.

        Returns:
            Four values: state, counter and frame after the byte, and the events in order. The state is negative if the
            byte is not allowed. An event is a pair (frame, kind). The kind is CALLED (-1) if a call has pushed the
            frame. It is READ (-2) if the rule of the frame has read the byte after a called rule has returned.
            Otherwise the rule of the frame has returned, and the kind is its label (a number from 0 on).

        Raises:
            LimitExceededError: The step has 4095 events or more.
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
        """Return from the current rule to its caller, if the rule may end here without a delimiter (as a number may).

        Args:
            configuration: (state, counter, frame) in the rule.

        Returns:
            The configuration in which the caller continues. Its state is negative if the rule cannot end here.
        """
        return self._move(entry.leave, *configuration)

    def named(self, configuration: Configuration, token_id: TokenId) -> Configuration | None:
        """Return the configuration after a token edge, which is a transition that reads a token by its ID.

        Args:
            configuration: (state, counter, frame) before the token.
            token_id: ID of the token.

        Returns:
            The configuration after the edge. None if no token edge reads the token here.
        """
        if self._token_edges and self._is_named[token_id]:
            for first, last, reached in self._token_targets(configuration):
                if first <= token_id <= last:
                    return reached
        return None

    def next_token(self, configuration: Configuration) -> Configuration:
        """Return the configuration in which the next token begins.

        It differs from `configuration` only if the state has a boundary: a jump that the automaton makes between two
        tokens, in order to count tokens.

        Args:
            configuration: (state, counter, frame) in which the last token ended.
        """
        state, counter, frame = configuration
        target = self._boundaries.get(state)
        return configuration if target is None else self._move(entry.arrive, target, counter, frame)

    def _token_targets(self, configuration: Configuration) -> list[tuple[TokenId, TokenId, Configuration]]:
        """Return the targets of the token edges here, as (first token, last token, configuration).

        If several entries contain a token, the first one counts. A trace that has begun is continued.
        """
        targets: list[tuple[TokenId, TokenId, Configuration]] = []
        if not self._token_edges:
            return targets
        state, counter, frame = configuration
        for _ in range(SILENT_MOVES):
            arrived: dict[int, Configuration] = {}
            for first, last, target in self._token_edges.get(state, ()):
                if target not in arrived:
                    arrived[target] = self.next_token(self._move(entry.arrive, target, counter, frame))
                if arrived[target][0] >= 0:
                    targets.append((first, last, arrived[target]))
            # A rule that ends without a delimiter ends here if the token belongs to the caller, as in `step`.
            state, counter, frame = self.leave((state, counter, frame))
            if state < 0:
                break
        return targets

    def _move(self, kernel: Callable[..., Configuration], state: int, counter: int, frame: int) -> Configuration:
        """Return the result of a kernel after giving it room for all frames."""
        while True:
            reached = kernel(self._entries, state, counter, frame)
            if reached[0] != step.FRAMES_FULL:
                return reached
            self._grow_frames()

    def _grow_frames(self) -> None:
        """Make room for more frames. Frame numbers do not change; only the hash chains are rebuilt."""
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


def _check_tokens(pushdown: PushdownAutomaton, vocabulary: Vocabulary) -> None:
    """Raise ValueError if a token edge has a token that the model cannot generate."""
    if not len(pushdown.token_edges):
        return
    ends = np.array(vocabulary.eos_token_ids)
    first, last = pushdown.token_edges[:, [EDGE_FIRST, EDGE_LAST]].T
    if (last >= vocabulary.size).any() or (np.searchsorted(ends, first) != np.searchsorted(ends, last, "right")).any():
        raise ValueError("malformed automaton: an edge of a token that cannot be generated")
