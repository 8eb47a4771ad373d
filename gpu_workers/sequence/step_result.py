"""What a forward pass leaves behind for one sequence: hidden states, and tokens drawn from them on the device."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from torch import Tensor

from gpu_workers.sequence.drafts import Draft


class StepResult:
    """The positions of the last forward pass that tokens can still be drawn at.

        token           last   d1   d2          the last token of the sequence and its drafts
        hidden state    h0     h1   h2

    `hidden_state` [H] belongs to the sequence's last token; None: it has to be computed. While the tokens appended are
    the ones drafted, the next hidden state is there already. `drafts`: those that may still come true.
    """

    def __init__(self) -> None:
        self.hidden_state: Tensor | None = None
        self._ahead: deque[tuple[Draft, Tensor]] = deque()
        self._drawn: deque[int] = deque()

    def put(self, hidden_states: Tensor, drafts: Iterable[Draft]) -> None:
        """hidden_states [1 + k, H]: of the last token and the first k `drafts`."""
        self.hidden_state = hidden_states[0]
        self._ahead = deque(zip(drafts, hidden_states[1:], strict=False))
        self._drawn.clear()

    def put_drawn(self, token_ids: Iterable[int]) -> None:
        """The next tokens, drawn from the hidden states."""
        self._drawn = deque(token_ids)

    @property
    def drafts(self) -> list[Draft]:
        return [draft for draft, _ in self._ahead]

    @property
    def drawn(self) -> int | None:
        """The next token, where it was drawn on the device."""
        return self._drawn[0] if self._drawn and self.hidden_state is not None else None

    def advance(self, token_id: int) -> bool:
        """The sequence has one more token. Whether it was the draft, so that its hidden state is there."""
        self.hidden_state = None
        if self._drawn and self._drawn.popleft() != token_id:
            self._drawn.clear()
        if not self._ahead:
            return False
        draft, hidden_state = self._ahead.popleft()
        drafted = draft.token_id == token_id
        if draft.rate is not None:
            draft.rate.update(drafted)
        if drafted:
            self.hidden_state = hidden_state
        else:
            self._ahead.clear()
        return drafted

    def clear(self) -> None:
        """Everything has to be computed again."""
        self.hidden_state = None
        self._ahead.clear()
        self._drawn.clear()
