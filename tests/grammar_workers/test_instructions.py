"""What instructions do to the counter: the bounds that `perform` answers with, tried out on every counter."""

from __future__ import annotations

from typing import Any

import pytest

from grammar_workers import Limits
from grammar_workers.pushdown.builder import PushdownBuilder
from grammar_workers.pushdown.instructions import ACTIONS, ASSIGN, INSTRUCTION_ACTION, perform

ACTION: dict[str, dict[str, Any]] = {
    "keep": {},
    "increment": {"increment_to": 5},
    "assign": {"assign": 3},
    "set bit": {"set_bit": 1},
}
GUARDS: list[Any] = [None, [(2, 6)], [(0, 1), (4, 4), (7, 9)]]


def test_every_action_is_tried() -> None:
    assert len(ACTION) == ACTIONS


@pytest.mark.parametrize("guard", GUARDS)
@pytest.mark.parametrize("action", ACTION)
def test_within_its_bounds_an_action_changes_the_counter_by_as_much(action: str, guard: Any) -> None:
    """And passes its guard or not: rows are shared between counters within them. ASSIGN forgets the counter instead."""
    builder = PushdownBuilder(Limits())
    number = builder.op(**ACTION[action], **({} if guard is None else {"guard": guard}))
    tables = builder.build(builder.state(op=number)).tables
    forgets = tables.instructions[number, INSTRUCTION_ACTION] == ASSIGN
    for counter in range(12):
        passed, after, low, high = perform(tables.instructions, tables.guards, number, counter)
        assert low <= counter <= high
        assert passed == (guard is None or any(first <= counter <= last for first, last in guard))
        for other in range(max(low, 0), min(high, 20) + 1):
            passed_too, after_too, _, _ = perform(tables.instructions, tables.guards, number, other)
            assert passed_too == passed
            assert after_too == after if forgets and passed else after_too - other == after - counter
