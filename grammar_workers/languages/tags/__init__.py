"""Compiler of structural tags to states of a pushdown automaton.

A *format* (`grammar_workers.tag_formats`) is a node of a structural tag, such as a sequence or a JSON value.

    specification --triggers--> format --construct--> FormatNfa --automaton--> FormatNfa --lower--> pushdown states
                                           |
                                           +--leaves--> formats with a language of their own: JSON, regex, grammars

A `FormatNfa` reads characters and tokens, and calls rules for values such as JSON. `layout` appends states and embedded
automata to it. `automaton` makes it deterministic. `free_text` compiles text in which triggers (such as `<tool_call>`)
begin tags. `spelling` splits fixed texts into characters and special tokens. `values` collects the JSON values and
grammar rules that formats call. A tag that calls only rules of recursive grammars becomes a rule graph instead of
pushdown states. `parameters`, `nested_values`, `bare_values`, `markup_values` and `texts` handle the arguments of tool
calls. They convert the notation of a model family to other formats.
"""
