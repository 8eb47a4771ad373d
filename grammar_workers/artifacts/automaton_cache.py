"""Cache of the compiled automata that this process has used last."""

from __future__ import annotations

from collections.abc import Hashable

from grammar_workers.lru import LeastRecentlyUsed
from grammar_workers.matching.token_fsm import TokenFSM


class AutomatonCache(LeastRecentlyUsed[TokenFSM]):
    """Cache of compiled automata (TokenFSM) by grammar key. Thread-safe.

    The least recently used automata are evicted first. The cache is bounded by the sum of `TokenFSM.nbytes`, by the
    number of automata, and by the time since their last use. `nbytes` grows while generations visit states. A sequence
    (running generation) can use an evicted automaton until the sequence ends. The next request for the key loads the
    automaton again.

    Args:
        capacity_bytes: Maximum sum of `nbytes`.
    """

    def __init__(self, capacity_bytes: int) -> None:
        super().__init__(capacity_bytes, lambda fsm: fsm.nbytes)

    def get(self, key: Hashable) -> TokenFSM | None:
        """Return the automaton of a grammar key, and count the call as a use.

        An automaton is *worn* if its visited states use much memory and are rarely reached again (`TokenFSM.is_worn`).
        A worn automaton is removed, so that the caller loads it again.

        Args:
            key: Grammar key.

        Returns:
            The automaton. None if it is not cached or is worn.
        """
        fsm = super().get(key)
        if fsm is not None and fsm.is_worn:
            self.discard(key)
            return None
        return fsm
