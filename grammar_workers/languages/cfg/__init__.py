"""Context-free grammars as text: GBNF and Lark readers, and the automata they become.

text --gbnf_reader / lark_reader--> syntax.Grammar --network--> one automaton per rule, with calls
     --left_recursion, regular--> a character automaton where the language is regular (the fast path),
                                  else rule_graph.RuleGraph, which `walker.ConfigurationWalker` runs
"""
