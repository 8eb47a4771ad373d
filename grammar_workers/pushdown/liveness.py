"""Liveness analysis: finds the states of a pushdown automaton in which the value of the counter matters."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from grammar_workers.pushdown import instructions as code
from grammar_workers.pushdown.automaton import PushdownAutomaton


@dataclasses.dataclass(frozen=True)
class Liveness:
    """The states and calls of a pushdown automaton in which the value of the counter matters.

    In other states, configurations that differ only in the counter are equivalent.

    Attributes:
        reads: For each state, True if the present counter may be tested after the next byte, bool [states].
        calls: For each instruction that calls a rule, True if the present counter may be tested in the rule or after
            the call, bool [instructions]. The values for other instructions have no meaning.
    """

    reads: NDArray[np.bool_]
    calls: NDArray[np.bool_]


def live_counters(pushdown: PushdownAutomaton) -> Liveness:
    """Compute in which states and calls of a pushdown automaton the value of the counter matters.

    The value matters in a state that tests it with a guard (condition on the counter). It also matters in each state
    from which the automaton can reach such a test without an assignment to the counter.

    Args:
        pushdown: The automaton. Not changed.

    Returns:
        The states and calls in which the value matters.
    """
    states, table, instructions, returns = pushdown.states, pushdown.table, pushdown.instructions, pushdown.returns
    many = len(states)
    number = states[:, code.STATE_INSTRUCTION]
    guarded = instructions[:, code.INSTRUCTION_GUARD_END] > instructions[:, code.INSTRUCTION_GUARD_START]
    assigned = instructions[:, code.INSTRUCTION_ACTION] == code.ASSIGN
    bases = np.unique(pushdown.calls[:, code.INSTRUCTION_SITE])
    # The last entry stands for the dead state -1.
    live = np.zeros(many + 1, bool)
    while True:
        row_is_live = np.append(live[table].any(axis=1), False)
        following = np.append(live[1:many], False)
        reads = row_is_live[states[:, code.STATE_ROW]] | (following & (states[:, code.STATE_LITERAL] >= 0))
        targets = live[instructions[:, code.INSTRUCTION_TARGET].clip(0, many)]
        calls = (instructions[:, code.INSTRUCTION_ENTRY] != code.ENTER_AT_ZERO) & targets
        if len(bases):
            sites = np.logical_or.reduceat(live[returns], bases)
            calls |= sites[np.searchsorted(bases, instructions[:, code.INSTRUCTION_SITE]).clip(0, len(bases) - 1)]
        move = instructions[:, code.INSTRUCTION_MOVE][number]
        after = np.select(
            [move == code.CALL, move == code.GOTO, move == code.RETURN],
            [calls[number], targets[number], np.zeros(many, bool)],
            reads,
        )
        entered = guarded[number] | (after & ~assigned[number])
        if np.array_equal(entered, live[:many]):
            return Liveness(reads, calls)
        live = np.append(entered, False)
