"""The schema inside of an unsatisfiable one that contradicts itself, for the message."""

from __future__ import annotations

from grammar_workers.languages.json_schema.solve.derivatives import Demand
from grammar_workers.languages.json_schema.solve.solver import Solver


def unsatisfiable_pointer(solver: Solver, demand: Demand) -> str:
    """The JSON Pointer of the innermost schema that has no value although every value of the root needs one of it.

    Follows required properties and items of plain objects and arrays; `demands` has been solved for `demand`.
    """
    pointer = solver.pool.pointer(demand.formula) or ""
    passed = {demand}
    while True:
        needed = [child for child in _needed(solver, demand) if not solver.satisfiable(child)]
        if not needed or needed[0] in passed:
            return pointer
        demand = needed[0]
        passed.add(demand)
        pointer = solver.pool.pointer(demand.formula) or pointer


def _needed(solver: Solver, demand: Demand) -> list[Demand]:
    """The demands of the parts that every object (or else every array) of `demand` has."""
    objects = solver.objects(demand)
    if objects is not None and objects.is_plain:
        plain = objects.plain
        return [plain.properties[index][1] for index in plain.required]
    arrays = solver.arrays(demand)
    if arrays is not None and arrays.is_plain:
        items = arrays.plain
        return [*items.prefix, items.items][: items.minimum]
    return []
