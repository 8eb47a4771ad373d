"""Decode steps that mask and sample on the device. A step can be captured as one graph, without work on the host.

plan:    selects the sequences of a step; compiles or captures the step
tables:  automata of grammars (compiled constraints) as tensors
step:    the step as a pure function of tensors
drafts:  the step's next draft tokens, from an EAGLE-3 head
"""
