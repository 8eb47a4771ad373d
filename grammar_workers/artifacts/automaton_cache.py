"""The automata that this process used last."""

from __future__ import annotations

from collections.abc import Hashable

from grammar_workers.lru import LeastRecentlyUsed
from grammar_workers.matching.token_fsm import TokenFSM


class AutomatonCache(LeastRecentlyUsed[TokenFSM]):
    """TokenFSM objects by grammar key, bounded by the sum of their `nbytes`, which grow as generations visit states, by
    their number and by the time since the last use.

    Evicting one frees nothing while a sequence still steps it; the next request for its key loads it again.
    """

    def __init__(self, capacity_bytes: int) -> None:
        super().__init__(capacity_bytes, lambda fsm: fsm.nbytes)

    def get(self, key: Hashable) -> TokenFSM | None:
        """None, too, where the automaton is worn: it is then loaded again."""
        fsm = super().get(key)
        if fsm is not None and fsm.is_worn:
            self.discard(key)
            return None
        return fsm
