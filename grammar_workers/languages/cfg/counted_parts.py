"""Repetitions without recursion, as regular expressions, whose subset construction finds few states for counts."""

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

_SHARE = 16
"""The part of the remaining steps that one repetition may take."""


class _NotRegularError(Exception):
    """A part that is recursive, too long, or of Lark's terminals."""


class CountedParts:
    """The repetitions of one grammar with these rules."""

    def __init__(self, rules: Mapping[str, syntax.Rule], limits: Limits) -> None:
        self._rules = rules
        self._limits = limits
        self._open: list[str] = []

    def regular(self, expression: syntax.Repeat) -> syntax.Regular | None:
        """Return the automaton of a repetition with a maximum, or None where it is recursive or too large."""
        if (expression.high or 0) < 2 or isinstance(expression.item, syntax.Characters):
            return None
        self._open.clear()
        with contextlib.suppress(_NotRegularError, LimitExceededError), budget_of(self._limits).share(_SHARE):
            return syntax.Regular(compile_tree(self._pattern(expression), search=False, limits=self._limits))
        return None

    def _pattern(self, expression: syntax.Expression) -> parse.Node:
        budget_of(self._limits).spend(8)
        match expression:
            case syntax.Characters():
                return parse.Sequence(tuple(parse.Characters(agreed(one)) for one in expression.charsets))
            case syntax.Sequence():
                node: parse.Node = parse.Sequence(tuple(map(self._pattern, expression.items)))
            case syntax.Alternatives():
                node = parse.Alternatives(tuple(map(self._pattern, expression.items)))
            case syntax.Repeat():
                node = parse.Repeat(self._pattern(expression.item), expression.low, expression.high)
            case syntax.Reference() if expression.name not in self._open:
                self._open.append(expression.name)
                node = self._pattern(self._rules[expression.name].expression)
                self._open.pop()
            case _:
                raise _NotRegularError
        budget_of(self._limits).spend(many := length(node))
        if many > self._limits.max_pattern_characters:
            raise _NotRegularError
        return node
