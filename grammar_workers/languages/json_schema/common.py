"""Values about which a schema says no more than their type: nearly every schema has some, so they are solved and laid
out once in a process, and every other compilation goes on from there.
"""

from __future__ import annotations

import dataclasses
import functools

from grammar_workers.budget import Budget, running
from grammar_workers.languages.json_schema.assertions import BOOLEAN, FormulaId, IsInteger, JsonType
from grammar_workers.languages.json_schema.emit.emitter import Emitter
from grammar_workers.languages.json_schema.logic import TRUE, FormulaPool
from grammar_workers.languages.json_schema.solve.derivatives import Demand
from grammar_workers.languages.json_schema.solve.solver import Solver
from grammar_workers.options import GrammarOptions, Limits
from grammar_workers.pushdown.builder import PushdownBuilder


@dataclasses.dataclass(frozen=True)
class CommonValues:
    """The common values under one set of options, for vocabularies that spell the same characters."""

    pool: FormulaPool
    solver: Solver
    emitter: Emitter
    builder: PushdownBuilder


@functools.lru_cache(maxsize=32)
def common_values(options: GrammarOptions, spellable: frozenset[str] | None) -> CommonValues:
    limits = Limits()
    with running(Budget(limits)):
        pool = FormulaPool(limits)
        builder = PushdownBuilder(limits)
        solver = Solver(pool, options, limits, spellable, None)
        emitter = Emitter(solver, builder, options)
        for formula in _formulas(pool):
            demand = Demand(pool.canonical(formula))
            solver.solve(demand)
            if solver.satisfiable(demand):
                emitter.emit(demand)
    return CommonValues(pool, solver, emitter, builder)


def _formulas(pool: FormulaPool) -> list[FormulaId]:
    number = pool.types(JsonType.NUMBER)
    integer = pool.all_of([number, pool.atom(JsonType.NUMBER, IsInteger(by_spelling=False))])
    types = (JsonType.STRING, BOOLEAN, JsonType.NULL)
    return [TRUE, *map(pool.types, types), number, integer]
