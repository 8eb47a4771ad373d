"""The walker over a deterministic `Machine`: compiled kernels, and the return stacks they share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import numpy as np

from grammar_workers import kernels, row_kernels
from grammar_workers.completion import shortest_bytes
from grammar_workers.errors import LimitExceededError
from grammar_workers.machine import Machine
from grammar_workers.options import Limits
from grammar_workers.types import MaskRow, TokenId
from grammar_workers.vocabulary import Vocabulary
from grammar_workers.walker import Configuration


class MachineWalker:
    """A `Walker` whose configurations are (machine state, register, frame), see `kernels`."""

    KIND: ClassVar[bytes] = b"M"

    def __init__(self, machine: Machine, vocabulary: Vocabulary, limits: Limits) -> None:
        self._machine = machine
        self._vocabulary = vocabulary
        self._limits = limits
        self._tables = machine.tables
        # Frames, hash buckets, number of frames in use. Frame 0 is the bottom of every stack.
        self._stack = (np.zeros((64, 4), np.int64), np.full(128, -1, np.int64), np.ones(1, np.int64))
        self._path = np.zeros((vocabulary.longest_token + 2, 6), np.int64)

    @property
    def nbytes(self) -> int:
        return self._machine.nbytes + self._stack[0].nbytes + self._stack[1].nbytes

    @property
    def size(self) -> int:
        return len(self._machine.states)

    def start(self) -> Configuration:
        while True:
            reached = kernels.arrive(self._tables, self._stack, 1, 0, 0)
            if reached[0] != kernels.FRAMES_FULL:
                return tuple(reached)
            self._grow_frames()

    def fill_row(self, configuration: Configuration, row: MaskRow) -> None:
        trees, slices = self._vocabulary.trees, self._vocabulary.string_slice.tables
        while row_kernels.fill_row(self._tables, self._stack, trees, slices, self._path, *configuration, row) < 0:
            self._grow_frames()

    def advance(self, configuration: Configuration, token_id: TokenId) -> Configuration | None:
        data, offsets = self._vocabulary.packed
        start, end = offsets[token_id], offsets[token_id + 1]
        if start == end:
            return None
        while True:
            reached = kernels.advance(self._tables, self._stack, *configuration, data, start, end)
            if reached[0] >= 0:
                return tuple(reached)
            if reached[0] != kernels.FRAMES_FULL:
                return None
            self._grow_frames()

    def may_end(self, configuration: Configuration) -> bool:
        while (status := kernels.may_end(self._tables, self._stack, *configuration)) == kernels.FRAMES_FULL:
            self._grow_frames()
        return bool(status)

    def successors(self, configuration: Configuration, row: MaskRow) -> Iterable[Configuration]:
        trees, slices = self._vocabulary.trees, self._vocabulary.string_slice.tables
        capacity = 1024
        while True:
            found = np.empty((capacity, 3), np.int64)
            seen = np.full(capacity * 4, -1, np.int32)
            many = row_kernels.successors(
                self._tables, self._stack, trees, slices, self._path, *configuration, found, seen
            )
            if many >= 0:
                return map(tuple, found[:many].tolist())
            if many == kernels.FRAMES_FULL:
                self._grow_frames()
            else:
                capacity *= 8

    def shortest(self, configuration: Configuration) -> list[TokenId]:
        state, register, frame = configuration
        text = shortest_bytes(self._machine, self._stack[0], (state, register, frame), self._vocabulary.spellable)
        tokens = self._vocabulary.encode(text)
        if tokens is None:
            raise AssertionError("the completion cannot be spelled by the vocabulary")
        return tokens

    def to_bytes(self) -> bytes:
        return self._machine.to_bytes()

    @classmethod
    def from_bytes(cls, data: bytes, vocabulary: Vocabulary, limits: Limits) -> MachineWalker:
        """The inverse of `to_bytes`. Trusts nothing: raises ValueError for malformed tables."""
        return cls(Machine.from_bytes(data), vocabulary, limits)

    def _grow_frames(self) -> None:
        """Double the frame table. Frame numbers stay; only the hash chains are laid anew."""
        if self.nbytes > self._limits.max_fsm_bytes:
            raise LimitExceededError(
                f"the automaton holds more than {self._limits.max_fsm_bytes} bytes of return stacks "
                "(limit max_fsm_bytes)"
            )
        before, _, counters = self._stack
        many = len(before)
        frames = np.zeros((many * 2, 4), np.int64)
        buckets = np.full(many * 4, -1, np.int64)
        frames[:many] = before
        kernels.rehash_frames(frames, buckets, many)
        self._stack = (frames, buckets, counters)
