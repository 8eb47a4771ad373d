"""Results of one sequence's last forward pass: hidden states, and tokens that the device sampled from them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from torch import Tensor

from gpu_workers.sequence.drafts import Draft


class StepResult:
    """Results of one sequence's last forward pass: hidden states from which the next tokens can be sampled.

        token           last   d1   d2          the last token of the sequence and its drafts (proposed next tokens)
        hidden state    h0     h1   h2

    The next token is sampled from h0. If it equals d1, h1 becomes `hidden_state`, and the token after d1 is sampled
    from h1 without a forward pass.

    Attributes:
        hidden_state: Hidden state of the sequence's last token, [H]; None if a forward pass must compute it.
    """

    def __init__(self) -> None:
        self.hidden_state: Tensor | None = None
        self._ahead: deque[tuple[Draft, Tensor]] = deque()
        self._drawn: deque[int] = deque()

    def put(self, hidden_states: Tensor, drafts: Iterable[Draft]) -> None:
        """Store the hidden states of a forward pass, and drop all earlier results.

        Args:
            hidden_states: Hidden states [1 + k, H] of the last token and the first k drafts.
            drafts: Drafts (proposed next tokens) of the sequence. Those after the first k were not in the forward pass
                and are dropped.
        """
        self.hidden_state = hidden_states[0]
        self._ahead = deque(zip(drafts, hidden_states[1:], strict=False))
        self._drawn.clear()

    def put_drawn(self, token_ids: Iterable[int]) -> None:
        """Store tokens that the device has sampled from the hidden states.

        Args:
            token_ids: The next tokens of the sequence, in order. The sequence has not appended them yet.
        """
        self._drawn = deque(token_ids)

    @property
    def drafts(self) -> list[Draft]:
        """Drafts (proposed next tokens) that can still be accepted, in order.

        The first one is for the position after the last token.
        """
        return [draft for draft, _ in self._ahead]

    @property
    def drawn(self) -> int | None:
        """The next token of the sequence, if the device has sampled it; None otherwise."""
        return self._drawn[0] if self._drawn and self.hidden_state is not None else None

    def advance(self, token_id: int) -> bool:
        """Advance the results by one token that was appended to the sequence, and verify the draft for its position.

        The acceptance rate of the draft is updated.

        Args:
            token_id: The appended token.

        Returns:
            True if the token equals the draft (proposed token) for its position; then `hidden_state` belongs to the
            token. False if the token differs or if there is no draft; then `hidden_state` is None, and the other drafts
            are dropped.
        """
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
        """Drop all hidden states, drafts and sampled tokens: a forward pass must compute the last token again."""
        self.hidden_state = None
        self._ahead.clear()
        self._drawn.clear()
