"""Compilation of counted repetitions in grammars, such as `item{2,50}`, with the regex compiler.

The alternative, one copy of the item in the rule for each count, needs far more states than the DFA that the regex
compiler creates.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from grammar_workers.budget import budget_of
from grammar_workers.errors import LimitExceededError
from grammar_workers.languages.cfg import syntax
from grammar_workers.languages.regex import parse
from grammar_workers.languages.regex.character_class import agreed
from grammar_workers.languages.regex.compile import compile_tree
from grammar_workers.languages.regex.written_out import length
from grammar_workers.options import Limits

# Denominator of the share of the remaining budget that one repetition may take.
_SHARE = 16


class _NotRegularError(Exception):
    """The part is recursive, too long, or contains terminals of Lark."""


class CountedParts:
    """Compiler of the counted repetitions in the rules of one grammar, such as `item{2,50}`.

    Args:
        rules: The rules of the grammar, by name. Repetitions may refer to them.
        limits: Bounds on states and on steps of work.
    """

    def __init__(self, rules: Mapping[str, syntax.Rule], limits: Limits) -> None:
        self._rules = rules
        self._limits = limits

    def regular(self, expression: syntax.Repeat) -> syntax.Regular | None:
        """Compile a repetition with a maximum to a DFA, if possible and useful.

        If this method returns None, the caller must write the counts out: one copy of the item for each repetition.

        Args:
            expression: The repetition.

        Returns:
            The DFA as an expression. None in these cases: the maximum is absent or less than 2; the item is a literal
            or a character class; the item is recursive, or contains anything but characters and rules; a limit is
            exceeded.
        """
        if (expression.high or 0) < 2 or isinstance(expression.item, syntax.Characters):
            return None
        with contextlib.suppress(_NotRegularError, LimitExceededError), budget_of(self._limits).share(_SHARE):
            return syntax.Regular(compile_tree(self._pattern(expression, ()), search=False, limits=self._limits))
        return None

    def _pattern(self, expression: syntax.Expression, inside: tuple[str, ...]) -> parse.Node:
        """Return an expression as a pattern. `inside` are the names of the rules in which it stands."""
        budget_of(self._limits).spend(8)
        match expression:
            case syntax.Characters():
                return parse.Sequence(tuple(parse.Characters(agreed(one)) for one in expression.charsets))
            case syntax.Sequence():
                node: parse.Node = parse.Sequence(tuple(self._pattern(item, inside) for item in expression.items))
            case syntax.Alternatives():
                node = parse.Alternatives(tuple(self._pattern(item, inside) for item in expression.items))
            case syntax.Repeat():
                node = parse.Repeat(self._pattern(expression.item, inside), expression.low, expression.high)
            case syntax.Reference() if expression.name not in inside:
                node = self._pattern(self._rules[expression.name].expression, (*inside, expression.name))
            case _:
                raise _NotRegularError
        budget_of(self._limits).spend(many := length(node))
        if many > self._limits.max_pattern_characters:
            raise _NotRegularError
        return node
