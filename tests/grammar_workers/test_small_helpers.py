"""Small helpers: remembered results, graphs, bits, moves by target, the builder's memory, characters of UTF-8."""

from __future__ import annotations

import gc
import weakref
from typing import Any

from grammar_workers.dfa.charset import bits_of
from grammar_workers.dfa.dfa import Dfa
from grammar_workers.dfa.reached import reached
from grammar_workers.json_types import types_of, types_of_value
from grammar_workers.memo import memoized
from grammar_workers.options import Limits
from grammar_workers.pushdown.builder import PushdownBuilder
from grammar_workers.scalar_values import has_surrogate, is_scalar_value


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


def test_everything_reached_is_asked_once_for_what_follows() -> None:
    asked: list[int] = []

    def following(node: int) -> list[int]:
        asked.append(node)
        return [2 * node % 7, 3]

    assert reached([1], following) == {1, 2, 4, 3, 6, 5}
    assert sorted(asked) == [1, 2, 3, 4, 5, 6]
    assert reached([], following) == set()


def test_bits_are_listed_in_order() -> None:
    assert bits_of(0) == [] and bits_of(0b101001 | 1 << 90) == [0, 3, 5, 90]


def test_moves_of_a_state_are_sets_of_characters_by_target() -> None:
    dfa = Dfa.of((0, 0x61, 0x62, 0x63, 0x64, 0x65), ((-1, 1, 0, 1, 0, -1), (-1,) * 6), (0, 1))
    assert dfa.charsets(0) == [(((0x61, 0x61), (0x63, 0x63)), 1), (((0x62, 0x62), (0x64, 0x64)), 0)]
    assert dfa.charsets(1) == []


def test_a_builder_that_is_restored_has_forgotten_what_was_numbered_since() -> None:
    builder = PushdownBuilder(Limits())
    kept = builder.goto(1)
    saved = builder.saved()
    rows = builder.row({1: 1}), builder.goto(7), builder.loop(3)
    builder.restore(saved)
    assert builder.goto(1) == kept
    assert (builder.row({1: 1}), builder.goto(7), builder.loop(3)) == rows
    assert len(builder.build(1).instructions) == 3 and len(builder.build(1).table) == 1


def test_surrogates_are_no_characters() -> None:
    assert [is_scalar_value(code) for code in (0, 0xD7FF, 0xE000, 0x10FFFF)] == [True] * 4
    assert [is_scalar_value(code) for code in (-1, 0xD800, 0xDFFF, 0x110000)] == [False] * 4
    assert has_surrogate("a\udc00b") and has_surrogate("\ud800")
    assert not has_surrogate("a\ud7ff\ue000\U0001f600")


def test_types_of_schemas_that_refer_to_others() -> None:
    """A schema may be its own part, be reached in 3 ** 15 ways, or stand behind a long chain."""
    types = ["null", "string"]
    for schema in ({"$ref": "#"}, {"allOf": [{"$ref": "#"}]}, {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}):
        assert types_of_value({**schema, "type": types}, schema) == set(types)
    ways: dict[str, Any] = {str(n): {"anyOf": [{"$ref": f"#/{n + 1}"}] * 3} for n in range(15)} | {
        "15": {"type": types}
    }
    assert types_of_value({"$ref": "#/0"}, ways) == set(types)
    assert types_of({"properties": {"a": {"$ref": "#/$defs/0"}}, "$defs": {"0": {"type": types}}}, "a") == set(types)
    chain = {str(n): {"$ref": f"#/{n + 1}"} for n in range(2000)}
    assert len(types_of_value({"$ref": "#/0"}, chain)) == 7
