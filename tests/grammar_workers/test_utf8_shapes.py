"""Reading a character byte by byte through a shape leads to where the shape says, against `str.encode`."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from grammar_workers.dfa.charset import ALL
from grammar_workers.dfa.utf8 import MoveShape, row_shape
from tests.grammar_workers.properties import PROPERTY

BORDERS = [0, 0x20, 0x7F, 0x80, 0x7FF, 0x800, 0xFFF, 0x1000, 0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x3FFFF, 0x10FFFF]
characters = st.one_of(
    st.sampled_from(BORDERS), st.integers(0, 0x2FF), st.integers(0, 0xD7FF), st.integers(0xE000, 0x10FFFF)
)


@st.composite
def shapes(draw: st.DrawFn) -> MoveShape:
    """Runs between random borders; each leads to one of few targets or nowhere."""
    borders = sorted(draw(st.sets(characters, min_size=2, max_size=8)))
    numbers: dict[int, int] = {}
    runs = []
    for first, following in itertools.pairwise(borders):
        target = draw(st.integers(-1, 3))
        for low, high in ALL:
            if target >= 0 and max(first, low) <= min(following - 1, high):
                number = numbers.setdefault(target, len(numbers))
                runs.append((max(first, low), min(following - 1, high), number))
    return row_shape(tuple(runs))


def read(shape: MoveShape, text: bytes) -> int:
    """The number of the target that the bytes of one character lead to, -1 for none."""
    slot = int(shape.bytes.slots[text[0]]) - 1
    if slot < 0:
        return -1
    branch = shape.bytes.branches[slot]
    order = branch.order
    for byte in text[1:]:
        if branch.rest is None:
            return -1
        found = [inner for inner in branch.rest.branches if byte in inner.bytes]
        if not found:
            return -1
        (branch,) = found
        order = tuple(order[number] for number in branch.order)
    return order[0] if branch.rest is None else -1


@settings(PROPERTY, max_examples=300)
@given(shape=shapes(), asked=st.lists(characters, min_size=10, max_size=10))
def test_bytes_of_a_character_lead_to_its_target(shape: MoveShape, asked: list[int]) -> None:
    for code in [*asked, *(end for first, last, _ in shape.ranges for end in (first, last))]:
        expected = [number for first, last, number in shape.ranges if first <= code <= last]
        assert read(shape, chr(code).encode()) == (expected[0] if expected else -1)
