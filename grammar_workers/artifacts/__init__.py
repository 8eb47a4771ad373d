"""Compiled grammars as bytes (artifacts), and the caches and stores that keep them.

artifact: automaton <--> bytes with version, key and checksum
automaton_cache: automata in the memory of a process
store: artifacts in memory, in files of the node, and in Redis
"""
