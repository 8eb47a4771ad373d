"""Regular expressions as both dialects, ECMA-262 and Python, read them; as DFAs over characters.

    pattern --parse--> tree --nfa--> Glushkov's automaton --determinize--> DFA (`dfa`)
                         |                                   (its loop: determinize_kernel)
                         +--counters--> large repetitions become counters instead of states

`character_class`, `case_folding` and `unicode_properties` say which characters; `lengths`, how long matches are.
"""
