"""The recognizer of rule graphs (context-free grammars): reads tokens, and computes masks of allowed tokens.

A configuration (complete state) is a numbered set of parse stacks. An int32 table has, for each configuration and byte
class, the number of the next configuration. Its entries are computed when they are first needed. A compiled kernel
computes a mask: it walks the prefix tree of all tokens, and looks up each byte in the table. Where entries are missing,
Python code computes them, and then the walk continues.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from grammar_workers.budget import Budget
from grammar_workers.dfa.utf8 import utf8_sequences
from grammar_workers.errors import LimitExceededError
from grammar_workers.languages.cfg.rule_graph import END, RuleGraph
from grammar_workers.languages.cfg.stacks import FINISHED, NOTHING, StackSet, StackSets
from grammar_workers.matching.kernels import cfg
from grammar_workers.matching.recognizer import Configuration, PrefetchedMasks, Reached, check_bytes
from grammar_workers.matching.spelling import check_length, spell
from grammar_workers.memo import memoized
from grammar_workers.options import Limits
from grammar_workers.pushdown.repeated_text import Text
from grammar_workers.types import MaskRow, TokenId
from grammar_workers.vocabulary.slices import Slice, character_table, split
from grammar_workers.vocabulary.trie import TRIE_DEPTH
from grammar_workers.vocabulary.vocabulary import Vocabulary

# The characters from U+0080 on, as sequences of inclusive byte ranges.
_WIDE = utf8_sequences(0x80, 0xD7FF) + utf8_sequences(0xE000, 0x10FFFF)
# One token may use `max_steps` divided by this number (a few hundredths of a second): a request may have thousands.
_TOKENS_AT_MOST = 32
# Minimum number of free ASCII characters for which a separate tree of the other tokens is worth its cost.
_LEAST_FREE = 40


@functools.lru_cache(maxsize=16)
def _free_tokens(vocabulary: Vocabulary, ascii_characters: bytes, wide: bool) -> tuple[Slice, NDArray[np.int32]]:
    """Return the slice of the tokens that consist of free characters, and the depth-0 nodes of the tree of the others.

    The characters in `ascii_characters` are free, and with `wide`, the characters from U+0080 on.
    """
    free = [((byte, byte),) for byte in ascii_characters]
    found = split(vocabulary.tree, vocabulary.node_of, character_table([*free, *(_WIDE if wide else [])]))
    return found, np.flatnonzero(found.rest[:, TRIE_DEPTH] == 0).astype(np.int32)


class CfgRecognizer:
    """A `Recognizer` (reads tokens and computes masks) of a `RuleGraph`, the compiled form of a context-free grammar.

    A configuration (complete state) is the tuple (n,), where n is the number of a set of parse stacks.

    Args:
        graph: The rule graph.
        vocabulary: Tokens of the model.
        limits: `max_steps` / 32 is the work budget of one token; `max_fsm_bytes` limits the memory.

    Attributes:
        KIND: Byte that selects this class in an artifact.
        remembers_values: False: configurations do not depend on seen values.
    """

    KIND: ClassVar[bytes] = b"g"
    remembers_values: ClassVar[bool] = False

    def __init__(self, graph: RuleGraph, vocabulary: Vocabulary, limits: Limits) -> None:
        self._graph = graph
        self._vocabulary = vocabulary
        self._limits = limits
        self._sets = StackSets(graph)
        self._columns = graph.classes.tolist()
        self._table = np.empty((64, graph.rows.shape[1]), np.int32)
        self._stacks: list[StackSet] = []
        self._cheapest: dict[StackSet, tuple[int, int, StackSet]] = {FINISHED: (0, END, NOTHING)}

    @classmethod
    def from_bytes(cls, data: bytes, vocabulary: Vocabulary, limits: Limits) -> CfgRecognizer:
        """Return the recognizer of a serialized rule graph, which may come from an untrusted source.

        An invalid graph raises ValueError.

        Args:
            data: Serialized rule graph, from `to_bytes`.
            vocabulary: Tokens of the model.
            limits: `max_steps` / 32 is the work budget of one token; `max_fsm_bytes` limits the memory.
        """
        return cls(RuleGraph.from_bytes(data), vocabulary, limits)

    def to_bytes(self) -> bytes:
        """Return the rule graph as bytes, for `from_bytes`. They do not contain the visited configurations."""
        return self._graph.to_bytes()

    @property
    def nbytes(self) -> int:
        """Approximate memory of the rule graph and of all visited configurations, in bytes."""
        return self._graph.nbytes + self._sets.nbytes + self._table.nbytes + len(self._stacks) * 200

    @property
    def size(self) -> int:
        """Number of states of the rule graph."""
        return len(self._graph.rows)

    def start(self) -> Configuration:
        """Return the configuration in which matching begins: (n,), where n is the number of a set of parse stacks.

        An exhausted work budget or memory limit raises LimitExceededError.
        """
        work = self._work()
        return (self._number(self._sets.arrive(self._sets.make(dict([self._sets.start])), work)),)

    def may_end(self, configuration: Configuration) -> bool:
        """Return whether the output may end in a configuration (n,), where n is the number of a set of parse stacks."""
        items = self._sets.items[self._stacks[configuration[0]]]
        return items[0][0] == END

    def find_or_fill_mask(self, configuration: Configuration, row: MaskRow) -> int:
        """Compute the mask (bit set of allowed tokens) of a configuration.

        Args:
            configuration: (n,), where n is the number of a set of parse stacks.
            row: Receives the mask without end tokens, uint32 [words]. Its former content is overwritten.

        Returns:
            -1, because configurations of rule graphs have no mask equivalence classes.

        Raises:
            LimitExceededError: The work budget or the memory limit is exhausted.
        """
        # There are no classes, because sets of stacks with different continuations are different configurations.
        number = configuration[0]
        work = self._work()
        self._fill(number, work)
        loops = np.flatnonzero(self._table[number][self._graph.classes[:128]] == number).tolist()
        free = len(loops) >= _LEAST_FREE
        wide = free and self._loops_wide(number, work)
        (mask, tree), roots = _free_tokens(self._vocabulary, bytes(loops if free else []), wide)
        row[:] = mask
        begun = np.stack([roots, np.full_like(roots, number)], axis=1)
        path = np.empty(self._vocabulary.longest_token + 1, np.int32)
        gaps = np.empty((len(tree), 2), np.int32)
        wanted = np.empty(len(tree), np.int32)
        while len(begun):
            many, missing = cfg.walk(
                tree,
                self._vocabulary.same_bytes,
                self._graph.classes,
                self._table,
                begun,
                path,
                row,
                gaps,
                wanted,
            )
            begun = gaps[:many].copy()
            try:
                for here in wanted[:missing].tolist():
                    self._fill(here, work)
            except LimitExceededError:
                self._table[self._table[:, 0] == cfg.WANTED, 0] = cfg.UNKNOWN
                raise
        return -1

    def _loops_wide(self, number: int, work: Budget) -> bool:
        """Return whether every character from U+0080 on leads back to this configuration."""
        for sequence in _WIDE:
            reached = {number}
            for low, high in sequence:
                columns = set(self._columns[low : high + 1])
                reached = {self._step(here, column, work) for here in reached for column in columns}
                if cfg.DEAD in reached:
                    return False
            if reached != {number}:
                return False
        return True

    def advance(self, configuration: Configuration, token_id: TokenId) -> Reached | None:
        """Return the configuration after a token.

        An exhausted work budget or memory limit raises LimitExceededError.

        Args:
            configuration: (n,) before the token, where n is the number of a set of parse stacks.
            token_id: ID of a token other than an end token.

        Returns:
            (configuration, True if the output may end there, -1). -1 means that there is no mask equivalence class.
            None if the token is not allowed or has no bytes.
        """
        data = self._vocabulary.read_bytes(token_id)
        if not data:
            return None
        here = configuration[0]
        work = self._work()
        for byte in data:
            here = self._step(here, self._columns[byte], work)
            if here < 0:
                return None
        return (here,), self.may_end((here,)), -1

    def targets(self, configuration: Configuration, row: MaskRow) -> tuple[list[Configuration], NDArray[np.int32]]:
        """Compute the configurations after all tokens of a mask.

        Args:
            configuration: (n,) before the token, where n is the number of a set of parse stacks.
            row: The mask of the configuration, uint32 [words]. `find_or_fill_mask` must have computed the mask before.

        Returns:
            The distinct configurations, and for each token the index of its configuration in this list, int32 [V]. The
            index is -1 for tokens that the mask does not allow and for tokens without bytes.
        """
        # `find_or_fill_mask` has computed the mask, so the table contains every step of its tokens.
        data, offsets = self._vocabulary.packed
        reached = np.full(self._vocabulary.size, -1, np.int32)
        cfg.targets(data, offsets, self._graph.classes, self._table, configuration[0], row, reached)
        numbers, places = np.unique(reached, return_inverse=True)
        none = int(len(numbers) > 0 and numbers[0] < 0)
        return [(number,) for number in numbers[none:].tolist()], (places - none).astype(np.int32)

    def look_ahead(self, max_places: int) -> Iterator[PrefetchedMasks]:
        """Yield configurations whose masks the caller should prefetch (compute before an output reaches them).

        The configurations are reachable through ASCII bytes, and come in breadth-first order. An exhausted work budget
        or memory limit raises LimitExceededError.

        Args:
            max_places: Maximum number of configurations.

        Yields:
            Batches without masks. Each batch has only `wanted`: a configuration whose mask the caller must compute
            before it requests the next batch.
        """
        start = self.start()
        places = [start]
        met = {start}
        for configuration in itertools.islice(places, max_places):
            yield PrefetchedMasks(wanted=configuration)
            work = self._work()
            for number in {self._step(configuration[0], column, work) for column in set(self._columns[:128])}:
                if number >= 0 and (number,) not in met:
                    met.add((number,))
                    places.append((number,))

    def shortest(self, configuration: Configuration, limit: int) -> list[TokenId]:
        """Return the tokens of a completion (text up to the end of the output) with the fewest bytes.

        TooManyTokensError is raised if the completion has more than `limit` tokens, LimitExceededError if it has more
        than 256 KiB.

        Args:
            configuration: (n,) where the completion begins; n is the number of a set of parse stacks.
            limit: Maximum number of tokens.

        Returns:
            Token IDs. Empty if the output may end in the configuration.
        """
        stacks = self._stacks[configuration[0]]
        length = self._cost(stacks)
        check_length(length, limit * self._vocabulary.longest_token)
        text = bytearray()
        while stacks not in (FINISHED, NOTHING):
            _, state, stacks = self._cheapest[stacks]
            self._spell(state, text)
        return spell(Text(len(text), (bytes(text),)), self._vocabulary, limit)

    # -- configurations ------------------------------------------------------------------------------------------

    def _work(self) -> Budget:
        return Budget(self._limits, self._limits.max_steps // _TOKENS_AT_MOST, "one token of an ambiguous grammar")

    @memoized
    def _number(self, stacks: StackSet) -> int:
        check_bytes(self.nbytes, self._limits)
        number = len(self._stacks)
        if number == len(self._table):
            self._table = np.concatenate([self._table, np.empty_like(self._table)])
        self._stacks.append(stacks)
        self._table[number] = cfg.UNKNOWN
        return number

    def _fill(self, number: int, work: Budget) -> None:
        """Compute the table row of a configuration, unless it is computed."""
        if self._table[number, 0] < cfg.DEAD:
            reached = self._sets.steps(self._stacks[number], work)
            row = [cfg.DEAD if stacks == NOTHING else self._number(stacks) for stacks in reached]
            self._table[number] = row

    def _step(self, number: int, column: int, work: Budget) -> int:
        self._fill(number, work)
        return int(self._table[number, column])

    # -- shortest ways -------------------------------------------------------------------------------------------

    def _cost(self, stacks: StackSet) -> int:
        """Return the bytes of a shortest completion from any of the stacks, which is then the one in `_cheapest`."""
        endings, items = self._graph.endings, self._sets.items
        pending = [stacks]
        while pending:
            number = pending[-1]
            missing = [below for _, below in items[number] if below != NOTHING and below not in self._cheapest]
            if missing:
                pending += missing
                continue
            pending.pop()
            self._cheapest[number] = min(
                (endings[state][0] + (self._cheapest[below][0] if below != NOTHING else 0), state, below)
                for state, below in items[number]
            )
        return self._cheapest[stacks][0]

    def _spell(self, state: int, text: bytearray) -> None:
        """Append the shortest string from `state` to the end of its rule."""
        pending = [state]
        while pending:
            here = pending.pop()
            step = self._graph.endings[here][1]
            if len(step) == 2:
                text.append(step[0])
                pending.append(step[1])
            elif step:
                pending += [step[2], step[1]]
