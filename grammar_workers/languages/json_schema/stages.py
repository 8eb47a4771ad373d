"""The stages that JSON values of one compilation go through: formulas, the solver, the emitter.

Nearly every schema has values about which it says no more than their type. They are solved and laid out once in a
process, for each set of options, and all compilations go on from there: an artifact does not depend on what has been
compiled before.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from grammar_workers.budget import Budget, running
from grammar_workers.dfa.dfa import Dfa
from grammar_workers.languages.json_schema.assertions import BOOLEAN, IsInteger, JsonType
from grammar_workers.languages.json_schema.emit.emitter import Emitter
from grammar_workers.languages.json_schema.logic import TRUE, FormulaPool
from grammar_workers.languages.json_schema.solve.derivatives import Demand
from grammar_workers.languages.json_schema.solve.solver import JSON_CONSTANTS, Constants, Solver
from grammar_workers.options import GrammarOptions, Limits
from grammar_workers.pushdown.builder import PushdownBuilder


class Stages(NamedTuple):
    """The solver of the formulas in `pool`, and the emitter of what it has solved."""

    pool: FormulaPool
    solver: Solver
    emitter: Emitter


def new_stages(
    builder: PushdownBuilder,
    options: GrammarOptions,
    limits: Limits,
    spellable: frozenset[str] | None,
    permitted: Dfa | None,
    constants: Constants,
    *,
    distinct: bool,
) -> Stages:
    """Stages that write into `builder`; `spellable`, `permitted`, `constants` and `distinct` as in `Solver`.

    They begin with the common values where these are spelled as usual and nothing else stands in the builder.
    """
    if permitted is None and constants is JSON_CONSTANTS:
        begun, common = _common_values(options, spellable)
        if builder.go_on_from(begun):
            pool = common.pool.resumed(limits)
            solver = common.solver.resumed(pool, limits, distinct=distinct)
            return Stages(pool, solver, common.emitter.resumed(solver, builder))
    pool = FormulaPool(limits)
    solver = Solver(pool, options, limits, spellable, permitted, constants, distinct=distinct)
    return Stages(pool, solver, Emitter(solver, builder, options))


@functools.lru_cache(maxsize=32)
def _common_values(options: GrammarOptions, spellable: frozenset[str] | None) -> tuple[PushdownBuilder, Stages]:
    """Any value and the values of each scalar type: nobody changes them any more."""
    limits = Limits()
    with running(Budget(limits)):
        builder = PushdownBuilder(limits)
        pool = FormulaPool(limits)
        solver = Solver(pool, options, limits, spellable, None)
        emitter = Emitter(solver, builder, options)
        number = pool.types(JsonType.NUMBER)
        integer = pool.all_of([number, pool.atom(JsonType.NUMBER, IsInteger(by_spelling=False))])
        scalars = [*map(pool.types, (JsonType.STRING, BOOLEAN, JsonType.NULL)), number, integer]
        for formula in (TRUE, *scalars):
            demand = Demand(pool.canonical(formula))
            solver.solve(demand)
            if solver.satisfiable(demand):
                emitter.emit(demand)
    return builder, Stages(pool, solver, emitter)
