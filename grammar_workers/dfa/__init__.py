"""Finite automata over characters, and their conversion to automata over bytes.

    charset --> dfa --minimize--> minimal dfa --utf8_dfa--> the same language over the bytes of UTF-8
                  |-- product     reachable tuples of states of several automata
                  |-- row_hash    equal rows of transition tables
                  +-- reached     reachability in any graph
    spans         automata of the substrings of a text, built with suffix_automaton

Besides `numba_options`, this package imports only modules that lie directly in `grammar_workers`.
"""
