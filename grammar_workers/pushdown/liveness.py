"""Where the counter of a pushdown automaton matters: liveness, as compilers know it of variables."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from grammar_workers.pushdown import instructions as code
from grammar_workers.pushdown.automaton import PushdownAutomaton


@dataclasses.dataclass(frozen=True)
class Liveness:
    """`reads` bool [states]: whether anything that may follow in a state asks for the counter; `calls` bool
    [instructions]: whether that is so on or after a call by this one. Elsewhere all counters are as good as one."""

    reads: NDArray[np.bool_]
    calls: NDArray[np.bool_]


def live_counters(pushdown: PushdownAutomaton) -> Liveness:
    """The least fixpoint over states: guards ask for the counter, and what leads to them before it is set anew."""
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
