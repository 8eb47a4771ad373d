"""Store of compiled grammars that the processes of a cluster share. `open_store(url)` returns the store of a URL."""

from grammar_workers.artifacts.store.store import GrammarStore, StoredArtifact, open_store

# URL of the store if no other is configured.
DEFAULT_URL = "file://~/.cache/turnstile/grammars"

__all__ = ["DEFAULT_URL", "GrammarStore", "StoredArtifact", "open_store"]
