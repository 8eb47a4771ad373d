"""Which formulas have values, and how arrays and objects of them go on.

formula --solver--> demands: what a value must satisfy, and questions about it; those that have values (least fixpoint)
            |-- strings, numbers (number_dfa)    labelled languages of scalars (`text_language`)
            |     +-- spelling                   as far as the vocabulary can spell them
            |-- derivatives                      what an array or object still asks after each part (Brzozowski)
            |     |-- arrays, objects, any_order     which parts there may be; `name_classes` tells names apart
            |     +-- exploration                    all derivatives that are reached
            |-- sizes                            how many values there are, where parts must differ
            +-- disjoint                         which formulas exclude each other
"""
