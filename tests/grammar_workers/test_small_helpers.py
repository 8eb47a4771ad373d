"""Helpers of the languages: methods that remember their results, and characters that UTF-8 can write."""

from __future__ import annotations

import gc
import weakref

from grammar_workers.languages.scalar_values import has_surrogate, is_scalar_value
from grammar_workers.memo import memoized


class _Counter:
    def __init__(self, step: int) -> None:
        self.step = step
        self.calls = 0

    @memoized
    def times(self, number: int) -> int | None:
        self.calls += 1
        return number * self.step or None


def test_a_result_is_worked_out_once_per_object_and_arguments() -> None:
    twos, threes = _Counter(2), _Counter(3)
    assert [twos.times(5), twos.times(5), threes.times(5), twos.times(6)] == [10, 10, 15, 12]
    assert (twos.calls, threes.calls) == (2, 1)


def test_none_is_remembered_too() -> None:
    counter = _Counter(0)
    assert counter.times(5) is None and counter.times(5) is None
    assert counter.calls == 1


def test_results_go_with_their_object_without_the_collector() -> None:
    counter = _Counter(2)
    counter.times(5)
    gone = weakref.ref(counter)
    gc.disable()
    try:
        del counter
        assert gone() is None
    finally:
        gc.enable()


def test_surrogates_are_no_characters() -> None:
    assert [is_scalar_value(code) for code in (0, 0xD7FF, 0xE000, 0x10FFFF)] == [True] * 4
    assert [is_scalar_value(code) for code in (-1, 0xD800, 0xDFFF, 0x110000)] == [False] * 4
    assert has_surrogate("a\udc00b") and has_surrogate("\ud800")
    assert not has_surrogate("a\ud7ff\ue000\U0001f600")
