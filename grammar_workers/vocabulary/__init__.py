"""The tokens of a model, arranged so that many are decided at once.

tokenizer --token_bytes--> bytes of each token --trie--> prefix tree of all tokens
                                              --slices--> tokens that stay inside of a string or comment, and the rest
                                              --folded_trie--> one tree for bytes that mean the same
partial_characters: where tokens are parts of characters
May import `dfa`, what the tables of `pushdown` mean and how it spells strings, `lru` and the modules beside
the packages.
"""
