"""The tokens of a model, arranged so that many are decided at once.

tokenizer --vocabulary--> bytes of each token --trie--> prefix tree of all tokens
                                              --slices--> tokens that stay inside of a string, by what they need
                                              --folded_trie--> one tree for bytes that mean the same
partial_characters: where tokens are parts of characters;  free_tokens: slices for grammars
May import what the tables of `pushdown` mean (`instructions`, `json_text`, `byte_classes`), `artifacts.lru` and the
modules beside the packages.
"""
