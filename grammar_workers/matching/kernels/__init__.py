"""The compiled loops (numba kernels) of matching: `step` reads one byte, `mask` computes one mask of allowed tokens.

entry: the kernels that Python calls; most of them call a kernel of one of the next modules
step: advances an automaton by one byte
mask: computes one mask, by walks of the prefix tree of all tokens (`trie_walks`)
mask_classes: table of configurations that are known to have equal masks
prefetch: masks of configurations that may come next
transitions: the next state after every allowed token
cfg: masks and next configurations of rule graphs (context-free grammars)
arrays: how arrays are passed to the kernels
compile_all: compiles all kernels that Python calls, before the first request
"""
