"""JSON Schemas, drafts 4 to 2020-12, as automata over bytes.

    schema --read/--> formulas over `assertions` (`logic`) --solve/--> what has values --emit/--> automaton over bytes

`logic` holds the formulas: what keywords assert about one value, joined by and, or, not. `labels` are the answers to
questions that a caller asks about a value, by which `oneOf`, `not` and `unevaluated*` are decided. `memo` remembers the
results of methods.
"""
