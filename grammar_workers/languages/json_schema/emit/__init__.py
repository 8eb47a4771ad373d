"""Conversion of satisfiable demands to an automaton over bytes.

A *demand* is a formula that a value must satisfy, with further formulas to test on the value. A *node* has the formulas
of an array or object that are undecided after some items or properties. The table has the steps, and the modules that
the emitter uses:

    demands --graphs--> nodes that can still end --emitter--> `pushdown.builder`
                        property_order   the order of property names as conditions on the counter
                        property_names   states that read declared and undeclared names
                        separators       commas, colons, white space
                        numbers          numbers by their digits
                        distinct         check that unique items and names never run out
                        unsatisfiable    reason for the error message if no value is left
"""
