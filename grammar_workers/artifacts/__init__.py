"""Automata as bytes, and where they are kept.

automaton <--artifact--> bytes: version, key, checked tables
automaton_cache, lru: in the memory of a process;  store/: memory, files of the node, Redis
"""
