"""Commas, colons and white space between the parts of objects and arrays, according to the option `whitespace`."""

from __future__ import annotations

from grammar_workers.languages.json_schema.emit.property_order import NO_MARK, Mark
from grammar_workers.memo import memoized
from grammar_workers.options import GrammarOptions
from grammar_workers.pushdown.automaton import Guard
from grammar_workers.pushdown.builder import PushdownBuilder
from grammar_workers.pushdown.instructions import CALL


class Separators:
    """Writer of the states that read the separators of arrays and objects: commas, colons and white space.

    All separators share the states that read white space. These states count the white space up to `whitespace_limit`.

    Args:
        builder: The pushdown automaton to extend.
        options: `whitespace` and `whitespace_limit` are read.
    """

    def __init__(self, builder: PushdownBuilder, options: GrammarOptions) -> None:
        self._builder = builder
        self._compact = options.whitespace == "compact"
        self._limit = options.whitespace_limit
        self._whitespace: int | None = None

    def gap(self, following: int) -> int:
        """Return the number of a state that reads optional white space, and then continues in another state.

        Args:
            following: Number of the other state. With `whitespace: compact`, `following` itself is returned, because no
                white space is allowed.
        """
        return following if self._compact else self._builder.state(op=self._gap_call(following))

    def comma(self, following_op: int, guard: Guard = (), text: bytes = b"") -> int:
        """Append states that read the white space after a comma, and then a fixed text.

        With `whitespace: compact`, the white space is exactly one space.

        Args:
            following_op: Number of the instruction that runs after `text`.
            guard: Condition on the counter under which the comma is allowed; () always holds.
            text: Bytes after the white space, such as the opening quote of a property name.

        Returns:
            Number of the state after the comma.
        """
        builder = self._builder
        if self._compact:
            return builder.literal(b" " + text, op=builder.op(guard=guard) if guard else 0, end_op=following_op)
        start = builder.state()
        after = builder.literal(text, end_op=following_op)
        builder.set_op(start, self._gap_call(after, Mark(guard)))
        return start

    @memoized
    def colon(self, call: int, mark: Mark) -> int:
        """Append states that read the colon after a property name, with white space around it.

        With `whitespace: compact`, they read a colon and one space.

        Args:
            call: Number of the instruction that runs after the colon and calls the states of the value.
            mark: Guard (condition) and change of the counter. They apply in the first state.

        Returns:
            Number of the state after the property name.
        """
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
