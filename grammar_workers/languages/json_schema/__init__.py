"""JSON Schemas, drafts 4 to 2020-12, as automata over bytes.

    schema --read/--> formulas over atoms (`logic`) --solve/--> rules that have values --emit/--> automaton over bytes

`logic` holds the formulas: what keywords demand of one value, as atoms joined by and, or, not. `labels` are the sets of
formulas that a value satisfies, by which `oneOf`, `not` and `unevaluated*` are decided.
"""
