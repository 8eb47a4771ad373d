"""Context-free grammars as text: GBNF and Lark readers, and the automata they become.

text --gbnf_reader / lark_reader--> syntax.Grammar --rtn--> one automaton per rule, with calls
     --left_recursion, inline_regular--> a DFA over characters where the language is regular (the fast path),
                                         else rule_graph.RuleGraph, which `matching.cfg_recognizer` runs
"""
