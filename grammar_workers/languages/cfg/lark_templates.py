"""Expansion of the templates of Lark grammars. `_separated{item, ","}` becomes one rule for each list of arguments."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from grammar_workers.errors import InvalidSpecificationError, LimitExceededError
from grammar_workers.languages.cfg import syntax

# Maximum number of rules from templates. It stops a template that uses itself with ever larger arguments.
_MOST_RULES = 10_000


@dataclasses.dataclass(frozen=True)
class Definition:
    """Definition of a template in a Lark grammar: `name{parameters}: expression`.

    Attributes:
        parameters: Names of the parameters, in order.
        expression: Body of the template, in which references to parameters stand for arguments.
        position: Offset of the definition in the grammar text.
    """

    parameters: tuple[str, ...]
    expression: syntax.Expression
    position: int


class Templates:
    """Expansion of the templates of a Lark grammar: a template becomes one rule for each different list of arguments.

    Args:
        definitions: Definitions of the templates by name.
        deepest: Maximum nesting depth of templates in arguments: `a{b{c}}` has depth 2.
    """

    def __init__(self, definitions: Mapping[str, Definition], deepest: int) -> None:
        self._definitions = definitions
        self._deepest = deepest
        self._names: dict[tuple[str, tuple[syntax.Expression, ...]], str] = {}
        self._depths: dict[str, int] = {}
        self._pending: list[tuple[str, Definition, dict[str, syntax.Expression]]] = []

    def expand(self, rules: Mapping[str, syntax.Rule]) -> dict[str, syntax.Rule]:
        """Replace the uses of templates in the rules of a grammar by references to new rules. Call this method once.

        An undefined template or a wrong number of arguments raises InvalidSpecificationError. Too many rules, or
        templates nested too deeply, raise LimitExceededError. Each error has the position in the grammar.

        Args:
            rules: Rules by name, which may use templates; not changed.

        Returns:
            Rules by name without templates: the given rules, and one rule for each template and list of arguments.
        """
        found = {name: syntax.Rule(self._filled(rule.expression, {}), rule.position) for name, rule in rules.items()}
        while self._pending:
            name, definition, arguments = self._pending.pop()
            found[name] = syntax.Rule(self._filled(definition.expression, arguments), definition.position)
        return found

    def _filled(self, expression: syntax.Expression, arguments: Mapping[str, syntax.Expression]) -> syntax.Expression:
        """Return the expression with arguments for parameters and rules for templates."""
        if isinstance(expression, syntax.Reference):
            return arguments.get(expression.name, expression)
        if isinstance(expression, syntax.Template):
            return self._used(expression, tuple(self._filled(each, arguments) for each in expression.arguments))
        return syntax.with_items(expression, lambda item: self._filled(item, arguments))

    def _used(self, template: syntax.Template, arguments: tuple[syntax.Expression, ...]) -> syntax.Reference:
        definition = self._definitions.get(template.name)
        if definition is None:
            raise InvalidSpecificationError(
                f"the template {template.name!r} is not defined", position=template.position
            )
        if len(arguments) != len(definition.parameters):
            raise InvalidSpecificationError(
                f"the template {template.name!r} has {len(definition.parameters)} parameters, not {len(arguments)}",
                position=template.position,
            )
        key = (template.name, arguments)
        if key not in self._names:
            name = f"{template.name}{{{len(self._names)}}}"
            depth = 1 + max(
                (self._depths.get(each.name, 0) for one in arguments for each in syntax.references(one)), default=0
            )
            if len(self._names) >= _MOST_RULES or depth > self._deepest:
                raise LimitExceededError(
                    f"templates become more than {_MOST_RULES} rules, or are nested deeper than {self._deepest}",
                    position=template.position,
                )
            self._names[key] = name
            self._depths[name] = depth
            self._pending.append((name, definition, dict(zip(definition.parameters, arguments, strict=True))))
        return syntax.Reference(self._names[key], template.position)
