"""Status page of the server (HTTP path `/`).

The page shows the state and load of all replicas, and the cache hits of grammars (compiled constraints). It also lists
the most used grammars, the grammars that took longest to compile, and the latest rejected constraints.
"""
