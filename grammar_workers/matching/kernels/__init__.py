"""The compiled loops (numba): `step` one byte, `mask` one row, and what they share.

entry --> step: byte by byte through an automaton      transitions: the next state of every token of a row
      --> mask: one mask row, by walks of the prefix tree (`trie_walks`)
            |-- mask_classes: rows that are known to be equal
            +-- prefetch: rows of states that come next
cfg: the same for rule graphs;  arrays: how arrays reach the loops
ahead: compiles all that Python calls before somebody waits for it
"""
