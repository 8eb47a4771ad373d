"""From demands that have values to an automaton over bytes.

demands --graphs--> what can still end --emitter--> `pushdown.builder`
                    property_order   names in the order of their declaration
                    property_names   declared, matched and free names beside each other
                    separators       commas, colons, white space
                    numbers          numbers by their digits
                    distinct         whether another part is left where parts must differ
                    unsatisfiable    why nothing is left, for the error message
"""
