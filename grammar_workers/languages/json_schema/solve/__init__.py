"""Solver of formulas: it computes the formulas that have values, and the possible continuations of arrays and objects.

A *demand* is a formula that a value must satisfy, with further formulas to test on the value. A *label* is the tuple of
the truth values of the tested formulas. A *part* is an item of an array or a property of an object.

    formula --solver--> demands that have values, and the labels of these values, as a least fixpoint
                |-- strings, numbers (number_dfa)    sets of strings and numbers with labels (`text_language`)
                |     +-- spelling                   restriction to texts that the vocabulary can encode
                |-- derivatives                      the requirements of an array or object after each part (Brzozowski)
                |     |-- arrays, objects, any_order     the possible parts; `name_classes` groups undeclared names
                |     +-- exploration                    all derivatives that are reachable
                |-- sizes                            numbers of values, for arrays and objects with unique parts
                +-- disjoint                         detection of formulas that exclude each other
"""
