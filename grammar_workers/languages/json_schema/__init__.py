"""Compilation of JSON Schemas, drafts 4 to 2020-12, to automata over bytes.

    schema --read/--> formulas (`logic`) --solve/--> demands that values satisfy --emit/--> automaton over bytes

A *formula* (`logic`) is a Boolean combination of assertions about one value (`assertions`). A *demand* is a formula
that a value must satisfy, with a tuple of further formulas to test on the value. The *label* of a value (`labels`) is
the tuple of the truth values of the tested formulas. Labels decide `oneOf`, `not` and `unevaluated*`.
"""
