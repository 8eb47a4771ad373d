"""Waiting for one's turn to compile a key, as the compile service does."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from grammar_workers.artifacts.store import GrammarStore
from grammar_workers.artifacts.store.single_flight import POLL_S


@contextlib.contextmanager
def single_flight(store: GrammarStore, key: str, timeout_s: float = 60.0) -> Iterator[bool]:
    """Whether the caller leads, after its turn, the artifact or `timeout_s` seconds have come."""
    flight = store.flight(key, timeout_s)
    while not flight.settled():
        time.sleep(POLL_S)
    try:
        yield flight.leads
    finally:
        flight.release()
