"""Constraints of sequences: where masks come from, and what follows from them.

key --grammar_source--> automaton --masks--> rows of the batch;  forced_text: tokens that need no model
output_budget: complete before the limit;  banned_text: words taken back;  mask_loss: probability that masks removed
automaton_view: the automaton around a state, for people
"""
