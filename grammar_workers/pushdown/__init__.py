"""Automata over bytes with a stack and a counter: what most specifications become.

    languages --builder--> automaton: states, transitions by byte, calls with return states, counters
                 |-- strings, string_moves, escapes, json_text   JSON strings
                 +-- trie                                    listed texts
    automaton --intersect--> with a regular language;  --liveness--> which counters matter;
              --shortest--> a shortest text to an end (`repeated_text`);  --byte_classes--> bytes that are alike

`instructions` has the columns of the tables, the values in them, and what an instruction does to the counter.
May import `dfa` and the modules beside the packages.
"""
