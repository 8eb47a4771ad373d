"""Pushdown automata over bytes, with a return stack and a counter: the compiled form of most specifications.

Modules that build an automaton:

    builder                                     states, transitions by byte, calls with return states, counters
    strings, string_moves, escapes, json_text   JSON strings
    spans, span_layout                          the spans (substrings) of a text
    trie                                        listed strings

Modules that analyze an automaton:

    intersect                 product with a regular language
    liveness                  states in which the value of the counter matters
    shortest, repeated_text   a shortest completion
    byte_classes              equivalent bytes

`instructions` defines the columns of the tables, the values in them, and the effect of an instruction on the counter.
The modules may import `dfa` and the modules at the top level of `grammar_workers`.
"""
