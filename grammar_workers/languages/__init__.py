"""Front ends of the grammar compiler: they turn specifications into automata over characters or bytes.

    combine                    compiles a whole specification, and intersects the members of an `all_of`
    parts                      sorts the members of an `all_of` by kind
    compilation                inputs, warnings and the automaton builder that the front ends of a compilation share
    json_values, json_schema/  JSON Schemas
    regex/, token_pattern      regular expressions and token patterns
    positions, automaton       sets of characters or tokens for each position, and user-defined automata
    banned_words, substring    texts without banned words, and pieces of a source text
    banned_in_json             texts without banned words inside JSON documents
    cfg/                       context-free grammars (GBNF and Lark)
    tags/                      structural tags
    aho_corasick               search for many words in one pass

The modules of this package may import `dfa`, `pushdown`, `vocabulary` and the modules directly in `grammar_workers`.
"""
