"""`finish_within_budget`: a constrained output that is complete before its tokens run out.

    tokens left   9  8  7  6  5  4
    proof         3  3  5  5  ...      length of a completion that is known to be possible from here

A sequence always holds a *proof*: tokens that lead to an accepting state and fit into what is left. A drawn token that
is not the proof's first is looked at before it is appended: if a completion after it still fits, that is the new proof;
otherwise the mask is cut to the proof's first token. So the bound holds whatever the model wants and however fast
completions grow, for one look-up per token. The look-up's completion is shortest in bytes: a token is turned down, or a
request refused, only where that one does not fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from gpu_workers.guided.masks import Constraint, advance, completion_within
from gpu_workers.request import RequestError
from gpu_workers.sampling.logprobs import TokenReport
from grammar_workers import TokenFSM


@dataclass(frozen=True, slots=True)
class Candidate:
    """A drawn token whose completion is being looked up."""

    token_id: int
    report: TokenReport | None
    completion: Future[list[int] | None]


def proof_after(fsm: TokenFSM, token_ids: Sequence[int], left: int) -> list[int]:
    """The proof after `token_ids`, as a run that drew them would hold it; `left`: how many more there may be.

    Raises RequestError when no completion fits, ForbiddenTokenError. May take long: a look-up for every token.
    """
    state = fsm.initial_state
    total = len(token_ids) + left
    proof = completion_within(fsm, state, total)
    for token_id in token_ids:
        state = advance(fsm, state, token_id)
        proved = proof and proof[0] == token_id
        proof = proof[1:] if proof and proved else completion_within(fsm, state, total)
    if proof is None or len(proof) > left:
        needed = f"more than {left}" if proof is None else str(len(proof))
        message = f"finish_within_budget: the shortest output found needs {needed} more tokens, {left} are left"
        raise RequestError(message, code="budget_too_small", param="max_tokens")
    return proof


class FinishBudget:
    """One sequence's proof, and the token that waits for its own."""

    def __init__(self) -> None:
        self.candidate: Candidate | None = None
        self._proof: list[int] = []
        self._turned_down = False

    def replay(self, fsm: TokenFSM, token_ids: Sequence[int], left: int) -> None:
        """Takes up a run that drew `token_ids`; `left`: how many more there may be.

        Raises RequestError when no completion fits. May take long: a look-up for every token.
        """
        self._proof = proof_after(fsm, token_ids, left)

    def proves(self, token_id: int) -> bool:
        """Takes the proof's first step if that is this token."""
        if not self._proof or self._proof[0] != token_id:
            return False
        self._proof = self._proof[1:]
        self._turned_down = False
        return True

    def offer(self, token_id: int, report: TokenReport | None, constraint: Constraint, left: int) -> None:
        """Starts the look-up for a drawn token after which `left` more may come."""
        self.candidate = Candidate(token_id, report, constraint.completion_after(token_id, left))

    def decide(self, left: int) -> Candidate | None:
        """The candidate, if its look-up is done and its completion fits into `left` tokens after it.

        Raises what the look-up raised.
        """
        candidate = self.candidate
        if candidate is None or not candidate.completion.done():
            return None
        self.candidate = None
        completion = candidate.completion.result()
        self._turned_down = completion is None or len(completion) > left
        if completion is None or self._turned_down:
            return None
        self._proof = completion
        return candidate

    @property
    def must_end(self) -> bool:
        """Whether a token was turned down where the output is complete."""
        return self._turned_down and not self._proof

    @property
    def only(self) -> int | None:
        """The one token that may come next, after another was turned down."""
        return self._proof[0] if self._turned_down and self._proof else None
