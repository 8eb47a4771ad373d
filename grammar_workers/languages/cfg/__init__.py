"""Context-free grammars as text: GBNF and Lark readers, and the automata they become.

text --gbnf / lark--> syntax.Grammar --rtn--> one automaton per rule (`rule_nfa`), with calls
     --left_recursion, inline_regular--> a DFA over characters where the language is regular (the fast path),
                                         else --byte_rules--> rule_graph.RuleGraph, which `matching.cfg_recognizer`
                                         runs on sets of `stacks`

`reading` is the way from text to either; `intersection` adds a regular restriction to a recursive grammar.
`text_cursor` and `lark_common` serve the readers, `scc` finds recursion.
"""
