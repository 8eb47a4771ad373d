"""The tokens of one tokenizer as bytes, and tables that allow or disallow many tokens at once in a mask.

    token_bytes          bytes of each token of a tokenizer
    partial_characters   usable tokens among those that end inside a UTF-8 character
    trie                 prefix tree of all tokens
    slices               tokens that stay inside a string or comment, and all other tokens
    folded_trie          prefix tree in which equivalent bytes share an edge
    vocabulary           the class `Vocabulary`, which combines these tables
    tokenizer_file       reader of a `Vocabulary` that does not need `transformers`

The modules may import `dfa`, the table layout and the JSON string encoding of `pushdown`, `lru`, and the modules at the
top level of `grammar_workers`.
"""
