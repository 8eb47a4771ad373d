"""States that all JSON values of an automaton share, and their prebuilt form, with which most automata begin.

Nearly every schema allows free strings, undeclared property names, numbers or any value. Their states do not depend on
the schema. So they are built once for each set of options, and every automaton of JSON values begins with a copy,
whether it uses them or not. An automaton therefore does not depend on earlier compilations.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from grammar_workers.dfa.dfa import Dfa
from grammar_workers.languages.json_schema.emit.numbers import number_moves
from grammar_workers.languages.json_schema.emit.separators import Separators
from grammar_workers.memo import fork, memoized
from grammar_workers.options import GrammarOptions
from grammar_workers.pushdown.automaton import Guard
from grammar_workers.pushdown.builder import PushdownBuilder
from grammar_workers.pushdown.strings import StringLowering


class CommonStates:
    """Writers of the states of strings, numbers and separators. All JSON values of one automaton share their states.

    Args:
        builder: The pushdown automaton to extend.
        options: `escapes`, `whitespace` and `whitespace_limit` are read.
        any_escape: True if strings may contain all escapes of JSON.

    Attributes:
        builder: The argument `builder`.
        strings: Writer of the contents of strings.
        names: Writer of undeclared names. They have only their canonical encoding: with other escapes, an undeclared
            name could equal a declared name.
        separators: Writer of commas, colons and white space.
        values: Entry states of the first values in `FormulaPool.common`.
    """

    def __init__(self, builder: PushdownBuilder, options: GrammarOptions, *, any_escape: bool) -> None:
        self.builder = builder
        self.strings = StringLowering(builder, any_escape=any_escape)
        self.names = StringLowering(builder) if any_escape else self.strings
        self.separators = Separators(builder, options)
        self.values: list[int] = []

    def begin(self, builder: PushdownBuilder) -> CommonStates:
        """Copy all states to an empty builder, and return writers that extend it."""
        builder.restore(self.builder)
        strings = self.strings.fork(builder)
        names = strings if self.names is self.strings else self.names.fork(builder)
        separators = fork(self.separators, _builder=builder)
        return fork(self, builder=builder, strings=strings, names=names, separators=separators)

    @memoized
    def return_(self, label: int, guard: Guard) -> int:
        """Return a state that returns to the caller with `label` if `guard` (condition on the counter) passes."""
        return self.builder.state(op=self.builder.return_(label, guard=guard))

    @memoized
    def number_moves(self, automaton: Dfa) -> NDArray[np.int32]:
        """Return the moves over the first byte of the numbers of a DFA, int32 [256] (see `numbers.number_moves`)."""
        return number_moves(self.builder, automaton)
