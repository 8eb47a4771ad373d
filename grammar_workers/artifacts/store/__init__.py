"""Where compiled automata are kept and shared: `open_store(url)` gives the one interface."""

from grammar_workers.artifacts.store.store import GrammarStore, StoredArtifact, open_store

DEFAULT_URL = "file://~/.cache/turnstile/grammars"
"""Where artifacts are kept if nobody says."""

__all__ = ["DEFAULT_URL", "GrammarStore", "StoredArtifact", "open_store"]
