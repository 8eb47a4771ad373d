"""Context-free grammars as text: readers of GBNF and Lark, and the automata that grammars are compiled to.

`reading` compiles a grammar text in these steps:

1. `gbnf` or `lark` parses the text to a `syntax.Grammar`.
2. `rtn` compiles each rule with `rule_builder` to an automaton (`rule_nfa`) that can call other rules.
3. `left_recursion` and `inline_regular` remove recursion as far as possible. If no call remains, the language is
   regular and the result is a DFA over characters.
4. Otherwise `byte_rules` creates a `rule_graph.RuleGraph`, which `matching.cfg_recognizer` runs on sets of `stacks`.

`intersection` restricts a recursive grammar to the texts of a DFA. The readers use `text_cursor` and `lark_common`.
`scc` finds recursion.
"""
