"""Regular expressions in the common subset of ECMA-262 and Python's `re`, compiled to DFAs over characters.

    pattern --parse--> tree --nfa--> Glushkov NFA --determinize--> DFA (`dfa`)

`compile` is the entry point. `determinize_kernel` has the compiled code of `determinize`. `counters` compiles large
repetition counts to counters instead of states. `character_class` and `case_folding` define the sets of characters.
`lengths` computes the lengths of matches. `python_dialect`, `longest_first` and `preferred` are for the terminals of
Lark grammars, which follow Python's `re` and not ECMA-262.
"""
