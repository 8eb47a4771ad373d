"""Where a schema that nothing satisfies contradicts itself, for the message."""

from __future__ import annotations

from grammar_workers.languages.json_schema.solve.derivatives import Rule
from grammar_workers.languages.json_schema.solve.nonempty import Rules


def unsatisfiable_place(rules: Rules, rule: Rule) -> str:
    """The JSON Pointer of the innermost schema that has no value although every value of the root needs one of it.

    Follows required properties and items of plain objects and arrays; `rules` has been solved for `rule`.
    """
    place = rules.pool.pointer(rule.formula) or ""
    passed = {rule}
    while True:
        rules_needed = [child for child in _needed(rules, rule) if not rules.satisfiable(child)]
        if not rules_needed or rules_needed[0] in passed:
            return place
        rule = rules_needed[0]
        passed.add(rule)
        place = rules.pool.pointer(rule.formula) or place


def _needed(rules: Rules, rule: Rule) -> list[Rule]:
    """The rules of the parts that every object (or else every array) of `rule` has."""
    objects = rules.objects(rule)
    if objects is not None and objects.is_plain:
        plain = objects.plain
        return [plain.properties[index][1] for index in plain.required]
    arrays = rules.arrays(rule)
    if arrays is not None and arrays.is_plain:
        items = arrays.plain
        return [*items.prefix, items.items][: items.minimum]
    return []
