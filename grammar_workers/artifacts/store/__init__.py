"""Where compiled automata are kept and shared: `open_store(url)` gives the one interface."""

from grammar_workers.artifacts.store.store import GrammarStore, StoredArtifact, open_store

__all__ = ["GrammarStore", "StoredArtifact", "open_store"]
