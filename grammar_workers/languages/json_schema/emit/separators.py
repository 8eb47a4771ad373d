"""Commas, colons and white space between the parts of objects and arrays, by the white space policy."""

from __future__ import annotations

from grammar_workers.languages.json_schema.emit.property_order import NO_MARK, Mark
from grammar_workers.memo import memoized
from grammar_workers.options import GrammarOptions
from grammar_workers.pushdown.automaton import Guard
from grammar_workers.pushdown.builder import PushdownBuilder
from grammar_workers.pushdown.instructions import CALL


class Separators:
    """The separators in one builder. All of them call the same states of white space, which count up to the limit."""

    def __init__(self, builder: PushdownBuilder, options: GrammarOptions) -> None:
        self._builder = builder
        self._compact = options.whitespace == "compact"
        self._limit = options.whitespace_limit
        self._whitespace: int | None = None

    def gap(self, following: int) -> int:
        """`following`, with optional white space before it when that is allowed."""
        return following if self._compact else self._builder.state(op=self._gap_call(following))

    def comma(self, following_op: int, guard: Guard = (), text: bytes = b"") -> int:
        """The state after a comma: the separator, `text`, then a state with `following_op`."""
        builder = self._builder
        if self._compact:
            return builder.literal(b" " + text, op=builder.op(guard=guard) if guard else 0, end_op=following_op)
        start = builder.state()
        after = builder.literal(text, end_op=following_op)
        builder.set_op(start, self._gap_call(after, Mark(guard)))
        return start

    @memoized
    def colon(self, call: int, mark: Mark) -> int:
        """The state after a property name: what `mark` says, the separator, then a state with the op `call`."""
        builder = self._builder
        if self._compact:
            op = 0 if mark == NO_MARK else builder.op(**mark._asdict())
            return builder.literal(b": ", op=op, end_op=call)
        value = self.gap(builder.state(op=call))
        colon = builder.literal(b":", end_op=builder.goto(value))
        return builder.state(op=self._gap_call(colon, mark))

    def _gap_call(self, following: int, mark: Mark = NO_MARK) -> int:
        builder = self._builder
        if self._whitespace is None:
            again = builder.state()
            row = builder.row(dict.fromkeys(b" \t\n\r", again))
            limit = self._limit
            builder.fill(again, row=row, exit_label=0, op=builder.op(guard=[(0, limit - 1)], increment_to=limit))
            self._whitespace = builder.state(row=row, exit_label=0)
        return builder.op(move=CALL, target=self._whitespace, site=[following], **mark._asdict())
