"""Constraints of sequences: token masks, and other data that the engine derives from grammars (compiled constraints).

grammar_source:   grammar key --> automaton (TokenFSM)
masks:            automaton --> masks; the grammar state of a sequence
forced_text:      tokens that the grammar determines, without the model
output_budget:    masks that complete the output before its token limit
banned_text:      rollback of banned words in text without a grammar
mask_loss:        rejection mass: the probability of the disallowed tokens
automaton_view:   the automaton around a state, for the explorer page
"""
