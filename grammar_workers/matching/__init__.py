"""Matching: advances an automaton by each token of the output, and computes the mask of tokens that may come next.

token_fsm             the class `TokenFSM`: numbered states with masks; `mask_store` stores equal masks once
recognizer            the interface that `TokenFSM` uses: an automaton that reads tokens and computes masks
pushdown_recognizer   the implementation of this interface for pushdown automata
cfg_recognizer        the implementation for rule graphs (context-free grammars)
distinct/             the implementation for pushdown automata whose items must be unique (`uniqueItems`)
kernels/              the compiled loops of the recognizers; `long_rows` selects the prefix tree for a slow mask
masks, export         application of masks to logits; tables of a `TokenFSM` for a PyTorch device
examples, spelling    random outputs; tokenization of completions

The modules may import every package except `service`.
"""
