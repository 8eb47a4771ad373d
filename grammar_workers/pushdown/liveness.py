"""Where the register of a machine matters: liveness, as compilers know it of variables."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from grammar_workers.matching.kernels.step import (
    ACTION,
    ASSIGN,
    CALL,
    ENTER_AT_ZERO,
    ENTRY_MODE,
    GOTO,
    GUARD_END,
    GUARD_START,
    LIT,
    MOVE,
    OP,
    RETURN,
    ROW,
    SITE_BASE,
    TARGET,
)
from grammar_workers.pushdown.automaton import Machine


@dataclasses.dataclass(frozen=True)
class Liveness:
    """`reads` bool [states]: whether anything that may follow in a state asks for the register; `calls` bool [ops]:
    whether that is so on or after a call by this op. Elsewhere all registers are as good as one."""

    reads: NDArray[np.bool_]
    calls: NDArray[np.bool_]


def live_registers(machine: Machine) -> Liveness:
    """The least fixpoint over states: guards ask for the register, and what leads to them before it is set anew."""
    states, table, ops, returns = machine.states, machine.table, machine.ops, machine.returns
    many = len(states)
    op = states[:, OP]
    guarded = ops[:, GUARD_END] > ops[:, GUARD_START]
    assigned = ops[:, ACTION] == ASSIGN
    bases = np.unique(ops[ops[:, MOVE] == CALL, SITE_BASE])
    # The last entry stands for the dead state -1.
    live = np.zeros(many + 1, bool)
    while True:
        row_is_live = np.append(live[table].any(axis=1), False)
        following = np.append(live[1:many], False)
        reads = row_is_live[states[:, ROW]] | (following & (states[:, LIT] >= 0))
        calls = (ops[:, ENTRY_MODE] != ENTER_AT_ZERO) & live[ops[:, TARGET].clip(0, many)]
        if len(bases):
            sites = np.logical_or.reduceat(live[returns], bases)
            calls |= sites[np.searchsorted(bases, ops[:, SITE_BASE]).clip(0, len(bases) - 1)]
        move = ops[:, MOVE][op]
        after = np.select(
            [move == CALL, move == GOTO, move == RETURN],
            [calls[op], live[ops[:, TARGET].clip(0, many)][op], np.zeros(many, bool)],
            reads,
        )
        entered = guarded[op] | (after & ~assigned[op])
        if np.array_equal(entered, live[:many]):
            return Liveness(reads, calls)
        live = np.append(entered, False)
