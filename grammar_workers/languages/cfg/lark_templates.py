"""Templates of a Lark grammar: `_separated{item, ","}` becomes a rule of its own for each list of arguments."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping

from grammar_workers.errors import InvalidSpecificationError, LimitExceededError
from grammar_workers.languages.cfg import syntax

_MOST_RULES = 10_000
"""The most rules that templates may become, so that one that uses itself with ever larger arguments ends."""


@dataclasses.dataclass(frozen=True)
class Definition:
    """`name{parameters}: expression`, at `position` of the grammar."""

    parameters: tuple[str, ...]
    expression: syntax.Expression
    position: int


class Templates:
    """Expands the templates that rules use.

    Args:
        definitions: Templates by name.
        deepest: The deepest nesting of templates in arguments.
    """

    def __init__(self, definitions: Mapping[str, Definition], deepest: int) -> None:
        self._definitions = definitions
        self._deepest = deepest
        self._names: dict[Hashable, str] = {}
        self._depths: dict[str, int] = {}
        self._pending: list[tuple[str, Definition, dict[str, syntax.Expression]]] = []

    def expand(self, rules: Mapping[str, syntax.Rule]) -> dict[str, syntax.Rule]:
        """Return `rules` without templates, and the rules that templates have become.

        Raises:
            InvalidSpecificationError: A template is not defined, or has another number of parameters.
            LimitExceededError: The templates become too many rules.
        """
        found = {name: syntax.Rule(self._filled(rule.expression, {}), rule.position) for name, rule in rules.items()}
        while self._pending:
            name, definition, arguments = self._pending.pop()
            found[name] = syntax.Rule(self._filled(definition.expression, arguments), definition.position)
        return found

    def _filled(self, expression: syntax.Expression, arguments: Mapping[str, syntax.Expression]) -> syntax.Expression:
        """The expression with arguments for parameters and rules for templates."""
        if isinstance(expression, syntax.Reference):
            return arguments.get(expression.name, expression)
        if isinstance(expression, syntax.Sequence | syntax.Alternatives):
            return type(expression)(tuple(self._filled(item, arguments) for item in expression.items))
        if isinstance(expression, syntax.Repeat):
            return syntax.Repeat(self._filled(expression.item, arguments), expression.low, expression.high)
        if isinstance(expression, syntax.Template):
            return self._used(expression, tuple(self._filled(each, arguments) for each in expression.arguments))
        return expression

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
        key = (template.name, *map(_key, arguments))
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


def _key(expression: syntax.Expression) -> Hashable:
    """Key of an argument, without its position in the grammar."""
    if isinstance(expression, syntax.Reference):
        return expression.name
    if isinstance(expression, syntax.Pattern):
        return (expression.value, expression.is_plain, expression.flags)
    if isinstance(expression, syntax.Sequence | syntax.Alternatives):
        return (type(expression), *map(_key, expression.items))
    if isinstance(expression, syntax.Repeat):
        return (expression.low, expression.high, _key(expression.item))
    assert isinstance(expression, syntax.Characters | syntax.Marker)
    return expression
